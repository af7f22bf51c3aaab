"""All devices as arrays: when they request, draft, send, and have their answers.

Messages may cross links that change with time, or that devices share.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.execution import Drafted, RoundDraft
from specbench_kit.serving.fleet import GOLDEN, Fleet
from specbench_kit.serving.free_devices import FreeRuns, free_running
from specbench_kit.serving.network import Network
from specbench_kit.serving.round_sources import CHAIN
from specbench_kit.serving.round_table import RECORDED, RoundOutcomes, RoundRows, RoundTable
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.traced_drafts import DraftedChain, TracedDrafts

AT_SERVER = ("arrived_s", "deadline_s", "new", "cached")
"""What the server knows of a round that has reached it."""


class AnsweredRounds(NamedTuple):
    """Answered rounds with their times; `start_s` and `first_s` are the response's start and first
    answer.
    """

    rows: RoundRows
    start_s: Floats
    first_s: Floats
    sent_s: Floats
    answered_s: Floats


class Devices:
    """The state of every device; arrays are [devices], and most methods take the devices that they
    are about.

    Devices of a real server follow its answers: these say which tokens are accepted, and not the
    scenario's source.
    """

    def __init__(self, scenario: Scenario, seed: int, *, follow_answers: bool = False) -> None:
        count = scenario.devices
        self._scenario = scenario
        free = free_running(scenario)
        self.table = RoundTable(
            scenario, seed, follows_answers=follow_answers, runs_free=bool(free)
        )
        self._runs = FreeRuns(scenario, free, self.table) if free else None
        self._on_edge = scenario.system.drafting == "edge"
        self._keeps_kv = scenario.system.prefix_cache
        self._longest = scenario.longest_response
        self._delays: LinkDelays | None = None
        if scenario.network.delays_messages:
            self._delays = LinkDelays(scenario.network, self.table.fleet, on_edge=self._on_edge)
        fleet = self.table.fleet
        submitted = np.array([kind.source.typical.submitted for kind in fleet.kinds])[fleet.kind]
        self.typical_new: Floats = 1 + np.rint(submitted) * self._on_edge
        self.slo = self.table.slo
        self.cached = np.zeros(count, dtype=np.int64)
        """Tokens of each device's session that the server holds in KV."""
        self.at_server = np.zeros((count, len(AT_SERVER)))
        """Fields `AT_SERVER` of each device's round that waits or is verified."""
        self.arrives_s = np.full(count, np.inf)
        """When each device's round reaches the server; infinite if none is on its way."""
        self.start_s = np.zeros(count)
        self.first_s = np.full(count, np.inf)
        self.sent_s = np.zeros(count)
        at_zero_s = np.zeros(count)
        self._send(np.arange(count), self.table.current(np.arange(count)), at_zero_s, at_zero_s)

    def addresses(self) -> list[int]:
        """Return where the compiled event loop writes the state of all devices."""
        arrays = (self.table.first_rows(), self.start_s, self.first_s, self.sent_s, self.at_server)
        return [array.ctypes.data for array in arrays]

    def arrived(self, until_s: float, *, before: bool = False) -> Integers:
        """Return the devices whose rounds reach the server up to `until_s`, or strictly `before`
        it, in order.

        Rounds that arrive at the same moment are ordered by device number: the sort is stable.
        """
        (arrived,) = (self.arrives_s < until_s if before else self.arrives_s <= until_s).nonzero()
        return (
            arrived[self.arrives_s[arrived].argsort(kind="stable")] if len(arrived) > 1 else arrived
        )

    def take_arrived(self, devices: Integers) -> list[WaitingRound]:
        """Return the rounds that have reached the server as schedulers see them; they count as
        waiting there.
        """
        rows = self.table.current(devices)
        cached = self.cached[devices]
        at_server = np.empty((len(devices), len(AT_SERVER)))
        at_server[:, 0] = arrived_s = self.arrives_s[devices]
        # Counted from the planned arrival: what a shared link or a trace delays a message comes off
        # its budget.
        at_server[:, 1] = self.sent_s[devices] + rows.up_s + rows.round_budget_s
        at_server[:, 2] = rows.context - cached + (rows.submitted if self._on_edge else 0)
        at_server[:, 3] = cached
        self.at_server[devices], self.arrives_s[devices] = at_server, np.inf
        response_deadline_s = (self.start_s[devices] + rows.response_budget_s).tolist()
        new = at_server[:, 2].astype(np.int64).tolist()
        expected = rows.expected_tokens.tolist()
        times = (arrived_s.tolist(), at_server[:, 1].tolist())
        return list(
            map(
                WaitingRound,
                devices.tolist(),
                new,
                cached.tolist(),
                *times,
                expected,
                response_deadline_s,
            )
        )

    def expect_next_rounds(self, devices: Integers) -> None:
        """Let `at_server` of devices that draft say what their next rounds are expected to be, for
        routers.
        """
        if self._keeps_kv:
            self.at_server[devices, 2] = self.typical_new[devices]
            self.at_server[devices, 3] = self.cached[devices]

    def evict(self, device: int) -> None:
        """Note that the server has lost the KV of a device's session."""
        self.cached[device] = 0
        _, _, new, cached = self.at_server[device]
        self.at_server[device, 2:] = new + cached, 0

    def add_drafts(
        self,
        requests: Sequence[WaitingRound],
        chunks: Mapping[int, int],
        now_s: float,
        most_tokens: float,
    ) -> list[WaitingRound]:
        """Add drafts that have reached the server meanwhile to the rounds of a batch that begins;
        return these.

        The batch holds `most_tokens` at most; rounds of which `chunks` are computed take no drafts.
        """
        if self._runs is None:
            return []
        grown = []
        room = most_tokens - self.at_server[[request.client for request in requests], 2:].sum()
        for request in requests:
            if request.client in chunks:
                continue
            tokens = self._runs.take_arrived(request.client, now_s, room)
            if tokens:
                room -= tokens
                request.new += tokens
                self.at_server[request.client, 2] += tokens
                grown.append(request)
        return grown

    def compute_chunk(self, request: WaitingRound, tokens: int) -> None:
        """Note that the server has computed `tokens` of a round, which waits there for the
        others.
        """
        request.new = request.new - tokens
        request.cached = request.cached + tokens
        request.scheduled = False
        self.cached[request.client] = request.cached
        self.at_server[request.client, 2:] = request.new, request.cached

    def drafts(self, devices: Sequence[int]) -> list[RoundDraft]:
        """Return what the devices draft in their current rounds."""
        rows = self.table.current(np.array(devices))
        columns = (rows.drafted, rows.submitted, rows.work, rows.reads)
        return [RoundDraft(*draft) for draft in np.stack(columns, axis=1).astype(np.int64).tolist()]

    def confidences(self, devices: Sequence[int]) -> list[list[float]]:
        """Return the draft model's confidences in the tokens of the current drafts."""
        confidences: list[list[float]] = self.table.confidences(np.array(devices)).tolist()
        return confidences

    def chains(self, devices: Sequence[int]) -> list[DraftedChain]:
        """Return what a trace holds of the devices' drafts in their current rounds."""
        begins = self.table.current(np.array(devices, dtype=np.int64)).begins
        kinds = self.table.fleet.kind
        chains = []
        for device, is_first in zip(devices, begins.tolist(), strict=True):
            source = self.table.fleet.kinds[kinds[device]].source
            assert isinstance(source, TracedDrafts)
            chains.append(source.chain(self.table.place(device), begins=bool(is_first)))
        return chains

    def is_first_round(self, device: int) -> bool:
        """Return True if the device's current response has no earlier round."""
        rows = self.table.current(np.array([device]))
        return bool(rows.context <= rows.prompt)

    def receive_answers(
        self,
        devices: Integers,
        ended_s: float | Floats,
        drafted: Drafted,
        outcomes: RoundOutcomes | None = None,
    ) -> AnsweredRounds:
        """Deliver the answers of verifications that ended at `ended_s`, and let the devices send
        their next rounds.

        `drafted` is the most tokens that the server drafted for each request, if it drafts. `outcomes` are the answers
        of a real server.
        """
        if self._runs is not None:
            outcomes = self._runs.outcomes(devices)
        rows = self.table.advance(devices, drafted, outcomes)
        answered_s = ended_s + rows.down_s
        if self._delays is not None:
            answered_s = answered_s + self._delays.downlink_excess_s(devices, rows, ended_s)
        first_s = np.minimum(self.first_s[devices], answered_s)
        answered = AnsweredRounds(
            rows, self.start_s[devices], first_s, self.sent_s[devices], answered_s
        )
        # The bonus token is not in the verifier's KV: it is computed in the next round. A server
        # that keeps no KV held it only while it computed the round in parts.
        kept = (rows.ends == 0) & self._keeps_kv
        self.cached[devices] = (rows.context + rows.committed - 1) * kept
        self.first_s[devices] = first_s
        free_s = self._free_s(devices, answered)
        if self._runs is not None:
            free_s = np.full(len(devices), ended_s)  # the server goes on at once
            self._runs.answer(devices, rows, free_s, answered_s)
        self._send(devices, self.table.current(devices), answered_s, free_s)
        return answered

    def unanswered_rounds(self, devices: Integers) -> dict[str, Floats]:
        """Return columns of the devices' current rounds that have no answer yet."""
        rows = self.table.current(devices)
        columns = dict(zip(RECORDED, rows.recorded.T, strict=True)) | {
            "sent_s": self.sent_s[devices]
        }
        return columns | dict(zip(AT_SERVER, self.at_server[devices].T, strict=True))

    def unfinished_responses(self, end_s: float) -> dict[str, Floats]:
        """Return columns of the responses requested up to `end_s` and not finished, queued requests
        included.
        """
        (begun,) = (self.start_s <= end_s).nonzero()
        rows = self.table.current(begun)
        queued = np.array(self.table.queued_requests(begun, end_s)).reshape(-1, 4).T
        clients = np.concatenate([begun, queued[0]]).astype(np.int64)
        never_s = np.full(queued.shape[1], np.inf)
        columns = {
            "client": clients,
            "slo": self.slo[clients],
            "start_s": np.concatenate([self.start_s[begun], queued[1]]),
            "first_s": np.concatenate([self.first_s[begun], never_s]),
            "end_s": np.full(len(clients), np.inf),
            "prompt": np.concatenate([rows.prompt, queued[2]]),
            "tokens": np.concatenate([rows.tokens, queued[3]]),
            "committed": np.concatenate([rows.context - rows.prompt, np.zeros(len(never_s))]),
        }
        order = np.argsort(clients, kind="stable")
        return {name: column[order] for name, column in columns.items()}

    def _send(self, devices: Integers, rows: RoundRows, answered_s: Floats, free_s: Floats) -> None:
        """Draft and send the next round of the response, or the first one of the next once it is
        requested.
        """
        begins = rows.begins > 0
        if begins.any():
            start_s = np.maximum(rows.earliest_s, answered_s + rows.gap_s)
            if self._longest < np.inf:
                too_long = begins & (start_s < np.inf) & (rows.prompt + rows.tokens > self._longest)
                for index in too_long.nonzero()[0][:1]:
                    self._scenario.check_lengths(int(rows.prompt[index]), int(rows.tokens[index]))
            self.start_s[devices[begins]], self.first_s[devices[begins]] = start_s[begins], np.inf
            free_s = np.where(begins, np.maximum(start_s, answered_s), free_s)
            if self._runs is not None:
                self._runs.begin(devices[begins], free_s[begins])
        self.sent_s[devices] = sent_s = free_s + rows.draft_s
        self.arrives_s[devices] = sent_s + rows.up_s
        if self._delays is not None:
            # Messages of other devices that are still on their way may be moved too, behind these
            # on a shared link.
            moved, arrives_s = self._delays.uplink_arrivals(devices, rows, sent_s)
            self.arrives_s[moved] = arrives_s

    def _free_s(self, devices: Integers, answered: AnsweredRounds) -> Floats:
        """Return when devices can draft again: with their answer, and after a proactive forward
        that is under way.
        """
        rows = answered.rows
        answered_s = answered.answered_s
        sent_s = answered.sent_s
        if not (self._on_edge and rows.proactive.any()):
            return answered_s
        free_s: Floats = answered_s.copy()
        fields = (rows.proactive, rows.work, rows.reads, rows.context, rows.committed)
        columns = [field.tolist() for field in fields]
        for index, (time, proactive, *row) in enumerate(
            zip(self.table.draft_times_of(devices), *columns, strict=False)
        ):
            work, reads, context, committed = map(int, row)
            if work != CHAIN:
                free_s[index] = time.free_s(work, reads, context, sent_s[index], answered_s[index])
            elif proactive:
                step_s = time.draft_s(1, 1, context + committed)
                begun = (
                    min(ceil((answered_s[index] - sent_s[index]) / step_s), proactive)
                    if step_s
                    else 0
                )
                free_s[index] = max(answered_s[index], sent_s[index] + begun * step_s)
        return free_s


class LinkDelays:
    """Corrects the transfer times in `RoundRows`, which count with the devices' own links at their
    means.
    """

    def __init__(self, network: Network, fleet: Fleet, *, on_edge: bool) -> None:
        self._trace = network.trace
        self._bytes_per_s = network.shared_up_bytes_per_s
        self._frame_s = network.frame_s
        self._fleet = fleet
        self._on_edge = on_edge
        count = len(fleet.kind)
        self._offset_s: Floats = np.zeros(count)
        """Position in the trace at which each device's link begins, so that not all links are slow
        at once.
        """
        if network.trace is not None:
            fractions: Floats = np.arange(count, dtype=np.float64) * GOLDEN % 1
            self._offset_s = fractions * network.trace.duration_s
        self._uplink = SharedUplink(count)

    def uplink_arrivals(
        self, devices: Integers, rows: RoundRows, sent_s: Floats
    ) -> tuple[Integers, Floats]:
        """Return all devices whose messages now arrive at another time than was thought, and those
        times.

        Besides the given devices these are the devices whose messages queue behind theirs on a
        shared link.
        """
        begins = rows.begins > 0
        drafted = rows.submitted * self._on_edge
        size = (np.where(begins, rows.prompt, 0) + drafted) * TOKEN_BYTES
        size = size + self._fleet.draft_bytes[devices] * drafted
        crosses = rows.crosses > 0
        arrives_s = sent_s + rows.up_s + crosses * self._excess_s(devices, size, sent_s)
        if self._bytes_per_s == inf and not self._frame_s:
            return devices, arrives_s
        occupies_s = size[crosses] / self._bytes_per_s + self._frame_s
        queued, through_s = self._uplink.send(devices[crosses], arrives_s[crosses], occupies_s)
        return np.concatenate([devices[~crosses], queued]), np.concatenate(
            [arrives_s[~crosses], through_s]
        )

    def downlink_excess_s(
        self, devices: Integers, rows: RoundRows, ended_s: float | Floats
    ) -> Floats:
        """Return how much later than `down_s` answers arrive; they leave one after the other in
        batch order.
        """
        crosses = rows.crosses > 0
        size = (rows.accepted + 1) * TOKEN_BYTES
        leave_s = np.cumsum(crosses, dtype=np.float64) * self._frame_s
        excess_s: Floats = crosses * (leave_s + self._excess_s(devices, size, ended_s + leave_s))
        return excess_s

    def _excess_s(self, devices: Integers, size: Floats, at_s: Floats) -> Floats:
        """Return the transfer time by the trace beyond the time at its mean round trip and
        bandwidth.
        """
        if (trace := self._trace) is None:
            return np.zeros(len(devices))
        return trace.excess_s(size, at_s + self._offset_s[devices])


class SharedUplink:
    """One link that messages cross one after the other, first come, first served.

    Every device has at most one message on its way, so that the queue is a few arrays [devices].
    """

    def __init__(self, devices: int) -> None:
        self._reached_s, self._occupies_s, self._through_s = np.zeros((3, devices))

    def send(
        self, devices: Integers, reached_s: Floats, occupies_s: Floats
    ) -> tuple[Integers, Floats]:
        """Queue messages that reach the link at times which may lie in the future.

        Returns the devices of these messages and of those that queue behind them, and when each is
        through.
        """
        if not len(devices):
            return devices, reached_s
        # Rounds are set up ahead, so a message may reach the link before others that were queued
        # earlier: all behind the first of the new messages are timed again.
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
