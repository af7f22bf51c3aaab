"""All devices as arrays: when they ask, send, and have their answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specbench_kit.serving.counter_rng import Floats, Integers
from specbench_kit.serving.execution import Drafted
from specbench_kit.serving.link_delays import LinkDelays
from specbench_kit.serving.result import Column
from specbench_kit.serving.round_rows import RECORDED, RoundRows
from specbench_kit.serving.round_table import Mask, RoundTable
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound

SEEN = ("arrived_s", "deadline_s", "new", "cached")
"""What the server knows of a round that has reached it."""


class AnsweredRounds(NamedTuple):
    """Rounds that were answered, with their times; those of the response are its start and its first tokens'."""

    planned: RoundRows
    start_s: Floats
    first_s: Floats
    sent_s: Floats
    answered_s: Floats


class Devices:
    """What every device is at; arrays are [devices], and most methods are about some of them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        count = scenario.devices
        self._scenario, self._scripts = scenario, RoundTable(scenario, seed)
        self._on_edge, self._keeps = scenario.system.drafting == "edge", scenario.system.prefix_cache
        self._longest = scenario.longest_response
        self._crossings: LinkDelays | None = None
        if not scenario.network.is_plain:
            self._crossings = LinkDelays(scenario.network, self._scripts.fleet, on_edge=self._on_edge)
        self.slo = self._scripts.slo
        self.cached = np.zeros(count, dtype=np.int64)
        """Tokens that the server holds."""
        self.seen = np.zeros((count, len(SEEN)))
        """Of every round that waits or is verified."""
        self.arrives_s = np.full(count, np.inf)
        """When its round reaches the server; infinity where none is on its way."""
        self.start_s, self.first_s, self.sent_s = np.zeros(count), np.full(count, np.inf), np.zeros(count)
        free_s = np.zeros(count)
        self._send(np.arange(count), self._scripts.present(np.arange(count)), free_s, free_s)

    def arrived(self, until_s: float, *, before: bool = False) -> Integers:
        """Those whose rounds have reached the server by a moment, or `before` it, in their order."""
        (here,) = (self.arrives_s < until_s if before else self.arrives_s <= until_s).nonzero()
        return here[self.arrives_s[here].argsort(kind="stable")] if len(here) > 1 else here

    def waiting(self, devices: Integers) -> list[WaitingRound]:
        """The rounds that have reached the server, as it sees them; they wait there."""
        planned, cached = self._scripts.present(devices), self.cached[devices]
        seen = np.empty((len(devices), len(SEEN)))
        seen[:, 0] = arrived_s = self.arrives_s[devices]
        seen[:, 1] = self.sent_s[devices] + planned["up_s"] + planned["slack_s"]
        seen[:, 2] = planned["context"] - cached + (planned["submitted"] if self._on_edge else 0)
        seen[:, 3] = cached
        self.seen[devices], self.arrives_s[devices] = seen, np.inf
        promised_s = (self.start_s[devices] + planned["promise_s"]).tolist()
        new, known = seen[:, 2].astype(np.int64).tolist(), planned["expected"].tolist()
        times = (arrived_s.tolist(), seen[:, 1].tolist())
        return list(map(WaitingRound, devices.tolist(), new, cached.tolist(), *times, known, promised_s))

    def evict(self, device: int) -> None:
        """The server has lost its tokens."""
        self.cached[device] = 0
        _, _, new, cached = self.seen[device]
        self.seen[device, 2:] = new + cached, 0

    def compute(self, request: WaitingRound, tokens: int) -> None:
        """The server has computed so many of a round's tokens, which waits there for the rest."""
        request.new, request.cached, request.taken = request.new - tokens, request.cached + tokens, False
        self.cached[request.client] = request.cached
        self.seen[request.client, 2:] = request.new, request.cached

    def drafts(self, devices: Sequence[int]) -> list[tuple[int, int]]:
        """Forwards of the draft model and tokens sent in the present rounds."""
        planned = self._scripts.present(np.array(devices))
        pairs = np.stack([planned["drafted"], planned["submitted"]], axis=1).astype(np.int64).tolist()
        return [(steps, submitted) for steps, submitted in pairs]

    def sureties(self, devices: Sequence[int]) -> list[list[float]]:
        """Chances of the tokens of their present drafts, one after the other."""
        chances: list[list[float]] = self._scripts.sureties(np.array(devices)).tolist()
        return chances

    def has_begun(self, device: int) -> bool:
        """Whether its present response has an earlier round."""
        planned = self._scripts.present(np.array([device]))
        return bool(planned["context"] > planned["prompt"])

    def receive(self, devices: Integers, ended_s: float | Floats, drafted: Drafted) -> AnsweredRounds:
        """Take the answers, where the server drafted at most so many tokens, and go on; returns what came of them."""
        planned = self._scripts.answer(devices, drafted)
        answered_s = ended_s + planned["down_s"]
        if self._crossings is not None:
            answered_s = answered_s + self._crossings.late_down_s(devices, planned, ended_s)
        first_s = np.minimum(self.first_s[devices], answered_s)
        found = AnsweredRounds(planned, self.start_s[devices], first_s, self.sent_s[devices], answered_s)
        if self._keeps:
            held = (planned["context"] + planned["committed"] - 1) * (planned["ends"] == 0)
            self.cached[devices] = held
        self.first_s[devices] = first_s
        self._send(devices, self._scripts.present(devices), answered_s, self._free_s(devices, found))
        return found

    def unfinished(self, devices: Integers) -> dict[str, Column]:
        """What was sent in the rounds of devices that have no answer."""
        planned = self._scripts.present(devices)
        found = {name: planned[name] for name in RECORDED} | {"sent_s": self.sent_s[devices]}
        return found | dict(zip(SEEN, self.seen[devices].T, strict=True))

    def going_on(self, end_s: float) -> dict[str, Column]:
        """Responses that were asked for by the end and not answered in whole, those behind them included."""
        (begun,) = (self.start_s <= end_s).nonzero()
        planned = self._scripts.present(begun)
        behind = np.array(self._scripts.asked_in_vain(begun, end_s)).reshape(-1, 4).T
        clients = np.concatenate([begun, behind[0]]).astype(np.int64)
        never = np.full(behind.shape[1], np.inf)
        found = {
            "client": clients,
            "slo": self.slo[clients],
            "start_s": np.concatenate([self.start_s[begun], behind[1]]),
            "first_s": np.concatenate([self.first_s[begun], never]),
            "end_s": np.full(len(clients), np.inf),
            "prompt": np.concatenate([planned["prompt"], behind[2]]),
            "tokens": np.concatenate([planned["tokens"], behind[3]]),
            "committed": np.concatenate([planned["context"] - planned["prompt"], np.zeros(len(never))]),
        }
        order = np.argsort(clients, kind="stable")
        return {name: column[order] for name, column in found.items()}

    def _send(self, devices: Integers, planned: RoundRows, answered_s: Floats, free_s: Floats) -> None:
        """Draft and send the next round of this response, or of the next one once that is asked for."""
        begins = planned["begins"] > 0
        if begins.any():
            start_s = np.maximum(planned["at_s"], answered_s + planned["gap_s"])
            self._check_lengths(planned, begins & (start_s < np.inf))
            self.start_s[devices[begins]], self.first_s[devices[begins]] = start_s[begins], np.inf
            free_s = np.where(begins, np.maximum(start_s, answered_s), free_s)
        self.sent_s[devices] = sent_s = free_s + planned["draft_s"]
        self.arrives_s[devices] = sent_s + planned["up_s"]
        if self._crossings is not None:
            moved, arrives_s = self._crossings.up(devices, planned, sent_s)
            self.arrives_s[moved] = arrives_s

    def _free_s(self, devices: Integers, found: AnsweredRounds) -> Floats:
        """When devices have their answers and have finished the forward that they began in the meantime."""
        planned, answered_s, sent_s = found.planned, found.answered_s, found.sent_s
        if not (self._on_edge and planned["proactive"].any()):
            return answered_s
        contexts = (planned["context"] + planned["committed"]).astype(np.int64).tolist()
        times = zip(self._scripts.times_of(devices), contexts, strict=False)
        step_s = np.array([time.draft_s(1, 1, context) for time, context in times])
        begun = np.minimum(np.ceil((answered_s - sent_s) / step_s), planned["proactive"])
        free_s: Floats = np.maximum(answered_s, sent_s + begun * step_s)
        return free_s

    def _check_lengths(self, planned: RoundRows, of: Mask) -> None:
        """Refuse responses that the server cannot hold."""
        if self._longest == np.inf:
            return
        for place in (of & (planned["prompt"] + planned["tokens"] > self._longest)).nonzero()[0][:1]:
            self._scenario.check_lengths(int(planned["prompt"][place]), int(planned["tokens"][place]))
