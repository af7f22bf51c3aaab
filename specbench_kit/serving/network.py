"""Networks beyond one link for each device: links recorded over time, and ways that all devices share."""

from dataclasses import dataclass, replace
from math import inf

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Link
from specbench_kit.serving.link_trace import LinkTrace


@dataclass(frozen=True)
class Network:
    """`trace`: every device's link goes as recorded, each from a place of its own in the recording.

    `shared_up_bytes_per_s`: behind their links, all devices' messages to the server cross one more link, one after the
    other in the order in which they reach it. `frame_s` is what the server takes to read a message or to write one, one
    after the other in each direction and beside its verifications. From one verification to the next it takes `turn_s`,
    and `turn_answer_s` for each answer of the first. An answer that leaves beside a verification holds it up by
    `answer_s`; the deployment's seconds of one have one such answer for each of its requests.
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
    def is_plain(self) -> bool:
        """Whether deployments' links say it all."""
        return self.trace is None and self.shared_up_bytes_per_s == inf and not self.frame_s

    def link(self, nominal: Link) -> Link:
        """A deployment's link as promises and reports go by it: with a trace, of its mean round trip and bandwidth."""
        if (trace := self.trace) is None:
            return nominal
        up = down = trace.mean_bytes_per_s
        return replace(nominal, rtt_s=trace.mean_rtt_s, jitter_s=0.0, up_bytes_per_s=up, down_bytes_per_s=down)


PLAIN = Network()
