"""Trees that grow on the card by a rule: all levels of a round are one graph, which the host reads
once.

The host grows its trees level by level nevertheless, and asks for one level after the other. Where
it asks for the nodes that the card has chosen, their results are there already.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import log, prod
from typing import NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from specbench_kit.models.executors.base import Row
from specbench_kit.models.executors.graph_inputs import GraphInputs
from specbench_kit.models.executors.graph_work import Launcher, Table, Work
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.kernels.description import (
    DETAILS,
    FIELDS,
    OWN,
    STATISTICS,
    TOP,
    Describe,
    Details,
)
from specbench_kit.models.executors.tree_rule import BeamRule, ShapeRule, TreeRule

MOST_NODES = 256
"""The most nodes that all levels of a tree may forward in one graph."""
ABOVE = FIELDS + DETAILS
"""The field with the number of the node above, counted in the order of forwards from the root on,
which is node 0; -1 for padding.
"""
TREE_FIELDS = ABOVE + 1
COLUMN_ABOVE = FIELDS
"""The field of a verified node with the column of the node above, of which the root has column 0;
-1 for the root and for padding.
"""
VERIFIED_FIELDS = COLUMN_ABOVE + 1


class TreeBoard:
    """The results of the last trees that grew by a rule on the card, there and in pinned memory.

    `trees` [slots, nodes, TREE_FIELDS] are what the forwarded nodes say, and `selected` [slots,
    budget, 3] the nodes that are to be verified: token, column of the node above and whether there
    is one. A target that verifies them ahead leaves its results in `verified` [slots, 1 + budget,
    VERIFIED_FIELDS], by its own slots. The host reads both at once.
    """

    def __init__(self, slots: int, rule: TreeRule, device: torch.device) -> None:
        sizes = (
            (slots, sum(rule.widths), TREE_FIELDS),
            (slots, 1 + rule.budget, VERIFIED_FIELDS),
        )
        self._ends = list(accumulate(prod(size) for size in sizes))
        self._card = torch.zeros(self._ends[-1], dtype=torch.float64, device=device)
        self._host = torch.zeros(self._ends[-1], dtype=torch.float64, pin_memory=True)
        self.trees, self.verified = (
            part.view(size)
            for part, size in zip(self._card.tensor_split(self._ends[:1]), sizes, strict=True)
        )
        self.selected = torch.zeros((slots, rule.budget, 3), dtype=torch.int64, device=device)
        self._rule = rule
        # A graph cannot bring these to the card: they have to be there before it is captured.
        self._shape = ShapeOnCard(rule, device) if isinstance(rule, ShapeRule) else None

    def new_trees(self, slots: int) -> "CardTrees":
        """Return empty trees of some slots."""
        if self._shape is not None:
            return ShapedTrees(self._shape, slots)
        assert isinstance(self._rule, BeamRule)
        return BeamTrees(self._rule, slots, self._card.device)

    def read(self, *, with_verified: bool) -> tuple[Table, Table | None]:
        """Wait for the results of trees and, if they are there, of their verification."""
        end = self._ends[with_verified]
        self._host[:end].copy_(self._card[:end])
        numbers = self._host[:end].numpy().copy()
        trees = numbers[: self._ends[0]].reshape(self.trees.shape)
        verified = numbers[self._ends[0] :].reshape(self.verified.shape) if with_verified else None
        return trees, verified


class Level(NamedTuple):
    """The nodes [rows, width] that one level forwards; `above` are the numbers of the nodes above
    them.

    Where there are fewer nodes the last ones are padding, and `valid` is false. The scores of
    padding are minus infinity. `ids` tell all nodes of a tree apart, of which the root has 0.
    """

    ids: Tensor
    tokens: Tensor
    scores: Tensor
    above: Tensor
    valid: Tensor


class CardTrees(Protocol):
    """Trees that grow by a rule, one for each of some slots."""

    def add_children(
        self, level: Level, numbers: Tensor, candidates: Tensor, tokens: Tensor
    ) -> None:
        """Add the children of the nodes of a level, which were forwarded under these numbers.

        `candidates` are the logarithms of the probabilities of their most probable next `tokens`,
        both [slots, width, branch].
        """

    def next_level(self, width: int) -> Level:
        """Return the nodes that are forwarded next, and note that they are."""

    def selected(self) -> Tensor:
        """Return the selected nodes [slots, budget, 3] as `TreeBoard` has them, padding behind
        them.
        """


class ShapeOnCard:
    """The numbers of a shape, as indices on the card.

    By level: where among the candidates [width, branch] of a level's nodes the nodes below are, and
    which of these nodes are forwarded next, below nodes of which numbers. `columns` has the column
    of the node above each node.
    """

    def __init__(self, rule: ShapeRule, device: torch.device) -> None:
        def on_card(numbers: Sequence[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        numbers = {node: i for i, node in enumerate(node for level in rule.inner for node in level)}
        self.columns = on_card(rule.parents)
        self.children = []
        self.forwarded = []
        self.above = []
        following = [*rule.inner[1:], []]
        for inner, below, forwarded in zip(rule.inner, rule.below, following, strict=True):
            places = [
                inner.index(rule.parents[node - 1]) * rule.branch + rule.ranks[node - 1]
                for node in below
            ]
            self.children.append(on_card(places))
            self.forwarded.append(on_card([below.index(node) for node in forwarded]))
            self.above.append(on_card([numbers[rule.parents[node - 1]] for node in forwarded]))


class ShapedTrees:
    """Trees of one shape, whose nodes are the most probable tokens by their ranks."""

    def __init__(self, shape: ShapeOnCard, slots: int) -> None:
        self._shape = shape
        self._slots = slots
        self._levels: list[Tensor] = []
        """The tokens [slots, nodes] of each level below the root."""

    def add_children(
        self, level: Level, numbers: Tensor, candidates: Tensor, tokens: Tensor
    ) -> None:
        self._levels.append(tokens.flatten(1)[:, self._shape.children[len(self._levels)]])

    def next_level(self, width: int) -> Level:
        level = len(self._levels) - 1
        tokens = self._levels[level][:, self._shape.forwarded[level]]
        above = self._shape.above[level].expand(self._slots, -1)
        is_node = torch.ones_like(tokens, dtype=torch.bool)
        return Level(above, tokens, torch.zeros_like(tokens, dtype=torch.float32), above, is_node)

    def selected(self) -> Tensor:
        tokens = torch.cat(self._levels, 1)
        columns = self._shape.columns.expand(self._slots, -1)
        return torch.stack((tokens, columns, torch.ones_like(tokens)), -1)


class BeamTrees:
    """The selected nodes of trees that grow by the scores of a `BeamRule`.

    The operations are those of `GrowingTree`, in the same precision, and ties are broken alike: the
    selected nodes stand in the order in which they were added.
    """

    def __init__(self, rule: BeamRule, slots: int, device: torch.device) -> None:
        self._rule = rule
        size = (slots, rule.budget)
        self._scores = torch.full(size, -torch.inf, device=device)
        self._ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._parents = torch.zeros(size, dtype=torch.int64, device=device)
        """The ids of the nodes above."""
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self._above = torch.zeros(size, dtype=torch.int64, device=device)
        """The numbers of the nodes above, in the order of forwards."""
        self._next_id = 1
        self._forwarded = torch.zeros(size, dtype=torch.bool, device=device)
        self._is_new = torch.zeros(size, dtype=torch.bool, device=device)

    def add_children(
        self, level: Level, numbers: Tensor, candidates: Tensor, tokens: Tensor
    ) -> None:
        branch = candidates.shape[-1]
        bases = (level.scores.double() + log(self._rule.decay)).float()
        values = (bases[..., None] + candidates).flatten(1)
        best, order = values.sort(dim=-1, descending=True, stable=True)
        best, order = best[:, : self._rule.budget], order[:, : self._rule.budget]
        every = torch.cat((self._scores, best), -1)
        kept = every.sort(dim=-1, descending=True, stable=True).indices[:, : self._rule.budget]
        kept = kept.sort(dim=-1).values
        self._scores = every.gather(1, kept)
        self._is_new = kept >= self._rule.budget
        rows = order.div(branch, rounding_mode="floor")
        ids = self._next_id + torch.arange(best.shape[1], device=best.device).expand_as(order)
        self._next_id += best.shape[1]

        def joined(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat((old, new), -1).gather(1, kept)

        self._ids = joined(self._ids, ids)
        self._parents = joined(self._parents, level.ids.gather(1, rows))
        self._tokens = joined(self._tokens, tokens.flatten(1).gather(1, order))
        self._above = joined(self._above, numbers.gather(1, rows))
        self._forwarded = joined(self._forwarded, torch.zeros_like(best, dtype=torch.bool))

    def next_level(self, width: int) -> Level:
        waits = self._is_new if self._rule.newest_only else ~self._forwarded
        scores = self._scores.masked_fill(~waits, -torch.inf)
        best, places = scores.sort(dim=-1, descending=True, stable=True)
        # Padding stands behind all nodes; what is forwarded keeps the order of the nodes.
        end = scores.shape[-1]
        places = places[:, :width].masked_fill(best[:, :width] == -torch.inf, end)
        places = places.sort(dim=-1).values
        valid = places < end
        marked = torch.nn.functional.pad(self._forwarded, (0, 1))
        self._forwarded = marked.scatter(1, places, torch.ones_like(valid))[:, :end]
        places = places.clamp(max=end - 1)
        return Level(
            self._ids.gather(1, places),
            self._tokens.gather(1, places),
            self._scores.gather(1, places).masked_fill(~valid, -torch.inf),
            self._above.gather(1, places),
            valid,
        )

    def selected(self) -> Tensor:
        is_node = self._scores > -torch.inf
        order = (~is_node).to(torch.int8).sort(dim=-1, stable=True).indices
        ids, parents, tokens, is_node = (
            values.gather(1, order) for values in (self._ids, self._parents, self._tokens, is_node)
        )
        is_parent = (ids[:, None] == parents[..., None]) & is_node[:, None]
        column = (is_parent.long().argmax(-1) + 1).masked_fill(~is_parent.any(-1), 0)
        return torch.stack((tokens, column, is_node.long()), -1)


def paths_to(columns: Tensor, levels: int) -> Tensor:
    """Return which columns [rows, columns, columns] lie on the path to each column, itself
    included.

    `columns` are those of the nodes above, the root, in column 0, is its own; no node is deeper
    than `levels`.
    """
    rows, count = columns.shape
    own = torch.eye(count, dtype=torch.bool, device=columns.device).expand(rows, -1, -1)
    paths = own
    for _ in range(levels):
        paths = own | paths.gather(1, columns[..., None].expand(-1, -1, count))
    return paths


class TreeForward(Protocol):
    """Computes the logits [rows, width, vocabulary] of tokens [rows, width] on the card."""

    def __call__(
        self,
        tokens: Tensor,
        cells: Tensor,
        places: Tensor,
        mask: CompactMask,
        inputs: GraphInputs | None = None,
        above: Tensor | None = None,
    ) -> Tensor:
        """Write the KV to `cells`; see `GraphComputations`."""


class NodeMask(Protocol):
    """Returns masks of nodes; see `GraphMemory.node_mask`."""

    def __call__(
        self, ancestors: Tensor, prefixes: Tensor, cells: Tensor, length: int
    ) -> CompactMask:
        """Return the mask of nodes in `cells` [rows, width]."""


class GrownOnCard:
    """Grows the trees below one root for each slot from `first` on, whose KV goes to the cells
    behind the root's.
    """

    def __init__(
        self,
        rule: TreeRule,
        details: Details,
        board: TreeBoard,
        first: int,
        forward: TreeForward,
        mask: NodeMask,
        describe: Describe,
        length: int,
    ) -> None:
        self._rule = rule
        self._details = details
        self._board = board
        self._first = first
        self._forward = forward
        self._mask = mask
        self._describe = describe
        self._length = length

    def grow(self, logits: Tensor, root: Tensor, cell: Tensor, place: Tensor, trash: int) -> Tensor:
        """Return the logits [slots, nodes, vocabulary] of all forwarded nodes, and write their
        results to the board.

        `logits` [slots, 1, vocabulary] follow the roots, whose tokens, cells and positions are each
        [slots, 1].
        """
        rule = self._rule
        slots = len(root)
        device = root.device
        trees = self._board.new_trees(slots)
        numbers = torch.zeros_like(root)
        level = Level(
            numbers,
            root,
            torch.zeros(root.shape, device=device),
            numbers - 1,
            torch.ones_like(root, dtype=torch.bool),
        )
        nodes = torch.arange(sum(rule.widths), device=device)
        ancestors = (nodes == 0).expand(slots, len(nodes), -1).clone()
        count = torch.ones_like(root)
        all_logits = [logits]
        self._add_children(trees, level, numbers, self._write(0, logits, level))
        first = 1
        for width in rule.widths[1:]:
            level = trees.next_level(width)
            # Padding stands behind the nodes: what it writes, nobody attends to, and the next level
            # overwrites it.
            numbers = count + nodes[:width]
            count = count + level.valid.sum(-1, keepdim=True)
            above = level.above[..., None].expand(-1, -1, len(nodes))
            paths = ancestors.gather(1, above) | (nodes == numbers[..., None])
            ancestors.scatter_(1, numbers[..., None].expand(-1, -1, len(nodes)), paths)
            cells = (cell + numbers).clamp(max=trash)
            logits = self._forward(
                level.tokens,
                cells,
                place + paths.sum(-1) - 1,
                self._mask(paths.to(torch.uint8), cell, cells, self._length),
                above=(cell + level.above).clamp(max=trash),
            )
            all_logits.append(logits)
            self._add_children(trees, level, numbers, self._write(first, logits, level))
            first += width
        self._board.selected[self._first : self._first + slots] = trees.selected()
        return torch.cat(all_logits, 1)

    def _add_children(
        self, trees: CardTrees, level: Level, numbers: Tensor, fields: Tensor
    ) -> None:
        begin = FIELDS + STATISTICS
        candidates = fields[..., begin : begin + self._rule.branch].float()
        tokens = fields[..., begin + TOP : begin + TOP + self._rule.branch].long()
        trees.add_children(level, numbers, candidates, tokens)

    def _write(self, first: int, logits: Tensor, level: Level) -> Tensor:
        """Write the results of a level's nodes to the board from column `first` on, and return
        them.
        """
        described = self._describe(logits, level.tokens, self._details)
        above = level.above.masked_fill(~level.valid, -1)[..., None].double()
        fields = torch.cat((described.fields, above), -1)
        slots = slice(self._first, self._first + len(fields))
        self._board.trees[slots, first : first + fields.shape[1]] = fields
        return fields


class TreeLauncher(Launcher, Protocol):
    """An executor as the work of its trees sees it."""

    def tree_board(self, rule: TreeRule) -> TreeBoard:
        """Return the board of trees that grow by a rule."""


class TreeWork(Work):
    """The forwards of all levels of trees that grow on the card by one rule, from their roots."""

    on_board = False

    def __init__(
        self, executor: TreeLauncher, rows: Sequence[Row], rule: TreeRule, details: Details
    ) -> None:
        super().__init__(executor, rows, (), details, may_chain=False)
        self._launcher = executor
        self.rule = rule
        self.steps = sum(rule.widths)
        self._ends = list(accumulate(rule.widths))
        self._level = 0
        """The level that was asked for last."""
        self._counts = {row.slot: 1 for row in rows}
        """The nodes that were asked for so far, by slot of the trees that still grow."""
        self._roots = {row.slot: row.start + len(row.tokens) - 1 for row in rows}
        """The cell of each root."""
        self._is_read = False
        self.ahead: ref[VerifiedAhead] | None = None
        """The verification that was started before the host knows the trees."""

    @property
    def board(self) -> TreeBoard:
        """Return the board that holds the results on the card."""
        return self._launcher.tree_board(self.rule)

    @property
    def unread(self) -> bool:
        return not self._is_read

    def read(self) -> None:
        if self._is_read:
            return
        ahead = self.ahead() if self.ahead is not None else None
        self.table, verified = self.board.read(with_verified=ahead is not None)
        self._is_read = True
        if ahead is not None and verified is not None:
            ahead.table = verified

    def next_level(self, rows: Sequence[Row], layers: Sequence[int]) -> int:
        """Return the number of the level that these rows are; 0 if they are not what the card has
        forwarded after the level that was asked for last.
        """
        level = self._level + 1
        if layers or level == len(self._ends):
            return 0
        self.read()
        if len({row.slot for row in rows}) < len(rows) or not all(
            self._is_forwarded(row, level) for row in rows
        ):
            return 0
        self._level = level
        self._counts = {row.slot: self._counts[row.slot] + len(row.tokens) for row in rows}
        return level

    def columns_of(self, row: Row, step: int) -> range:
        first = self._ends[step - 1] if step else 0
        return range(first, first + (len(row.tokens) if step else 1))

    def width_of(self, step: int) -> int:
        return self.rule.widths[step] if step else super().width_of(step)

    def _is_forwarded(self, row: Row, level: int) -> bool:
        """Return whether the card has forwarded the nodes of a row, and no others, in a level."""
        if row.slot not in self._counts:
            return False
        root = self._roots[row.slot]
        before = self._counts[row.slot]
        table = self.table[row.slot, self._ends[level - 1] : self._ends[level]]
        count = int((table[:, ABOVE] >= 0).sum())
        if row.start != root + before or not count == len(row.tokens) == row.keep:
            return False
        above = [before - 1 + node for node in range(count)]
        if row.parents is not None:
            above = [row.prefix + parent - root for parent in row.parents[-count:]]
        chosen: list[list[float]] = table[:count, [ABOVE, OWN]].T.tolist()
        return chosen == [above, list(row.tokens)]


class VerifiedAhead(Work):
    """The verification of trees that still grow on the card, for the nodes that their rule selects.

    Each row is what a request's KV lacks up to its root and, in place of a last token, the slot of
    its tree. The forward that the host asks for later may be this one: it is if the nodes are the
    same. Column 0 of the results belongs to the root.
    """

    on_board = False

    def __init__(
        self, executor: Launcher, rows: Sequence[Row], layers: Sequence[int], source: TreeWork
    ) -> None:
        super().__init__(executor, rows, layers, Details(), may_chain=False)
        self.source = source
        self.steps = source.rule.budget
        self._rows = {row.slot: row for row in rows}

    @property
    def unread(self) -> bool:
        return self.source.unread

    def read(self) -> None:
        self.source.read()

    def columns_of(self, row: Row, step: int) -> range:
        return range(row.keep)

    def answers(self, rows: Sequence[Row], layers: Sequence[int]) -> bool:
        """Return whether the forward that the host asks for is this one."""
        if list(layers) != list(self.layers) or sorted(row.slot for row in rows) != sorted(
            self._rows
        ):
            return False
        self.read()
        return all(map(self._is_verified, rows))

    def _is_verified(self, row: Row) -> bool:
        """Return whether the nodes of a row are those that were verified."""
        own = self._rows[row.slot]
        table = self.table[row.slot]
        nodes = int((table[:, COLUMN_ABOVE] >= 0).sum())
        root = len(own.tokens) - 2
        is_round = row.start == row.prefix == own.start and row.keep == 1 + nodes
        if not is_round or len(row.tokens) != root + 1 + nodes:
            return False
        above = range(-1, root + nodes) if row.parents is None else row.parents
        columns = [node - root for node in above]
        verified: list[list[float]] = table[1 : 1 + nodes, [COLUMN_ABOVE, OWN]].T.tolist()
        return (
            list(row.tokens[: root + 1]) == list(own.tokens[:-1])
            and columns[: root + 1] == list(range(-1 - root, 0))
            and verified == [columns[root + 1 :], list(row.tokens[root + 1 :])]
        )
