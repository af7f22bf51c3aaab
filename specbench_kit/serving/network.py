"""What delays messages and verifications besides each device's own link: recorded links, shared
links, the host.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log, sqrt
from random import Random

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import FileReading
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.arrays import Floats, Integers


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """Round trip and bytes per second in either direction, from every `time_s` to the next; repeats
    from the start.

    Arrays [rows]. The last row lasts as long as the one before it. Messages wait while there are 0 bytes per second.
    Where `bytes_per_s` is None, the recording is of round trips alone, and the devices' own links say how long the
    bytes take; where `rtt_s` is None, it is of the bandwidth alone, and round trips are those of the own links.
    `reading` says what its file was taken for.
    """

    time_s: Floats
    rtt_s: Floats | None
    bytes_per_s: Floats | None = None
    reading: FileReading | None = field(default=None, compare=False)

    def excess_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return how much longer than at the mean round trip and bandwidth messages take that are
        sent at `at_s`.
        """
        mean_rtt_s = self._mean(self._round_trips_s)
        if self.bytes_per_s is None:
            return (self._round_trips_s[self._row(at_s)] - mean_rtt_s) / 2
        return self.transfer_s(size, at_s) - (mean_rtt_s / 2 + size / self.mean_bytes_per_s)

    def _row(self, at_s: Floats) -> Integers:
        at_s = np.where(at_s < inf, at_s, 0.0)
        row: Integers = np.searchsorted(self._edges_s, at_s % self.duration_s, side="right") - 1
        return row

    def transfer_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return the seconds of messages of `size` bytes that are sent at `at_s`: half a round
        trip, and the bytes.
        """
        seconds: Floats = self._round_trips_s[self._row(at_s)] / 2 + self._bytes_s(size, at_s)
        return seconds

    def _bytes_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return the seconds in which the link carries `size` bytes that are sent at `at_s`."""
        at_s = np.where(at_s < inf, at_s, 0.0)
        # Bytes that the link could have carried since 0 s grow with time; a message ends when they
        # have grown by its size, which is found by inverting that function.
        passes, offset_s = np.divmod(at_s, self.duration_s)
        carried = passes * self._carried_bytes[-1] + np.interp(
            offset_s, self._edges_s, self._carried_bytes
        )
        passes, offset = np.divmod(carried + size, self._carried_bytes[-1])
        end_s = passes * self.duration_s + np.interp(offset, self._carried_bytes, self._edges_s)
        seconds: Floats = np.maximum(0.0, end_s - at_s)
        return seconds

    @property
    def mean_rtt_s(self) -> float | None:
        """Round trip, averaged over time; None where it was not recorded."""
        return None if self.rtt_s is None else self._mean(self.rtt_s)

    @property
    def _round_trips_s(self) -> Floats:
        """Round trips as far as the trace has them: 0 where the devices' own links say them."""
        return np.zeros(len(self.time_s)) if self.rtt_s is None else self.rtt_s

    def _mean(self, values: Floats) -> float:
        return float(values @ np.diff(self._edges_s) / self.duration_s)

    @property
    def mean_bytes_per_s(self) -> float:
        """Bytes per second, averaged over time."""
        return float(self._carried_bytes[-1] / self.duration_s)

    @property
    def duration_s(self) -> float:
        """Seconds after which the trace repeats."""
        return float(self._edges_s[-1])

    @cached_property
    def _edges_s(self) -> Floats:
        from_zero: Floats = self.time_s - self.time_s[0]
        last_s = from_zero[-1] - from_zero[-2] if len(from_zero) > 1 else 1.0
        return np.append(from_zero, from_zero[-1] + last_s)

    @cached_property
    def _carried_bytes(self) -> Floats:
        assert self.bytes_per_s is not None
        return np.concatenate([[0.0], np.cumsum(self.bytes_per_s * np.diff(self._edges_s))])


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
            raise SkitError(
                f"--shared-uplink must be above 0 bytes per second, not {self.shared_up_bytes_per_s:g}"
            )
        for name in ("frame_s", "turn_s", "turn_answer_s", "answer_s"):
            if not 0 <= (seconds := getattr(self, name)) < inf:
                raise SkitError(
                    f"--{name.replace('_', '-')} takes seconds from 0 on, not {seconds:g}"
                )

    @property
    def delays_messages(self) -> bool:
        """True if messages take longer than the devices' own links say."""
        return self.trace is not None or self.shared_up_bytes_per_s != inf or self.frame_s > 0

    def link(self, nominal: Link) -> Link:
        """Return a deployment's link as deadlines and reports count with it: at the means of the
        trace, if any.
        """
        if (trace := self.trace) is None:
            return nominal
        rtt_s = trace.mean_rtt_s
        mean = nominal if rtt_s is None else replace(nominal, rtt_s=rtt_s, jitter_s=0.0)
        if trace.bytes_per_s is None:
            return mean
        return replace(
            mean, up_bytes_per_s=trace.mean_bytes_per_s, down_bytes_per_s=trace.mean_bytes_per_s
        )


NO_DELAYS = Network()


class ServerOverhead:
    """Adds what the processor takes to the isolated seconds of each verification."""

    def __init__(self, network: Network, verify_cv: float, seed: int | str) -> None:
        self._network = network
        self._previous_answers = 0
        self._previous_end_s = 0.0
        self._cv = verify_cv
        self._random = Random(f"{seed}/scatter")
        variance = log(1 + verify_cv**2)
        self._mean = -variance / 2
        self._deviation = sqrt(variance)
        self.free_s = 0.0
        """Time from which on the next verification may begin."""

    def verification_s(self, seconds: float, requests: int, now_s: float) -> float:
        """Return the duration of a verification of `requests` that starts at `now_s`.

        `seconds` is its isolated duration, which includes sending one answer per request.
        """
        if answer_s := self._network.answer_s:
            since_s = now_s - self._previous_end_s
            leaving = float(answers_leaving(self._previous_answers, since_s, self._network.frame_s))
            seconds += answer_s * (leaving - requests)
            require(
                seconds > 0,
                f"--answer-s {answer_s:g}: a verification of {requests} requests would take no time; its time includes "
                "one answer per request, so that an answer takes less",
            )
        if self._cv:
            seconds *= self._random.lognormvariate(self._mean, self._deviation)
        return seconds

    def restart(self, now_s: float) -> None:
        """Note that the server has stopped: it sends nothing any more."""
        self._previous_answers = 0
        self._previous_end_s = self.free_s = now_s

    def verification_ended(self, ended_s: float, answers: int) -> None:
        """Note the end of a verification and how many answers it has to send."""
        self._previous_answers = answers
        self._previous_end_s = ended_s
        self.free_s = ended_s + self._network.turn_s + self._network.turn_answer_s * answers


def answers_leaving(answers: Floats | float, since_s: Floats | float, frame_s: float) -> Floats:
    """Return how many of a batch's answers are still being sent `since_s` seconds after its end,
    `frame_s` each.
    """
    if not frame_s:
        return np.zeros_like(answers, dtype=np.float64)
    leaving: Floats = np.ceil(np.maximum(0.0, answers - since_s / frame_s))
    return leaving
