"""CUDA graphs by shape: each is captured when its shape first occurs, and replayed from then on."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor

from specbench_kit.models.executors.graph_inputs import GraphInputs

MOST_GRAPHS = 96
"""Graphs of an executor; the one that was not used for longest makes room for another."""


class Results:
    """What the last replay of a graph computed: `logits`, and `hidden` states by layer.

    They lie in the memory of the graph until its next replay. What is handed out is a copy, made when it is first asked
    for, as a view of that memory would change later in the hands of whoever holds it.
    """

    def __init__(self, logits: Tensor, hidden: dict[int, Tensor]) -> None:
        self._logits, self._hidden = logits, hidden

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
        """Compute once more; results of the last time that somebody still refers to are copied before."""
        before = self.last() if self.last is not None else None
        if before is not None:
            before.keep()
        self.graph.replay()
        if self.inputs is not None:
            self.inputs.was_read.record(torch.cuda.current_stream(self.logits.device))
        results = Results(self.logits, self.hidden)
        self.last = ref(results)
        return results


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
        before = [tensor.clone() for tensor in self._state]
        # Libraries set themselves up in the first run of a shape, which a capture does not allow. What this run writes
        # into KV, the replay writes once more.
        compute()
        for tensor, content in zip(self._state, before, strict=True):
            tensor.copy_(content)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]  # a handle that torch names by a new type
            logits, hidden = compute()
        captured = self._graphs[key] = CapturedGraph(graph, logits, hidden, inputs)
        return captured
