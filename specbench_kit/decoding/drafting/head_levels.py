"""Tree levels of a feature head, which goes on from what the target made of the tokens that it keeps."""

from collections.abc import Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.drafter import together
from specbench_kit.decoding.pipeline.flight import Flight
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.executors.head import ReadsStates
from specbench_kit.models.runner import Append, Runner


class HeadLevels:
    """Forwards a level of all requests at once, and as many one after the other as do not stand on the latest states.

    A request has none before the target has seen its prompt.
    """

    def __init__(self, runner: Runner, executor: ReadsStates, sampler: Sampler, clock: Clock) -> None:
        self.reads: Sequence[int] = executor.reads
        self._runner, self._executor, self._sampler, self._clock = runner, executor, sampler, clock
        self._branches: dict[str, _Branch] = {}
        self._forwards: list[list[Row]] = []

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """Distributions of those whose root is all that the target has yet to see."""
        branches = [(stream, self._branches.get(stream.session.request.id)) for stream in streams]
        ready = [(stream, branch) for stream, branch in branches if branch is not None and branch.ready(stream)]
        with self._clock.phase("draft"):
            self._forwards = []
            waiting = [(stream, branch, branch.pending(stream)) for stream, branch in ready]
            while waiting := [(stream, branch, groups) for stream, branch, groups in waiting if groups]:
                appends = [branch.append(stream, groups[0]) for stream, branch, groups in waiting]
                self._forwards.append([(len(row.tokens), self._held(row.slot)) for row in appends])
                found = self._runner.forward(appends)
                for row, (stream, branch, groups) in enumerate(waiting):
                    branch.take(stream, groups.pop(0), found[row])
            distributions = together(self._sampler, [branch.logits for _, branch in ready])
        return dict(zip((stream.slot for stream, _ in ready), distributions, strict=True))

    def forwards(self) -> Sequence[Sequence[Row]]:
        """New tokens and those in KV, of every forward of the last step."""
        return self._forwards

    def tell(self, session: Session, states: Tensor) -> None:
        """What the target made of further tokens."""
        name = session.request.id
        if name not in self._branches:
            self._branches[name] = _Branch(self._runner)
            self._executor.forget(self._branches[name].slot)
        branch = self._branches[name]
        self._executor.add_states(branch.slot, states)
        branch.told += len(states)

    def release(self, session: Session) -> None:
        """Forget a request."""
        branch = self._branches.pop(session.request.id, None)
        if branch is not None:
            self._runner.release(branch.slot)

    def _held(self, slot: int) -> int:
        return self._runner.length(slot) + self._runner.provisional(slot)


class _Branch:
    """One request's slot: the tokens that are kept, from the second on, and below them what is in flight."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self.slot = runner, runner.acquire()
        self.told = 0
        """Tokens whose states are known."""
        self.logits = torch.empty(0)
        """[nodes, vocabulary] of the last level."""
        self._nodes: dict[int, int] = {}
        """Provisional nodes by the ids of what was forwarded; the root's is -1."""

    def ready(self, stream: RequestStream) -> bool:
        """Whether the root is in flight, and all before it was seen by the target."""
        return bool(stream.flight.tokens) and 0 < self.told == len(stream.session.tokens) - 1

    def pending(self, stream: RequestStream) -> list[Sequence[int]]:
        """Places to be forwarded, level by level."""
        if self._runner.length(self.slot) < self.told:  # all in flight stands on less than is known now
            self._runner.commit(self.slot, ())
            self._nodes = {}
        ids = stream.flight.ids
        levels = ([place for place in level if ids[place] not in self._nodes] for level in _levels(stream.flight))
        return [level for level in levels if level]

    def append(self, stream: RequestStream, places: Sequence[int]) -> Append:
        """What is to be computed: the root with all kept tokens that are missing, or a level's nodes."""
        flight = stream.flight
        if places[0] == 0:
            return Append(self.slot, stream.session.tokens[1 + self._runner.length(self.slot) :])
        parents = [self._nodes[flight.ids[flight.parents[place]]] for place in places]
        keep = len(places) if places[-1] in flight.bottom else 1
        return Append(self.slot, [flight.tokens[place] for place in places], parents, keep)

    def take(self, stream: RequestStream, places: Sequence[int], logits: Tensor) -> None:
        """They were computed."""
        self.logits, held = logits, self._runner.provisional(self.slot)
        if places[0] == 0:
            self._runner.commit(self.slot, range(held))
            self._nodes[stream.flight.ids[0]] = -1
        else:
            ids = (stream.flight.ids[place] for place in places)
            self._nodes |= dict(zip(ids, count(held - len(places)), strict=False))


def _levels(flight: Flight) -> list[list[int]]:
    """The last level and all above it that it hangs from, from the root down."""
    levels = [list(flight.bottom)]
    while levels[-1][0] > 0:
        levels.append(sorted({flight.parents[place] for place in levels[-1]}))
    return levels[::-1]
