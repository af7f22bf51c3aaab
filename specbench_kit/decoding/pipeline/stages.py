"""The stages of a pipeline, as the loop sees them, and one runner that stands for all of them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.models.runner import Append, Runner


class Feed(NamedTuple):
    """One request's part of a step: what is pruned in flight, and the level that the first stage then takes in."""

    slot: int
    level: Level
    prune: Prune | None = None


class ExitingTokens(NamedTuple):
    """What of a request is in the last stage: so many tokens of its prompt, and its root if that is there."""

    slot: int
    prefix: int
    root: bool


class StageOutput(NamedTuple):
    """Logits [roots, vocabulary] after the roots, and [tokens, layers x width] of every request's prompt and root."""

    logits: Tensor
    states: Sequence[Tensor] = ()


class Stages(Protocol):
    """What the loop asks of a target that is cut into stages; a slot is one request's."""

    def acquire(self) -> int:
        """An empty slot."""

    def release(self, slot: int) -> None:
        """Give a slot back, with all that is in flight."""

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Prune; then each stage takes what the one before it holds, of all slots as one batch, and works.

        `layers` are those whose hidden states are wanted, the same with every step.
        """

    def answer(self, dues: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """Of all requests whose roots are in the last stage, or part of whose prompts is there and states are wanted.

        In the order in which they were fed.
        """


class TreeSlot:
    """One request's slot of a runner, which has computed the first nodes of a flight, in the flight's order.

    What was pruned stays in KV, where nothing attends to it, until there is more of it than of what is in flight.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner, self._slot = runner, runner.acquire()
        self._nodes: list[int] = []
        """The runner's provisional node at each place of the flight."""
        self._joined: list[int] = []
        """Provisional nodes that have joined the committed prefix since the slot was last compacted."""

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def index(self) -> int:
        """The runner's slot."""
        return self._slot

    def append(self, level: Level, *, whole: bool = False) -> Append:
        """What the runner has to compute for a level; it answers the nodes, or the `whole` level's tokens."""
        self._make_room(level.weight)
        base = self._runner.provisional(self._slot)
        first = base + len(level.prefix)
        top = self._joined[-1] if self._joined else -1
        places = [*self._nodes, *range(first, first + len(level.tokens))]
        end = first - 1 if level.prefix else top
        parents = [top, *range(base, first - 1)] if level.prefix else []
        parents += [places[parent] if parent >= 0 else end for parent in level.parents]
        self._nodes = places
        self._joined += range(base, first)
        keep = level.weight if whole else max(1, len(level.tokens))  # a runner answers at least one token
        return Append(self._slot, [*level.prefix, *level.tokens], parents, keep)

    def prune(self, prune: Prune) -> list[int]:
        """Let go of nodes; returns the places of those that stay, as far as they were computed."""
        self._joined += [self._nodes[place] for place in prune.path]
        kept = [place for place in prune.keep if place < len(self._nodes)]
        self._nodes = [self._nodes[place] for place in kept]
        return kept

    def compact(self) -> None:
        """Bring the committed prefix and the nodes in flight together, over what was pruned."""
        self._runner.commit(self._slot, self._joined, self._nodes)
        self._nodes, self._joined = list(range(len(self._nodes))), []

    def release(self) -> None:
        """Give the slot back."""
        self._runner.release(self._slot)

    def _make_room(self, tokens: int) -> None:
        held = self._runner.provisional(self._slot)
        full = self._runner.length(self._slot) + held + tokens > self._runner.capacity
        if full or held > 2 * len(self._nodes):
            self.compact()


class TreeModel(TreeSlot):
    """A slot that remembers what its runner gave for every node in flight."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._answers: list[tuple[Tensor, int, Tensor | None]] = []
        self._prefixes: deque[Tensor] = deque()
        """Hidden states of the prompt's parts that are on their way."""

    def prune(self, prune: Prune) -> list[int]:
        kept = super().prune(prune)
        self._answers = [self._answers[place] for place in kept]
        return kept

    def take(self, level: Level, found: Tensor, states: Tensor | None = None) -> None:
        """Remember what the runner gave for a level; with `states` [tokens, layers x width], for all of its tokens."""
        first = 0
        if states is not None:
            first = len(level.prefix)
            if first:
                self._prefixes.append(states[:first])
        self._answers += [(found, row, states) for row in range(first, first + len(level.tokens))]

    def answers(self, places: Sequence[int]) -> Tensor:
        """[nodes, vocabulary] of nodes that were computed together."""
        found, rows = self._answers[places[0]][0], [self._answers[place][1] for place in places]
        return found if len(rows) == len(found) else found[rows]

    def states(self, due: ExitingTokens) -> Tensor:
        """[tokens, layers x width] of what is in the last stage."""
        parts = [self._prefixes.popleft()] if due.prefix else []
        if due.root:
            _, row, states = self._answers[0]
            assert states is not None
            parts.append(states[row : row + 1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class VirtualStages:
    """All stages in one runner: a level passes through the whole model as it is fed, and its answers wait."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._trees: dict[int, TreeModel] = {}

    def acquire(self) -> int:
        """An empty slot."""
        tree = TreeModel(self._runner)
        self._trees[tree.index] = tree
        return tree.index

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._trees.pop(slot).release()

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Prune, and compute all levels in one forward."""
        fed, rows = list[tuple[TreeModel, Level]](), list[Append]()
        for slot, level, prune in feeds:
            tree = self._trees[slot]
            if prune is not None:
                tree.prune(prune)
            if level.tokens or level.prefix:
                fed.append((tree, level))
                rows.append(tree.append(level, whole=bool(layers)))
        if rows:
            found = self._runner.forward(rows, layers)
            for row, (tree, level) in enumerate(fed):
                tree.take(level, found[row], found.states(row, layers) if layers else None)

    def answer(self, dues: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """What the nodes and the prompts were given when they entered."""
        roots = [self.answers(due.slot, [0]) for due in dues if due.root]
        logits = roots[0] if len(roots) == 1 else torch.cat(roots or [torch.empty(0)])
        return StageOutput(logits, [self._trees[due.slot].states(due) for due in dues] if layers else ())

    def answers(self, slot: int, places: Sequence[int]) -> Tensor:
        """[nodes, vocabulary] of nodes that were fed together."""
        return self._trees[slot].answers(places)
