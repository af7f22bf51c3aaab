"""What a device may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Each is told in `Welcome`; what goes beyond is refused by name.

    `sessions` are held at a time, `nodes` in one draft, `context` tokens in one session, prompt and draft included.
    `credit` answers of one stream may wait to be read. With `waiting` rounds in line the server gives one target
    token a round, with twice as many it refuses for a while.
    """

    sessions: int = 4096
    nodes: int = 256
    context: int = 1024
    frame_bytes: int = 1 << 20
    credit: int = 256
    candidates: int = 1024
    waiting: int = 256
    idle_s: float = 600.0
    hello_s: float = 10.0
    heartbeat_s: float = 20.0
