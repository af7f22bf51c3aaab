"""The limits that a server enforces on its devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds on memory and time per device; a frame beyond one of them is refused with the status that names it.

    `Welcome` tells devices those that they must keep.
    """

    sessions: int = 4096
    """Sessions remembered at a time."""
    nodes: int = 256
    """Tokens in one draft."""
    context: int = 1024
    """Tokens in one session, prompt and draft included."""
    frame_bytes: int = 1 << 20
    credit: int = 256
    """Answers that one stream may leave unread, so that a device that does not read cannot fill the memory."""
    unread_bytes: int = 64 << 20
    """Bytes of answers that one stream may leave unread before its frames wait."""
    token_unread_bytes: int = 256 << 20
    """The same for all devices with one access token."""
    streams: int = 1024
    """Devices connected at a time."""
    stream_sessions: int = 1024
    """Sessions of one stream."""
    token_sessions: int = 0
    """Sessions of all devices with one access token; 0 stands for an equal share of `sessions`."""
    token_streams: int = 0
    """Streams of all devices with one access token; 0 stands for an equal share of `streams`."""
    stream_bytes_per_s: float = 16e6
    """Bytes that are read from one stream in a second; a device that sends more waits."""
    token_bytes_per_s: float = 64e6
    """The same for all devices with one access token."""
    connection_streams: int = 100
    """Streams that one network connection may have open at a time."""
    candidates: int = 1024
    """Entries in the distribution of a sampled draft token."""
    waiting: int = 256
    """Rounds in the queue from which on the server verifies no drafts and commits one token per round instead, for
    devices whose access token has more than its share of them; with twice as many it refuses their new rounds."""
    idle_s: float = 600.0
    """Time without a frame after which a stream is ended and a session forgotten."""
    hello_s: float = 10.0
    """Time in which a new network connection must open a stream, and a new stream must say hello."""
    heartbeat_s: float = 20.0
    """Interval of the pings that find out whether a silent device is still there."""
