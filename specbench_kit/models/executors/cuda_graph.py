"""Executors for GPUs: forwards are captured as CUDA graphs, and chains of drafts and moves of KV
stay on the card.

One of them computes everything in one shape, so that outputs do not depend on how tokens are split.
Kernels of a GPU round differently for different numbers of tokens. Where plain decoding and every
verification run through one captured graph, with the same padding, a token's logits are the same in
all of them.
"""

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from specbench_kit.core.plain_text import first_line
from specbench_kit.models.executors.base import Forward, Padding, Row, executors
from specbench_kit.models.executors.card_decoder import CardDecoder, is_computable, sizes_of
from specbench_kit.models.executors.graph_forward import GraphComputations, GraphMemory
from specbench_kit.models.executors.graph_inputs import (
    NODES,
    GraphInputs,
    GraphShape,
    pending_in,
    power_of_two,
)
from specbench_kit.models.executors.graph_trees import (
    MOST_NODES,
    TreeBoard,
    TreeWork,
    VerifiedAhead,
)
from specbench_kit.models.executors.graph_work import (
    COLUMNS,
    CapturedGraph,
    GraphForward,
    GraphLibrary,
    Table,
    Work,
    preparing,
    recording,
)
from specbench_kit.models.executors.kernels.base import LayerSizes
from specbench_kit.models.executors.kernels.by_torch import TORCH
from specbench_kit.models.executors.kernels.choice import Choice, choose, choose_describe
from specbench_kit.models.executors.kernels.description import TOP, Describe, Details, describe
from specbench_kit.models.executors.kv import BAND, KVStore
from specbench_kit.models.executors.padded import Computed, ForwardInput, in_order
from specbench_kit.models.executors.pending import AnyToken, PendingToken, parts_of
from specbench_kit.models.executors.transformers import TransformersExecutor, WindowCache
from specbench_kit.models.executors.tree_rule import TreeRule

_LOG = logging.getLogger(__name__)
CAPTURED = {
    "gemma",
    "glm4",
    "granite",
    "helium",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
}
"""Types of models whose forward neither waits for the card nor depends on numbers that it
computed.
"""
ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of position embedding that do not look at the positions on the host."""
LEAST_LENGTH = 128
LEAST_NODES = 64
"""The smallest size of trees for which there are graphs; larger ones are powers of two."""
MOST_CHAIN = 64
"""The most tokens of one request that follow each other in a graph of its slot; a longer prompt is
one of any slot.
"""
MOST_PROMPT = 512
"""The longest prompt that a graph computes. A longer one keeps a card busy for longer than its
launches take.
"""
MOST_STEPS = 8
"""The longest chain in one graph; longer ones are several graphs, each a power of two."""


class GraphKey(NamedTuple):
    """What a graph computes: a forward with `steps` 0, else a chain; one that `goes_on` needs no
    inputs. With a `rule` it is a forward and the trees that grow below it, or the verification of
    such trees, which the rule selects on another executor's `board`.
    """

    shape: GraphShape
    layers: tuple[int, ...] = ()
    steps: int = 0
    goes_on: bool = False
    details: Details = Details()
    rule: TreeRule | None = None
    board: TreeBoard | None = None


@executors.register("cuda-graph")
class CudaGraphExecutor(TransformersExecutor):
    """Replays CUDA graphs of a model on a GPU, one per shape, and keeps drafted chains on the card.

    Forwards of up to 64 new tokens per request, and of trees of up to 87 new nodes, are padded to
    the next larger shape and replayed, and so are prompts of up to 512, each by itself. What is
    longer, and trees of more than 256 nodes, is launched kernel by kernel. A forward whose result
    may become the input of the next one is put off until somebody needs the result: a chain is then
    one graph. Capturing a graph takes no time that clocks count.
    """

    priority = 1
    takes_pending = True
    grows_trees = True
    has_chains = True
    """True if a chain of forwards is one graph, in a shape of its own."""

    @classmethod
    def supports(cls, model: Any) -> bool:
        config = model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            model.device.type == "cuda"
            and config.model_type in CAPTURED
            and rope.get("rope_type", "default") in ROTATIONS
            and getattr(config, "sliding_window", None) is None
            and len(set(getattr(model, "hf_device_map", {}).values())) < 2
            and super().supports(model)
        )

    @classmethod
    def missing(cls) -> str:
        return "" if torch.cuda.is_available() else "needs a GPU, and torch finds none"

    @classmethod
    def refusal(cls, model: Any) -> str:
        return (
            "needs a GPU: give --device cuda"
            if model.device.type != "cuda"
            else super().refusal(model)
        )

    def _allocate(self, slots: int, capacity: int) -> None:
        super()._allocate(slots, capacity)
        self._memory = GraphMemory(
            self.store, slots, capacity + BAND, self.device, self._choose_describe()
        )
        self._computations = GraphComputations(
            self.model, self._decoder, self._memory, self.vocabulary
        )
        self._graphs: GraphLibrary[GraphKey] = GraphLibrary(self._memory.state)
        self.details = Details()
        """What the next forwards say of their distributions."""
        self._movers: dict[int, tuple[torch.cuda.CUDAGraph, MoveInputs]] = {}
        self._moves: dict[tuple[int, int], int] = {}
        """Sources of KV by slot and destination, which are moved before the next forward."""
        self._chain: Work | None = None
        """The chain that the next forward may go on with."""
        self._owner: ref[Work] | None = None
        """The work whose results are on the board."""
        self._trees: ref[TreeWork] | None = None
        """The trees of which the next forward may be a level."""
        self._tree_owner: ref[TreeWork] | None = None
        """The trees whose results are on a board of trees."""
        self._ahead: VerifiedAhead | None = None
        """The verification that the next forward may be."""
        self._uncaptured: set[GraphKey] = set()
        """The graphs of trees that cannot be captured."""

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.forward(rows, layers)
        trees = self._trees() if self._trees is not None else None
        if trees is not None and (level := trees.next_level(rows, layers)):
            return GraphForward(trees, rows, level)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.answers(rows, layers):
            return GraphForward(ahead, rows, 0)
        if self._chain is not None and self._chain.goes_on(rows, layers):
            self._chain.steps += 1
            return GraphForward(self._chain, rows, self._chain.steps - 1)
        self._end_chain()
        if not (
            all(map(_is_captured, rows)) or (len(rows) == 1 and self._is_prompt(rows[0], layers))
        ):
            if len(rows) > 1:
                return self._apart(rows, layers)
            self._move_kv()
            return super().forward(rows, layers)
        work = Work(self, rows, layers, self.details, self.has_chains)
        if work.starts_chain:
            self._chain = work
        else:
            self.launch(work)
        return GraphForward(work, rows, 0)

    def begin_trees(self, rows: Sequence[Row], rule: TreeRule, temperature: float) -> Forward:
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.begin_trees(rows, rule, temperature)
        rule = rule.bounded
        if not self._can_grow(rows, rule):
            return self.forward(rows)
        self._end_chain()
        work = TreeWork(self, rows, rule, Details(temperature, candidates=True))
        work.shape = self._shape(work)
        self._take_trees(work)
        self._move_kv()
        key = GraphKey(work.shape, details=work.details, rule=rule)
        if not self._replay_trees(work, key, self._link(work)):
            return self.forward(rows)
        self._trees = ref(work)
        return GraphForward(work, rows, 0)

    def _replay_trees(self, work: Work, key: GraphKey, tokens: Sequence[Sequence[int]]) -> bool:
        """Start the work by a graph of trees; return False if none can be captured for its shape,
        so that trees grow level by level.
        """
        if key in self._uncaptured:
            return False
        try:
            self._replay(work, key, tokens)
        except RuntimeError as error:  # whatever a card says
            self._uncaptured.add(key)
            _LOG.warning("TREES ARE NO GRAPH ON %s: %s", self.device, first_line(error))
            return False
        return True

    def verify_ahead(self, trees: Forward, rows: Sequence[Row], layers: Sequence[int]) -> None:
        source = trees.work if isinstance(trees, GraphForward) else None
        if isinstance(source, TreeWork) and self._can_verify(source, rows):
            with torch.inference_mode():
                self._verify_ahead(source, rows, layers)

    def _verify_ahead(self, source: TreeWork, rows: Sequence[Row], layers: Sequence[int]) -> None:
        self._end_chain()
        with_slots = [
            row._replace(tokens=[*row.tokens, tree.slot])
            for row, tree in zip(rows, source.rows, strict=True)
        ]
        work = VerifiedAhead(self, with_slots, layers, source)
        shape = self._shape(work)
        work.shape = shape._replace(width=verified_width(shape, source.rule))
        self._move_kv()
        key = GraphKey(shape, tuple(layers), rule=source.rule, board=source.board)
        if self._replay_trees(work, key, [list(row.tokens) for row in with_slots]):
            source.ahead = ref(work)
            self._ahead = work

    def _can_verify(self, source: TreeWork, rows: Sequence[Row]) -> bool:
        """Return whether a graph can verify trees that the host does not know yet, below what these
        rows append.
        """
        board = source.board
        end = max(row.start + len(row.tokens) for row in rows) + source.rule.budget
        return (
            self.grows_trees
            and source.unread
            and source.rule.budget < NODES
            and source.executor is not self
            and board.selected.device == self.device
            and self.slots <= len(board.verified)
            and all(len(row.tokens) < MOST_CHAIN for row in rows)
            and end <= self._memory.trash
        )

    def _can_grow(self, rows: Sequence[Row], rule: TreeRule) -> bool:
        """Return whether a graph can compute all levels of trees that grow by a rule."""
        nodes = sum(rule.widths)
        return (
            rule.levels > 1
            and rule.branch <= TOP
            and nodes <= MOST_NODES
            and all(row.keep == 1 and row.parents is None and _is_captured(row) for row in rows)
            and max(row.start + len(row.tokens) for row in rows) + nodes <= self._memory.trash
        )

    def _apart(self, rows: Sequence[Row], layers: Sequence[int]) -> Forward:
        """Compute the rows that fit into a graph together, and each of the others by itself."""
        together = [number for number, row in enumerate(rows) if _is_captured(row)]
        groups = [
            *([together] if together else []),
            *([n] for n in range(len(rows)) if n not in together),
        ]
        logits: dict[int, Tensor] = {}
        hidden: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
        padding: dict[int, Padding] = {}
        for members in groups:
            part = self.forward([rows[member] for member in members], layers)
            for index, member in enumerate(members):
                logits[member] = part[index]
                padding[member] = part.padding[index]
                for layer in layers:
                    hidden[layer][member] = part.states(index, [layer])
        states = {layer: in_order(states_of_layer) for layer, states_of_layer in hidden.items()}
        return Forward(in_order(logits), states, padding=in_order(padding))

    def _is_prompt(self, row: Row, layers: Sequence[int]) -> bool:
        """Return whether a row is a prompt of which a graph computes what follows it."""
        begins = row.keep == 1 and row.parents is None and not row.start and not layers
        return (
            begins
            and self.has_chains
            and self._decoder is not None
            and len(row.tokens) <= MOST_PROMPT
        )

    @cached_property
    def _decoder(self) -> CardDecoder | None:
        """Our own forward of the model; None for a model that only its own code computes."""
        return CardDecoder(self.model, self.choice.kernels) if self.choice else None

    @cached_property
    def choice(self) -> Choice | None:
        """The kernels of our own forward, and why; None for a model that only its own code
        computes.
        """
        if not is_computable(self.model):
            return None
        return self._choose(sizes_of(self.model))

    def _choose(self, sizes: LayerSizes) -> Choice:
        return choose(self.device, self._dtype, sizes)

    def _choose_describe(self) -> Describe:
        return choose_describe(self.device, self._dtype)

    def compute(self, batch: ForwardInput) -> Computed:
        """Compute what no graph does, such as a long prompt, by the same kernels as graphs if these
        are our own.
        """
        if self._decoder is None:
            return super().compute(batch)
        kv = WindowCache(batch.kv)
        # Chains lie in KV by their positions.
        mask = (
            self._memory.chain_mask(batch.positions, batch.kv.length)
            if batch.is_chain
            else batch.mask
        )
        logits, hidden = self._decoder(
            batch.tokens,
            batch.positions,
            mask,
            kv,
            batch.layers,
            batch.first,
        )
        return Computed(
            logits, {layer: states[:, batch.first :] for layer, states in hidden.items()}
        )

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        self._end_chain()
        if any(moved == slot for moved, _ in self._moves):
            self._move_kv()  # these sources may be the destinations of moves that wait
        self._moves |= {
            (slot, to + index): source
            for index, source in enumerate(sources)
            if source != to + index
        }

    def release(self, slot: int) -> None:
        # A chain that stays open holds its executor, and with it all KV and weights, when nobody
        # else does any more.
        if self._chain is not None and any(row.slot == slot for row in self._chain.rows):
            self._end_chain()
        self._ahead = None  # it holds its executor, too

    def launch(self, work: Work) -> None:
        """Start what of the work has not been started."""
        self._take_board(work)
        self._move_kv()
        if not work.started:
            work.shape = self._shape(work)
            steps = _power_below(work.steps) if work.starts_chain and work.shape.length else 0
            shape = work.shape if work.shape.length else work.shape._replace(first=0)
            self._replay(
                work,
                GraphKey(shape, tuple(work.layers), steps, details=work.details),
                self._link(work),
            )
        while work.started < work.steps:
            assert work.shape is not None
            steps = _power_below(work.steps - work.started)
            shape = work.shape._replace(width=1, length=self._length(work))
            self._replay(work, GraphKey(shape, steps=steps, goes_on=True, details=work.details))

    @property
    def kernels(self) -> str:
        if self.choice is None:
            return ""
        kernels, reason = self.choice
        return f"{kernels.name}: {reason}" if reason else kernels.name

    @property
    def captures(self) -> int:
        """Return how many graphs were captured."""
        return self._graphs.captures + len(self._movers)

    @property
    def board(self) -> Tensor:
        """Return the results [slots, COLUMNS, fields] of the last work, on the card."""
        owner = self._owner() if self._owner is not None else None
        return (
            self._memory.details
            if owner is not None and owner.details.temperature
            else self._memory.board
        )

    def ask_for(self, details: Details) -> None:
        """Make the forwards from now on say more of their distributions."""
        self.details = details._replace(candidates=details.candidates or self.details.candidates)

    def shows(self, work: Work) -> bool:
        """Return whether the results of a work are on the board."""
        return self._owner is not None and self._owner() is work

    def read_board(self, work: Work) -> Table:
        """Wait for the results of the work, which were the last ones to be started."""
        memory = self._memory
        if not work.details.temperature:
            memory.host_board.copy_(memory.board)
            return memory.host_board.numpy().copy()
        memory.host_details.copy_(memory.details)
        return memory.host_details.numpy().copy()

    def tree_board(self, rule: TreeRule) -> TreeBoard:
        """Return the board of trees that grow by a rule."""
        return self._memory.tree_board(rule)

    def _move_kv(self) -> None:
        """Move the KV that waits for it."""
        moves = [(slot, source, to) for (slot, to), source in self._moves.items()]
        self._moves.clear()
        if not moves:
            return
        count = max(LEAST_MOVES, power_of_two(len(moves)))
        found = self._movers.get(count)
        inputs = found[1] if found else MoveInputs(count, self._memory.trash, self.device)
        inputs.fill(moves)
        with torch.inference_mode(), torch.cuda.device(self.device):
            if found is None:
                graph = torch.cuda.CUDAGraph()
                with preparing(self.device), recording(graph):
                    inputs.move(self.store)
                found = self._movers[count] = graph, inputs
            found[0].replay()
            inputs.was_read.record(torch.cuda.current_stream(self.device))

    def _replay(self, work: Work, key: GraphKey, tokens: Sequence[Sequence[int]] = ()) -> None:
        graph = self._graphs.find(key)
        inputs = graph.inputs if graph else None if key.goes_on else self._inputs(key.shape)
        if inputs is not None:
            inputs.fill(work.rows, tokens)
        graph = graph or self._capture(key, inputs)
        results = graph.replay()
        steps = max(1, key.steps)
        if key.rule is not None and key.board is None:
            steps = key.rule.levels
        work.results += [(results, step) for step in range(steps)]
        work.started += steps

    def _inputs(self, shape: GraphShape) -> GraphInputs:
        return GraphInputs(shape, self._memory.trash, self.device)

    def _capture(self, key: GraphKey, inputs: GraphInputs | None) -> CapturedGraph:
        with torch.cuda.device(self.device):
            return self._graphs.capture(key, partial(self._compute, key, inputs), inputs)

    def _compute(
        self, key: GraphKey, inputs: GraphInputs | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if inputs is None:
            return self._computations.steps(key.shape, key.steps, key.details)
        if key.rule is not None and key.board is not None:
            width = verified_width(key.shape, key.rule)
            return self._computations.selected(inputs, key.rule, key.board, key.layers, width)
        if key.rule is not None:
            return self._computations.trees(inputs, key.rule, key.details)
        if not key.shape.length:
            return self._computations.prompt(inputs, key.details)
        if key.steps:
            return self._computations.chain(inputs, key.steps, key.details)
        return self._computations.forward(inputs, key.layers, key.details)

    def _link(self, work: Work) -> list[list[int]]:
        """Return the tokens of all rows; those that another executor has on its board are brought
        here by one copy.
        """
        source = _source_of(work.rows, self)
        if source is None:
            return [list(row.tokens) for row in work.rows]
        board = source.executor.board[..., 0].flatten()
        self._memory.linked[: len(board)] = board
        work.links = [
            (part, row.slot, column)
            for row in work.rows
            for column, part in enumerate(parts_of(row.tokens))
            if isinstance(part, PendingToken) and not part.known
        ]
        return [list(map(_number, parts_of(row.tokens))) for row in work.rows]

    def _take_board(self, work: Work) -> None:
        """Make the board free for the results of the work: what is on it and still needed is read
        before.
        """
        owner = self._owner() if self._owner is not None else None
        if owner is not None and owner is not work:
            owner.read()
        self._owner = ref(work)

    def _take_trees(self, work: TreeWork) -> None:
        """Make the board of trees free for the results of the work."""
        owner = self._tree_owner() if self._tree_owner is not None else None
        if owner is not None:
            owner.read()
        self._tree_owner = ref(work)

    def _end_chain(self) -> None:
        """Start the steps of the chain that were put off: what comes now is no step of it, no
        level of trees and no verification of them.
        """
        self._trees = None
        self._ahead = None
        chain = self._chain
        self._chain = None
        if chain is not None and chain.started < chain.steps:
            self.launch(chain)

    def _shape(self, work: Work) -> GraphShape:
        slots = [row.slot for row in work.rows]
        if not _is_captured(work.rows[0]):
            return GraphShape(slots[0], 1, padded_width(1, len(work.rows[0].tokens)), 0)
        rows = min(power_of_two(max(slots) - min(slots) + 1), self.slots)
        first = min(min(slots), self.slots - rows)
        width = min(COLUMNS, padded_width(rows, max(len(row.tokens) for row in work.rows)))
        return GraphShape(first, rows, width, self._length(work), _nodes(work.rows, width))

    def _length(self, work: Work) -> int:
        """Return how many keys the work attends to, rounded up: attention reads all of them,
        whatever the mask says.
        """
        end = max(row.start + len(row.tokens) for row in work.rows) + work.steps - 1
        whole = power_of_two(end)
        between = 3 * whole // 4
        return min(max(LEAST_LENGTH, between if end <= between else whole), self._memory.trash + 1)


FREE_TOKENS = 128
"""Tokens of all rows that take no longer than one does, since a card reads all weights for them
anyhow.
"""


def padded_width(rows: int, tokens: int) -> int:
    """Return the width of the graph for so many tokens of each row, of which there shall be few.

    By powers of two a verification of 17 tokens would be padded to 32: for 32 requests nearly twice
    the products, where a card has more of them to do than weights to read.
    """
    whole = power_of_two(tokens)
    if rows * whole <= FREE_TOKENS:
        return whole
    grain = max(1, whole // 8)
    return -(-tokens // grain) * grain


def verified_width(inputs: GraphShape, rule: TreeRule) -> int:
    """Return the width of the verification of trees whose nodes a rule selects: that of the forward
    in which the host would verify them, so that logits are rounded alike.

    The last column of the inputs is no token.
    """
    tokens = inputs.width - 1 + rule.budget
    return max(tokens, min(COLUMNS, padded_width(inputs.rows, tokens)))


def _is_captured(row: Row) -> bool:
    """Return whether graphs that are wide enough for a row exist in any case; see also
    `_is_prompt`.
    """
    if row.parents is None:
        return len(row.tokens) <= MOST_CHAIN
    return len(row.tokens) <= COLUMNS and len(row.parents) <= NODES


def _nodes(rows: Sequence[Row], width: int) -> int:
    """Return the size of the trees that a graph has to hold; 0 if all rows are chains."""
    most = max(len(row.parents) if row.parents is not None else 0 for row in rows)
    return max(LEAST_NODES, power_of_two(max(most, width))) if most else 0


def _power_below(steps: int) -> int:
    """Return the largest power of two that is no larger, and for which there are graphs."""
    return min(1 << (steps.bit_length() - 1), MOST_STEPS)


def _source_of(rows: Sequence[Row], reader: CudaGraphExecutor) -> Work | None:
    """Return the work of another executor on whose board all pending tokens of the rows are; None
    if there is none.
    """
    works = {id(token.source): token.source for token in pending_in(rows)}.values()
    sources = [source.work for source in works if isinstance(source, GraphForward)]
    if (
        not sources
        or len(sources) < len(works)
        or any(source is not sources[0] for source in sources)
    ):
        return None
    (source, *_), forwards = sources, works
    for forward in forwards:
        forward.launch()
    fits = source.executor is not reader and source.executor.slots <= reader.slots
    return source if fits and source.executor.shows(source) else None


def _number(part: AnyToken) -> int:
    """Return a token, or the number below 0 under which one on another board is known."""
    if isinstance(part, PendingToken) and not part.known and isinstance(part.source, GraphForward):
        return -1 - (part.source.rows[part.row].slot * COLUMNS + part.source.step)
    return int(part)


LEAST_MOVES = 8
"""The smallest graph; numbers of moves are rounded up to powers of two."""


class MoveInputs:
    """Slots, sources and destinations of one graph's moves, in pinned memory and on the card.

    A move that is only padding copies the last cell, which nothing attends to, onto itself.
    """

    def __init__(self, count: int, trash: int, device: torch.device) -> None:
        self._trash = trash
        self._host = torch.zeros((3, count), dtype=torch.int64, pin_memory=True)
        self._card = torch.zeros((3, count), dtype=torch.int64, device=device)
        self.was_read = torch.cuda.Event()
        """Happens when the card has read what was written last."""

    def fill(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Write moves as (slot, source, destination)."""
        if not self.was_read.query():
            self.was_read.synchronize()
        numbers = self._host.numpy()
        numbers[0], numbers[1:] = 0, self._trash
        numbers[:, : len(moves)] = list(zip(*moves, strict=True))

    def move(self, store: KVStore) -> None:
        """Bring the moves to the card and do them; in a graph this is a part of each replay."""
        self._card.copy_(self._host, non_blocking=True)
        slots, sources, destinations = self._card.unbind()
        # All sources are read before anything is written, so that a cell may be the source of one
        # move and the destination of another.
        for block in store.blocks:
            block[:, slots, :, destinations] = block[:, slots, :, sources]


@executors.register("cuda-graph-torch")
class TorchGraphExecutor(CudaGraphExecutor):
    """Replays CUDA graphs of torch's operations alone, to compare with the fused kernels of
    `cuda-graph`.
    """

    priority = -1

    def _choose(self, sizes: LayerSizes) -> Choice:
        return Choice(TORCH, "the executor compares with them")

    def _choose_describe(self) -> Describe:
        return describe


INVARIANT_WIDTH = 64
"""The tokens of every slot that an invariant forward computes; longer rows are computed in
parts.
"""


@executors.register("cuda-invariant")
class InvariantExecutor(CudaGraphExecutor):
    """Replays one CUDA graph of a model on a GPU for all forwards, so that a method's outputs are
    plain decoding's.

    Every forward computes 64 tokens of every slot over all keys that a slot can hold, whatever it
    was asked for: that is its price, which grows with the batch. Longer rows are computed in parts
    of 64 tokens. Trees of more than 256 nodes are computed as the executor `transformers` does, and
    are no more invariant than there.
    """

    priority = -1
    grows_trees = False
    has_chains = False

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        if all(len(row.tokens) <= INVARIANT_WIDTH for row in rows):
            return super().forward(rows, layers)
        results = [self._in_parts(row, layers) for row in rows]
        logits = [result[0] for result in results]
        hidden = {}
        for layer in layers:
            hidden[layer] = [result.hidden[layer] for result in results]
        return Forward(logits, hidden)

    def _in_parts(self, row: Row, layers: Sequence[int]) -> Forward:
        """Compute one row in parts of as many tokens as the shape has columns, and return the
        logits of all.
        """
        count = len(row.tokens)
        before = len(row.parents) - count if row.parents is not None else 0
        logits = []
        hidden: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        for first in range(0, count, INVARIANT_WIDTH):
            end = min(first + INVARIANT_WIDTH, count)
            parents = row.parents[: before + end] if row.parents is not None else None
            keep = max(0, min(end - first, end - (count - row.keep)))
            # The result is read before the next part overwrites it; a part that keeps nothing has
            # none.
            part = super().forward(
                [
                    Row(
                        row.slot,
                        row.tokens[first:end],
                        row.start + first,
                        row.prefix,
                        parents,
                        keep,
                    )
                ],
                layers,
            )
            if keep:
                logits.append(part[0])
                for layer in layers:
                    hidden[layer].append(part.hidden[layer])
        return Forward(
            [torch.cat(logits)], {layer: [torch.cat(states)] for layer, states in hidden.items()}
        )

    def _shape(self, work: Work) -> GraphShape:
        return GraphShape(0, self.slots, INVARIANT_WIDTH, self._memory.trash + 1, NODES)
