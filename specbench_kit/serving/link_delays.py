"""Arrival times of messages over links that change with time, or that devices share."""

from math import inf

import numpy as np

from specbench_kit.deployments.base import TOKEN_BYTES
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.fleet import GOLDEN, Fleet
from specbench_kit.serving.network import Network
from specbench_kit.serving.round_rows import RoundRows


class LinkDelays:
    """Corrects the transfer times in `RoundRows`, which count with the devices' own links at their means."""

    def __init__(self, network: Network, fleet: Fleet, *, on_edge: bool) -> None:
        self._trace, self._bytes_per_s, self._frame_s = network.trace, network.shared_up_bytes_per_s, network.frame_s
        self._fleet, self._on_edge = fleet, on_edge
        count = len(fleet.kind)
        self._offset_s: Floats = np.zeros(count)
        """Position in the trace at which each device's link begins, so that not all links are slow at once."""
        if network.trace is not None:
            fractions: Floats = np.arange(count, dtype=np.float64) * GOLDEN % 1
            self._offset_s = fractions * network.trace.duration_s
        self._uplink = SharedUplink(count)

    def uplink_arrivals(self, devices: Integers, rows: RoundRows, sent_s: Floats) -> tuple[Integers, Floats]:
        """Return all devices whose messages now arrive at another time than was thought, and those times.

        Besides the given devices these are the devices whose messages queue behind theirs on a shared link.
        """
        begins = rows["begins"] > 0
        drafted = rows["submitted"] * self._on_edge
        size = (np.where(begins, rows["prompt"], 0) + drafted) * TOKEN_BYTES
        size = size + self._fleet.draft_bytes[devices] * drafted
        crosses = begins | self._on_edge
        arrives_s = sent_s + rows["up_s"] + crosses * self._excess_s(devices, size, sent_s)
        if self._bytes_per_s == inf and not self._frame_s:
            return devices, arrives_s
        occupies_s = size[crosses] / self._bytes_per_s + self._frame_s
        queued, through_s = self._uplink.send(devices[crosses], arrives_s[crosses], occupies_s)
        return np.concatenate([devices[~crosses], queued]), np.concatenate([arrives_s[~crosses], through_s])

    def downlink_excess_s(self, devices: Integers, rows: RoundRows, ended_s: float | Floats) -> Floats:
        """Return how much later than `down_s` answers arrive; they leave one after the other in batch order."""
        crosses = (rows["ends"] > 0) | (rows["begins"] > 0) | self._on_edge
        size = (rows["accepted"] + 1) * TOKEN_BYTES
        leave_s = np.cumsum(crosses, dtype=np.float64) * self._frame_s
        excess_s: Floats = crosses * (leave_s + self._excess_s(devices, size, ended_s + leave_s))
        return excess_s

    def _excess_s(self, devices: Integers, size: Floats, at_s: Floats) -> Floats:
        """Return the transfer time by the trace beyond the time at its mean round trip and bandwidth."""
        if (trace := self._trace) is None:
            return np.zeros(len(devices))
        usual_s = trace.mean_rtt_s / 2 + size / trace.mean_bytes_per_s
        return trace.transfer_s(size, at_s + self._offset_s[devices]) - usual_s


class SharedUplink:
    """One link that messages cross one after the other, first come, first served.

    Every device has at most one message on its way, so that the queue is a few arrays [devices].
    """

    def __init__(self, devices: int) -> None:
        self._reached_s, self._occupies_s, self._through_s = np.zeros((3, devices))

    def send(self, devices: Integers, reached_s: Floats, occupies_s: Floats) -> tuple[Integers, Floats]:
        """Queue messages that reach the link at times which may lie in the future.

        Returns the devices of these messages and of those that queue behind them, and when each is through.
        """
        if not len(devices):
            return devices, reached_s
        # Rounds are set up ahead, so a message may reach the link before others that were queued earlier: all behind
        # the first of the new messages are timed again.
        behind = self._reached_s > reached_s.min()
        behind[devices] = True
        self._reached_s[devices], self._occupies_s[devices] = reached_s, occupies_s
        free_s = self._through_s[~behind].max(initial=0.0)
        moved = behind.nonzero()[0]
        moved = moved[self._reached_s[moved].argsort(kind="stable")]
        occupies_s = self._occupies_s[moved]
        # Closed form of start[i] = max(reached[i], end[i - 1]) over the queue.
        before_s = np.cumsum(occupies_s) - occupies_s
        free_at_s = np.maximum.accumulate(np.maximum(self._reached_s[moved], free_s) - before_s)
        self._through_s[moved] = through_s = free_at_s + before_s + occupies_s
        return moved, through_s
