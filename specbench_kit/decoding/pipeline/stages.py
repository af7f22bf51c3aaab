"""The stages of a pipeline as the loop sees them, and one runner that stands for all of them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.models.runner import Append, Runner


class Feed(NamedTuple):
    """One request's part of a step: what is pruned in flight, and the level that the first stage
    then takes in.
    """

    slot: int
    level: Level
    prune: Prune | None = None


class ExitingTokens(NamedTuple):
    """The tokens of a request that are in the last stage: a number of prompt tokens, and perhaps
    the root.
    """

    slot: int
    prefix: int
    root: bool


class StageOutput(NamedTuple):
    """Logits [roots, vocabulary] after the roots, and each request's states [tokens, layers x
    width].
    """

    logits: Tensor
    states: Sequence[Tensor] = ()


class Stages(Protocol):
    """A target that is cut into stages, as the loop sees it; every request has a slot."""

    def acquire(self) -> int:
        """Return an empty slot."""

    def release(self, slot: int) -> None:
        """Free a slot, with all that is in flight."""

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Prune; then let each stage take what the one before it has, of all slots as one batch,
        and compute.

        `layers` are those whose hidden states are needed, the same with every step.
        """

    def answer(self, exiting: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """Return the last stage's output for requests whose roots, or prompt tokens if states are
        needed, are there.

        The requests are in the order in which they were fed.
        """


class TreeSlot:
    """One request's slot of a runner that has computed the first nodes of a flight, in the flight's
    order.

    Pruned nodes stay in KV, where nothing attends to them: moving KV with every token would cost
    more. The slot is compacted once they are more than the nodes in flight, or when it is full.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._slot = runner.acquire()
        self._nodes: list[int] = []
        """The runner's provisional node for each node of the flight."""
        self._joined: list[int] = []
        """Provisional nodes that have joined the committed prefix since the slot was last
        compacted.
        """

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def index(self) -> int:
        """The runner's slot."""
        return self._slot

    def append(self, level: Level, *, whole: bool = False) -> Append:
        """Return what the runner computes for a level; it returns rows for the nodes, or for the
        `whole` level.

        What is appended must see the committed prefix and its own ancestors, some of which joined
        the prefix, and some of which are in flight, since earlier appends. So the prompt's part
        continues the newest joined node, and a node whose parent is the prefix hangs from that node
        or from the end of the prompt's part.
        """
        provisional = self._runner.provisional(self._slot)
        full = (
            self._runner.length(self._slot) + provisional + level.token_count
            > self._runner.capacity
        )
        if full or provisional > 2 * len(self._nodes):
            self.compact()
        base = self._runner.provisional(self._slot)
        first = base + len(level.prefix)
        top = self._joined[-1] if self._joined else -1
        nodes = [*self._nodes, *range(first, first + len(level.tokens))]
        end = first - 1 if level.prefix else top
        parents = [top, *range(base, first - 1)] if level.prefix else []
        parents += [nodes[parent] if parent >= 0 else end for parent in level.parents]
        self._nodes = nodes
        self._joined += range(base, first)
        keep = (
            level.token_count if whole else max(1, len(level.tokens))
        )  # a runner answers at least one token
        return Append(self._slot, [*level.prefix, *level.tokens], parents, keep)

    def prune(self, prune: Prune) -> list[int]:
        """Drop nodes; return, of the nodes that stay, those that this slot has computed."""
        self._joined += [self._nodes[node] for node in prune.path]
        computed = [node for node in prune.keep if node < len(self._nodes)]
        self._nodes = [self._nodes[node] for node in computed]
        return computed

    def compact(self) -> None:
        """Move the committed prefix and the nodes in flight together, over what was pruned."""
        self._runner.commit(self._slot, self._joined, self._nodes)
        self._nodes = list(range(len(self._nodes)))
        self._joined = []

    def release(self) -> None:
        """Free the slot."""
        self._runner.release(self._slot)


class TreeModel(TreeSlot):
    """A slot that remembers what its runner computed for every node in flight."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._rows: list[tuple[Tensor, int, Tensor | None]] = []
        """By node: the logits of its forward, its row there, and the forward's hidden states."""
        self._prefixes: deque[Tensor] = deque()
        """Hidden states of the prompt's parts that are on their way."""

    def prune(self, prune: Prune) -> list[int]:
        computed = super().prune(prune)
        self._rows = [self._rows[node] for node in computed]
        return computed

    def take(self, level: Level, logits: Tensor, states: Tensor | None = None) -> None:
        """Remember what the runner computed for a level: for its nodes, or with `states` for all of
        its tokens.
        """
        first = 0
        if states is not None:
            first = len(level.prefix)
            if first:
                self._prefixes.append(states[:first])
        self._rows += [(logits, row, states) for row in range(first, first + len(level.tokens))]

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """Return logits [nodes, vocabulary] after nodes that were computed together."""
        logits = self._rows[nodes[0]][0]
        rows = [self._rows[node][1] for node in nodes]
        return logits if len(rows) == len(logits) else logits[rows]

    def states(self, exiting: ExitingTokens) -> Tensor:
        """Return the hidden states [tokens, layers x width] of what is in the last stage."""
        parts = [self._prefixes.popleft()] if exiting.prefix else []
        if exiting.root:
            _, row, states = self._rows[0]
            assert states is not None
            parts.append(states[row : row + 1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class VirtualStages:
    """All stages in one runner: a level passes through the whole model as it is fed, and its
    results wait.

    They are given out when the level would leave the last stage of a real pipeline.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._trees: dict[int, TreeModel] = {}

    def acquire(self) -> int:
        """Return an empty slot."""
        tree = TreeModel(self._runner)
        self._trees[tree.index] = tree
        return tree.index

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._trees.pop(slot).release()

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Prune, and compute all levels in one forward."""
        fed = list[tuple[TreeModel, Level]]()
        rows = list[Append]()
        for slot, level, prune in feeds:
            tree = self._trees[slot]
            if prune is not None:
                tree.prune(prune)
            if level.tokens or level.prefix:
                fed.append((tree, level))
                rows.append(tree.append(level, whole=bool(layers)))
        if rows:
            forward = self._runner.forward(rows, layers)
            for row, (tree, level) in enumerate(fed):
                tree.take(level, forward[row], forward.states(row, layers) if layers else None)

    def answer(self, exiting: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """Return what was computed for the roots and the prompts when they entered."""
        roots = [self.logits(tokens.slot, [0]) for tokens in exiting if tokens.root]
        logits = roots[0] if len(roots) == 1 else torch.cat(roots or [torch.empty(0)])
        return StageOutput(
            logits,
            [self._trees[tokens.slot].states(tokens) for tokens in exiting] if layers else (),
        )

    def logits(self, slot: int, nodes: Sequence[int]) -> Tensor:
        """Return logits [nodes, vocabulary] after nodes that were fed together."""
        return self._trees[slot].logits(nodes)
