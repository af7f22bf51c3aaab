"""What a graph executor was asked for: begun when somebody needs it, and read from the card in one
copy.

A graph is captured when its shape first occurs, and replayed from then on.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from specbench_kit.core.counted_time import not_counted
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.models.executors.base import Candidates, Forward, Padding, Row, Statistics
from specbench_kit.models.executors.graph_inputs import (
    Fields,
    GraphInputs,
    GraphShape,
    best_candidates,
)
from specbench_kit.models.executors.kernels.description import (
    FIELDS,
    NAN,
    NEXT,
    OWN,
    STATISTICS,
    TOP,
    Details,
    details_of,
)
from specbench_kit.models.executors.pending import AnyToken, PendingToken, parts_of

MOST_GRAPHS = 96
"""Graphs of an executor; the one that was not used for longest makes room for another."""


class Results:
    """What the last replay of a graph computed: `logits`, and `hidden` states by layer.

    They lie in the memory of the graph until its next replay. What is handed out is a copy, made
    when it is first asked for, as a view of that memory would change later in the hands of whoever
    holds it.
    """

    def __init__(self, logits: Tensor, hidden: dict[int, Tensor]) -> None:
        self._logits = logits
        self._hidden = hidden

    @cached_property
    def logits(self) -> Tensor:
        return self._logits.clone()

    @cached_property
    def hidden(self) -> dict[int, Tensor]:
        return {layer: states.clone() for layer, states in self._hidden.items()}

    def keep(self) -> None:
        """Copy everything, as its memory is about to be overwritten."""
        self._logits, self._hidden = self.logits, self.hidden


Computation = Callable[[], tuple[Tensor, dict[int, Tensor]]]
"""Computes from static inputs alone, and returns logits and hidden states by layer."""


@dataclass
class CapturedGraph:
    """A captured computation with the inputs that it reads, and its results."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor
    hidden: dict[int, Tensor]
    inputs: GraphInputs | None
    last: "ref[Results] | None" = None

    def replay(self) -> Results:
        """Compute once more; results of the last time that somebody still refers to are copied
        before.
        """
        before = self.last() if self.last is not None else None
        if before is not None:
            before.keep()
        self.graph.replay()
        if self.inputs is not None:
            self.inputs.was_read.record(torch.cuda.current_stream(self.logits.device))
        results = Results(self.logits, self.hidden)
        self.last = ref(results)
        return results


@contextmanager
def preparing(device: torch.device) -> Iterator[None]:
    """Do on a card what a server would have done before its first request: its time does not
    count.
    """
    torch.cuda.synchronize(device)
    with not_counted():
        yield
        torch.cuda.synchronize(device)


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: tuple[int, int] | None = None) -> Iterator[None]:
    """Capture what is launched inside; `pool` is memory that graphs share."""
    # Garbage may hold graphs and pinned memory, and freeing those would end the capture, and the
    # process with it. Other threads may ask for memory meanwhile.
    capture = torch.cuda.graph(
        graph,
        pool=pool,  # type: ignore[arg-type]  # a handle that torch names by a new type
        capture_error_mode="thread_local",
    )
    with gc_paused(), capture:
        yield


Key = TypeVar("Key", bound=Hashable)


class GraphLibrary(Generic[Key]):
    """The captured graphs of one executor, which share their temporary memory.

    `state` are the tensors that a computation changes; capturing leaves them as they were.
    """

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._graphs: OrderedDict[Key, CapturedGraph] = OrderedDict()
        self._state = state
        self._pool: tuple[int, int] | None = None
        self.captures = 0
        """How many graphs were captured, those included that have made room for others."""

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, key: Key) -> CapturedGraph | None:
        """Return the graph of a shape, if it was captured."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
        return graph

    def capture(self, key: Key, compute: Computation, inputs: GraphInputs | None) -> CapturedGraph:
        """Capture the graph of a shape; the inputs must hold what is to be computed first."""
        if len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self.captures += 1
        with preparing(self._state[0].device):
            before = [tensor.clone() for tensor in self._state]
            # Libraries set themselves up in the first run of a shape, which a capture does not
            # allow. What this run writes into KV, the replay writes once more.
            compute()
            for tensor, content in zip(self._state, before, strict=True):
                tensor.copy_(content)
            graph = torch.cuda.CUDAGraph()
            with recording(graph, self._pool):
                logits, hidden = compute()
        captured = self._graphs[key] = CapturedGraph(graph, logits, hidden, inputs)
        return captured


COLUMNS = 88
"""The most tokens of one slot whose results can lie on the card: the widest forward, or the longest
chain.

The largest tree of a method's defaults has 80 nodes, and the token before it is computed with it.
"""
UNREAD = -1.0

Table = np.ndarray[Any, np.dtype[np.float64]]
"""Results [slots, COLUMNS, FIELDS] as the host has them; UNREAD where they have not arrived."""


class Launcher(Protocol):
    """An executor as its work sees it."""

    slots: int

    @property
    def board(self) -> Tensor:
        """Return the results [slots, COLUMNS, FIELDS] of the last work, on the card."""

    def shows(self, work: "Work") -> bool:
        """Return whether the results of a work are on the board."""

    def launch(self, work: "Work") -> None:
        """Start what of the work has not been started."""

    def ask_for(self, details: Details) -> None:
        """Make the forwards from now on say more of their distributions."""

    def read_board(self, work: "Work") -> Table:
        """Wait for the results of the work, which were the last ones to be started."""


class Work:
    """A forward, or a chain of forwards of which each reads the token that the one before it has
    chosen.

    Column i of the results belongs to the i-th new token of a row; in a chain to its i-th forward.
    """

    on_board = True
    """True if the results are on the board of the executor, where the next forward of another
    executor can read tokens.
    """

    def __init__(
        self,
        executor: Launcher,
        rows: Sequence[Row],
        layers: Sequence[int],
        details: Details,
        may_chain: bool = True,
    ) -> None:
        self.executor = executor
        self.rows = rows
        self.layers = layers
        self.details = details
        self.starts_chain = (
            may_chain and not layers and all(row.keep == 1 and row.parents is None for row in rows)
        )
        self.steps = 1
        self.started = 0
        """The steps of the chain that were launched; 1 for a single forward that was."""
        self.shape: GraphShape | None = None
        self.results: list[tuple[Results, int]] = []
        """For every step the results of the graph that computed it, and its index in them."""
        self.links: list[tuple[PendingToken, int, int]] = []
        """Tokens that were read on the card, with their slot and column."""
        self.table: Table = np.full((executor.slots, COLUMNS, FIELDS), UNREAD)

    def goes_on(self, rows: Sequence[Row], layers: Sequence[int]) -> bool:
        """Return whether these rows are the next step of the chain, of all its requests or of
        some.
        """
        if layers or not self.starts_chain or self.steps >= COLUMNS:
            return False
        ends = {row.slot: row.start + len(row.tokens) + self.steps - 1 for row in self.rows}
        return all(
            row.keep == 1
            and row.parents is None
            and row.start == ends.get(row.slot)
            and self._follows(row)
            for row in rows
        )

    def _follows(self, row: Row) -> bool:
        """Return whether a row's only token is the one that the last step has chosen for its
        slot.
        """
        (token, *more) = parts_of(row.tokens)
        if (
            more
            or not isinstance(token, PendingToken)
            or not isinstance(token.source, GraphForward)
        ):
            return False
        source = token.source
        return (
            source.work is self
            and source.step == self.steps - 1
            and source.rows[token.row].slot == row.slot
        )

    @property
    def columns(self) -> int:
        """Return the number of columns of results that were started."""
        return self.started if self.starts_chain else max(len(row.tokens) for row in self.rows)

    def columns_of(self, row: Row, step: int) -> range:
        """Return the columns of the results that belong to a row's kept tokens in a step."""
        if self.starts_chain:
            return range(step, step + 1)
        return range(len(row.tokens) - row.keep, len(row.tokens))

    def width_of(self, step: int) -> int:
        """Return how many tokens of each row a step computed, padding included."""
        assert self.shape is not None
        return 1 if step else self.shape.width

    @property
    def unread(self) -> bool:
        """Return whether a result was started of which the host knows nothing."""
        slots = [row.slot for row in self.rows]
        return (
            bool((self.table[slots, : self.columns, NEXT] == UNREAD).any())
            if self.started
            else False
        )

    def read(self) -> None:
        """Wait for all results that were started, and pass on those of tokens that were read on the
        card.
        """
        if not self.unread:
            return
        self.table = self.executor.read_board(self)
        for token, slot, column in self.links:
            if not token.known:
                token.deliver(int(self.table[slot, column, OWN]))
        self.links.clear()


class GraphForward(Forward):
    """The results of one forward, which are computed on the card and read from it when somebody
    needs them.
    """

    most_candidates = TOP

    def __init__(self, work: Work, rows: Sequence[Row], step: int) -> None:
        # The base class's constructor is left out: it would need the results.
        self.work = work
        self.rows = rows
        self.step = step
        self._masked = False

    # Not set in the constructor: a forward that refers to itself would not be freed as soon as
    # nobody needs it, and its results would be read for nothing.
    @property
    def statistics(self) -> Statistics | None:  # type: ignore[override]
        """Return the function that describes the distributions; None if logits were changed on the
        host.
        """
        return None if self._masked else self._statistics

    @property
    def candidates(self) -> Candidates | None:  # type: ignore[override]
        """Return the function that finds the best candidates; None if logits were changed on the
        host.
        """
        return None if self._masked else self._candidates

    def _forget_descriptions(self) -> None:
        """Do nothing: the properties know that logits were changed."""

    @property
    def padding(self) -> Sequence[Padding]:  # type: ignore[override]
        """Return the padding of every row, once the forward was launched."""
        self.launch()
        shape = self.work.shape
        assert shape is not None
        width = self.work.width_of(self.step)
        return [
            Padding(shape.rows, row.slot - shape.first, width, 0, row.start + width)
            for row in self.rows
        ]

    def launch(self) -> None:
        """Start the computation, if that has not happened yet."""
        if self.work.started <= self.step:
            with self.launching():
                self.work.executor.launch(self.work)

    def token_of(self, row: int) -> int:
        """Wait for the result, and return the most likely next token of a row."""
        self._read()
        return int(self.work.table[self.rows[row].slot, self._columns(self.rows[row])[-1], NEXT])

    def next_tokens(self) -> Sequence[AnyToken]:
        if self._masked or not self.work.on_board:
            return super().next_tokens()
        return [PendingToken(self, row) for row in range(len(self.rows))]

    def argmax(self) -> list[list[int]]:
        if self._masked:
            return super().argmax()
        self._read()
        return [self._field(row, NEXT).astype(int).tolist() for row in self.rows]

    def top_tokens(self, count: int) -> list[list[int]]:
        if self._masked or count > TOP:
            return super().top_tokens(count)
        if not self.work.details.candidates:
            self.work.executor.ask_for(
                Details(self.work.details.temperature or 1.0, candidates=True)
            )
            return super().top_tokens(count)
        fields = self._described(self.work.details)
        tokens: list[list[int]] = (
            fields[:, STATISTICS + TOP : STATISTICS + TOP + count].astype(int).tolist()
        )
        return tokens

    def is_nan(self) -> bool:
        self._read()
        flags = np.concatenate([self._field(row, NAN) for row in self.rows])
        return super().is_nan() if (flags == UNREAD).any() else bool(flags.any())

    def mask(self, tokens: Sequence[int]) -> None:
        results, index = self._results
        # The logits of a chain's other steps are not this forward's to change.
        self.__dict__["_results"] = Results(results.logits, results.hidden), index
        self._masked = True
        super().mask(tokens)

    def states(self, row: int, layers: Sequence[int]) -> Tensor:
        return torch.cat(
            [self._of_row(self._results[0].hidden[layer], self.rows[row]) for layer in layers],
            dim=-1,
        )

    @property
    def hidden(self) -> dict[int, Tensor]:
        """Return the hidden states [kept, width] of all rows by layer."""
        kept = {}
        for layer, states in self._results[0].hidden.items():
            kept[layer] = torch.cat([self._of_row(states, row) for row in self.rows])
        return kept

    @property
    def _parts(self) -> Sequence[Tensor]:
        results, index = self._results
        if self.work.starts_chain:
            assert self.work.shape is not None
            first = self.work.shape.first
            return [results.logits[index, row.slot - first, None] for row in self.rows]
        return [self._of_row(results.logits, row) for row in self.rows]

    @property
    def logits(self) -> Tensor:
        """Return the logits [kept, vocabulary] of all rows, one after the other."""
        parts = self._parts
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))

    @cached_property
    def _results(self) -> tuple[Results, int]:
        self.launch()
        return self.work.results[self.step]

    def _of_row(self, values: Tensor, row: Row) -> Tensor:
        assert self.work.shape is not None
        columns = self._columns(row)
        return values[row.slot - self.work.shape.first, columns.start : columns.stop]

    def _columns(self, row: Row) -> range:
        """Return the columns of the results that belong to a row's kept tokens."""
        return self.work.columns_of(row, self.step)

    def _field(self, row: Row, field: int) -> Table:
        columns = self._columns(row)
        values: Table = self.work.table[row.slot, columns.start : columns.stop, field]
        return values

    def _statistics(self, temperature: float) -> list[list[float]]:
        statistics: list[list[float]] = self._described(Details(temperature))[
            :, :STATISTICS
        ].tolist()
        return statistics

    def _candidates(
        self,
        temperature: float,
        rows: Sequence[int],
        bases: Sequence[float],
        branch: int,
        count: int,
        floor: float,
    ) -> list[tuple[float, int, int]]:
        fields = self._described(Details(temperature, candidates=True))
        return best_candidates(fields, rows, bases, branch, count, floor)

    def _described(self, details: Details) -> Fields:
        """Return the fields of all kept tokens; those that the graph did not compute it computes
        from now on.
        """
        if self.work.details.include(details):
            self._read()
            table = [self.work.table[row.slot, self._columns(row), FIELDS:] for row in self.rows]
            return np.concatenate(table)
        self.work.executor.ask_for(details)
        with torch.inference_mode():
            return details_of(self.logits, details).double().cpu().numpy()

    def _read(self) -> None:
        self.launch()
        self.work.read()
