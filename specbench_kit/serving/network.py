"""What delays messages and verifications besides each device's own link: recorded links, shared links, the host."""

from dataclasses import dataclass, replace
from math import inf

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Link
from specbench_kit.serving.link_trace import LinkTrace


@dataclass(frozen=True)
class Network:
    """Delays beyond those of the devices' own links.

    `trace`: all links follow this recording, each from a different position in it. `shared_up_bytes_per_s`: bandwidth
    of one more link behind the devices' own, which their messages to the server cross one after the other. `frame_s`:
    the server's time per message that it reads or writes, one after the other in each direction, in parallel to
    verifications. `turn_s`: fixed gap between two verifications, and `turn_answer_s` the gap added per answer of the
    previous batch. `answer_s`: extra verification time per answer of the previous batch that is still being sent; the
    latency model of the verifier was measured with one such answer per request of the batch.
    """

    trace: LinkTrace | None = None
    shared_up_bytes_per_s: float = inf
    frame_s: float = 0.0
    turn_s: float = 0.0
    turn_answer_s: float = 0.0
    answer_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.shared_up_bytes_per_s > 0:
            raise SkitError(f"--shared-uplink must be above 0 bytes per second, not {self.shared_up_bytes_per_s:g}")
        for name in ("frame_s", "turn_s", "turn_answer_s", "answer_s"):
            if not 0 <= (seconds := getattr(self, name)) < inf:
                raise SkitError(f"--{name.replace('_', '-')} takes seconds from 0 on, not {seconds:g}")

    @property
    def delays_messages(self) -> bool:
        """True if messages take longer than the devices' own links say."""
        return self.trace is not None or self.shared_up_bytes_per_s != inf or self.frame_s > 0

    def link(self, nominal: Link) -> Link:
        """Return a deployment's link as deadlines and reports count with it: at the means of the trace, if any."""
        if (trace := self.trace) is None:
            return nominal
        up = down = trace.mean_bytes_per_s
        return replace(nominal, rtt_s=trace.mean_rtt_s, jitter_s=0.0, up_bytes_per_s=up, down_bytes_per_s=down)


NO_DELAYS = Network()
