"""When messages arrive over links that change with time, or that devices share."""

from math import inf

import numpy as np

from specbench_kit.deployments.base import TOKEN_BYTES
from specbench_kit.serving.counter_rng import Floats, Integers
from specbench_kit.serving.fleet import GOLDEN, Fleet
from specbench_kit.serving.network import Network
from specbench_kit.serving.round_rows import RoundRows


class LinkDelays:
    """When messages of one simulation arrive; `planned` times are those of the links alone, at their means."""

    def __init__(self, network: Network, fleet: Fleet, *, on_edge: bool) -> None:
        self._trace, self._bytes_per_s, self._frame_s = network.trace, network.shared_up_bytes_per_s, network.frame_s
        self._fleet, self._on_edge = fleet, on_edge
        count = len(fleet.kind)
        self._begins_s = np.arange(count) * GOLDEN % 1 * network.trace.lasts_s if network.trace else np.zeros(count)
        self._uplink = SharedUplink(count)

    def up(self, devices: Integers, planned: RoundRows, sent_s: Floats) -> tuple[Integers, Floats]:
        """Devices whose messages arrive at other times than was thought, these ones' among them, and those times."""
        begins = planned["begins"] > 0
        drafted = planned["submitted"] * self._on_edge
        size = (np.where(begins, planned["prompt"], 0) + drafted) * TOKEN_BYTES
        size = size + self._fleet.draft_bytes[devices] * drafted
        crosses = begins | self._on_edge
        arrives_s = sent_s + planned["up_s"] + crosses * self._late_s(devices, size, sent_s)
        if self._bytes_per_s == inf and not self._frame_s:
            return devices, arrives_s
        there = devices[~crosses], arrives_s[~crosses]
        takes_s = size[crosses] / self._bytes_per_s + self._frame_s
        queued = self._uplink.send(devices[crosses], arrives_s[crosses], takes_s)
        return np.concatenate([there[0], queued[0]]), np.concatenate([there[1], queued[1]])

    def late_down_s(self, devices: Integers, planned: RoundRows, ended_s: float | Floats) -> Floats:
        """How much later than planned answers arrive, which leave in the order of their batch."""
        crosses = (planned["ends"] > 0) | (planned["begins"] > 0) | self._on_edge
        size = (planned["accepted"] + 1) * TOKEN_BYTES
        leave_s = np.cumsum(crosses, dtype=np.float64) * self._frame_s
        late_s: Floats = crosses * (leave_s + self._late_s(devices, size, ended_s + leave_s))
        return late_s

    def _late_s(self, devices: Integers, size: Floats, at_s: Floats) -> Floats:
        if (trace := self._trace) is None:
            return np.zeros(len(devices))
        usual_s = trace.mean_rtt_s / 2 + size / trace.mean_bytes_per_s
        return trace.message_s(size, at_s + self._begins_s[devices]) - usual_s


class SharedUplink:
    """Messages cross one after the other, first come, first served; every device has one at most on its way."""

    def __init__(self, devices: int) -> None:
        self._reached_s, self._takes_s, self._through_s = np.zeros((3, devices))

    def send(self, devices: Integers, reached_s: Floats, takes_s: Floats) -> tuple[Integers, Floats]:
        """Messages reach the link at some time from now on; returns them, and those behind them, and when they are
        through."""
        if not len(devices):
            return devices, reached_s
        behind = self._reached_s > reached_s.min()
        behind[devices] = True
        self._reached_s[devices], self._takes_s[devices] = reached_s, takes_s
        free_s = self._through_s[~behind].max(initial=0.0)
        moved = behind.nonzero()[0]
        moved = moved[self._reached_s[moved].argsort(kind="stable")]
        takes_s = self._takes_s[moved]
        before_s = np.cumsum(takes_s) - takes_s
        free_at_s = np.maximum.accumulate(np.maximum(self._reached_s[moved], free_s) - before_s)
        self._through_s[moved] = through_s = free_at_s + before_s + takes_s
        return moved, through_s
