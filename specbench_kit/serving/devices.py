"""All devices as arrays: when they ask, send, and have their answers."""

import numpy as np

from specbench_kit.serving.chances import Floats, Integers
from specbench_kit.serving.result import Column
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import Waiting
from specbench_kit.serving.scripts import Scripts


class Devices:
    """What every device is at; all arrays are [devices], and most methods are about some of them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        count = scenario.devices
        self._scenario, self._scripts = scenario, Scripts(scenario, seed)
        self._on_edge, self._keeps = scenario.system.drafting == "edge", scenario.system.prefix_cache
        self._limit = scenario.longest_response
        self.slo = self._scripts.slo
        self.cached = np.zeros(count, dtype=np.int64)
        """Tokens that the server holds."""
        self.arrives_s = np.full(count, np.inf)
        """When its round reaches the server; infinity where none is on its way."""
        self.start_s, self.first_s = np.zeros(count), np.full(count, np.inf)
        self.sent_s, self.answered_s = np.zeros(count), np.zeros(count)
        everyone = np.arange(count)
        self._send(everyone, self.answered_s, self._scripts.place(everyone))

    def arrived(self, until_s: float, *, before: bool = False) -> Integers:
        """Those whose rounds have reached the server by a moment, or `before` it, in their order; they wait there."""
        here = np.flatnonzero(self.arrives_s < until_s if before else self.arrives_s <= until_s)
        return here[np.argsort(self.arrives_s[here], kind="stable")] if len(here) > 1 else here

    def waiting(self, devices: Integers) -> list[Waiting]:
        """What the server sees of the rounds that arrive."""
        columns, at = self._scripts.columns, self._scripts.place(devices)
        arrived_s, cached = self.arrives_s[devices], self.cached[devices]
        new = columns["context"][at] - cached
        if self._on_edge:
            new += columns["submitted"][at]
        deadline_s = arrived_s + columns["slack_s"][at]
        promised_s = self.start_s[devices] + columns["promise_s"][at]
        self.arrives_s[devices] = np.inf
        seen = (devices, new, cached, arrived_s, deadline_s, columns["expected"][at], promised_s)
        return list(map(Waiting, *(column.tolist() for column in seen)))

    def has_begun(self, device: int) -> bool:
        """Whether the server has read its prompt before."""
        columns, at = self._scripts.columns, self._scripts.place(np.array([device]))
        return bool(columns["context"][at] > columns["prompt"][at])

    def receive(self, devices: Integers, ended_s: float, drafted: int | None) -> dict[str, Column]:
        """Take the answers, where the server drafted at most so many tokens, and go on; returns what came of them."""
        columns, at = self._scripts.columns, self._scripts.place(devices)
        self._scripts.go_on(devices, drafted)
        answered_s = self.answered_s[devices] = ended_s + columns["down_s"][at]
        self.first_s[devices] = np.minimum(self.first_s[devices], answered_s)
        found = self._outcome(at)
        context = found["context"] + found["committed"]
        self.cached[devices] = 0 if not self._keeps else np.where(found["ends"], 0, context - 1)
        found |= {"client": devices, "slo": self.slo[devices], "answered_s": answered_s}
        found |= {name: getattr(self, name)[devices] for name in ("sent_s", "start_s", "first_s")}
        self._send(devices, self._free_s(devices, found), self._scripts.place(devices))
        return found

    def unfinished(self, devices: Integers) -> dict[str, Column]:
        """The rounds of devices whose answers are not there."""
        found = self._outcome(self._scripts.place(devices))
        return found | {"sent_s": self.sent_s[devices], "slo": self.slo[devices], "client": devices}

    def going_on(self, end_s: float) -> dict[str, Column]:
        """Responses that were asked for by the end and not answered in whole, those behind them included."""
        begun = np.flatnonzero(self.start_s <= end_s)
        columns, at = self._scripts.columns, self._scripts.place(begun)
        behind = np.array(self._scripts.asked_in_vain(begun, end_s)).reshape(-1, 4).T
        clients = np.concatenate([begun, behind[0]])
        order = np.argsort(clients, kind="stable")
        committed = columns["context"][at] - columns["prompt"][at]
        nothing = np.zeros(behind.shape[1])
        found = {
            "client": clients,
            "slo": self.slo[clients.astype(np.int64)],
            "start_s": np.concatenate([self.start_s[begun], behind[1]]),
            "first_s": np.concatenate([self.first_s[begun], nothing + np.inf]),
            "end_s": np.full(len(clients), np.inf),
            "prompt": np.concatenate([columns["prompt"][at], behind[2]]),
            "tokens": np.concatenate([columns["tokens"][at], behind[3]]),
            "committed": np.concatenate([committed, nothing]),
        }
        return {name: column[order] for name, column in found.items()}

    def _outcome(self, at: Integers) -> dict[str, Column]:
        found = {name: self._scripts.columns[name][at] for name in _OUTCOME}
        return found | {"drafted": found["steps"]}

    def _send(self, devices: Integers, free_s: Floats, at: Integers) -> None:
        """Draft and send the next round of this response, or of the next one once that is asked for."""
        columns = self._scripts.columns
        begins, answered_s = columns["begins"][at], self.answered_s[devices]
        if begins.any():
            start_s = np.maximum(columns["at_s"][at], answered_s + columns["gap_s"][at])
            self._check_lengths(at[begins & (start_s < np.inf)])
            self.start_s[devices] = np.where(begins, start_s, self.start_s[devices])
            self.first_s[devices[begins]] = np.inf
            free_s = np.where(begins, np.maximum(start_s, answered_s), free_s)
        self.sent_s[devices] = sent_s = free_s + columns["draft_s"][at]
        self.arrives_s[devices] = sent_s + columns["up_s"][at]

    def _free_s(self, devices: Integers, found: dict[str, Column]) -> Floats:
        """When devices have their answers and have finished the forward that they began in the meantime."""
        answered_s, sent_s, proactive = found["answered_s"], found["sent_s"], found["proactive"]
        if not (self._on_edge and proactive.any()):
            return answered_s
        contexts = (found["context"] + found["committed"]).tolist()
        step_s = np.array([self._scripts.time.draft_s(1, 1, context) for context in contexts])
        begun = np.minimum(np.ceil((answered_s - sent_s) / step_s), proactive)
        return np.maximum(answered_s, sent_s + begun * step_s)

    def _check_lengths(self, at: Integers) -> None:
        """Refuse responses that the server cannot hold."""
        prompt, tokens = self._scripts.columns["prompt"][at], self._scripts.columns["tokens"][at]
        for place in np.flatnonzero(prompt + tokens > self._limit)[:1]:
            self._scenario.check_lengths(int(prompt[place]), int(tokens[place]))


_OUTCOME = (
    "response", "prompt", "tokens", "context", "steps", "submitted", "accepted", "proactive", "committed", "ends",
    "draft_s",
)  # fmt: skip
