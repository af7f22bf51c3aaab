"""An executor that replays CUDA graphs of an EAGLE head, with its chains on the card as those of
other draft models.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.executors.base import Forward, Row, executors
from specbench_kit.models.executors.cuda_graph import ROTATIONS, CudaGraphExecutor
from specbench_kit.models.executors.graph_forward import GraphComputations, GraphMemory
from specbench_kit.models.executors.graph_inputs import GraphInputs, GraphShape
from specbench_kit.models.executors.head import HeadExecutor, HeadStates, logits_of, outputs_of
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.padded import Computed, ForwardInput
from specbench_kit.models.executors.tree_rule import TreeRule
from specbench_kit.models.heads.model import HeadModel


@executors.register("cuda-graph-head")
class CudaGraphHeadExecutor(CudaGraphExecutor, HeadExecutor):
    """Replays CUDA graphs of an EAGLE head on a GPU, one per shape, as `cuda-graph` does of other
    models.

    The target's states of several requests are taken in together, before the next forward.
    """

    priority = 2
    kv_layers = HeadExecutor.kv_layers
    _given: list[tuple[int, Tensor]]
    """The target's states by slot that were not taken in yet."""

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        HeadExecutor.__init__(self, model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        if not isinstance(model, HeadModel) or model.device.type != "cuda":
            return False
        rope = getattr(model.config.layer, "rope_parameters", None) or {}
        return rope.get("rope_type", "default") in ROTATIONS

    @classmethod
    def refusal(cls, model: Any) -> str:
        return "" if cls.supports(model) else "runs EAGLE heads on a GPU: give --device cuda"

    @cached_property
    def _decoder(self) -> None:
        """Return None: a head is no decoder, and its longer prompts are launched kernel by
        kernel.
        """

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        self._take_states()
        return super().forward(rows, layers)

    def begin_trees(self, rows: Sequence[Row], rule: TreeRule, temperature: float) -> Forward:
        self._take_states()
        return super().begin_trees(rows, rule, temperature)

    def compute(self, batch: ForwardInput) -> Computed:
        return HeadExecutor.compute(self, batch)

    def add_states(self, slot: int, states: Tensor) -> None:
        self._end_chain()  # it would read the states of its tokens where they are now
        self._given.append((slot, states))

    def forget(self, slot: int) -> None:
        self._end_chain()
        self._given = [given for given in self._given if given[0] != slot]
        self.states.forget(slot)

    def _allocate(self, slots: int, capacity: int) -> None:
        super()._allocate(slots, capacity)
        self._given = []
        # The head's outputs move together with its KV.
        self.store.blocks.append(self.states.own[None, :, None])
        self._computations = _HeadComputations(
            self.model, self.states, self._memory, self.vocabulary
        )

    def _inputs(self, shape: GraphShape) -> GraphInputs:
        return _HeadInputs(shape, self._memory.trash, self.device, self.states)

    def _take_states(self) -> None:
        """Project all states that were given since the last forward, and store them."""
        given, self._given = self._given, []
        if not given:
            return
        with torch.inference_mode():
            fused = self.model.fc(torch.cat([states for _, states in given]).to(self._dtype))
            self.states.store_given([(slot, len(states)) for slot, states in given], fused)


class _HeadInputs(GraphInputs):
    """Inputs that also say where the state is that each token reads."""

    def __init__(
        self, shape: GraphShape, trash: int, device: torch.device, states: HeadStates
    ) -> None:
        super().__init__(shape, trash, device)
        self._states = states
        self._host_sources = torch.zeros(
            (shape.rows, shape.width), dtype=torch.int64, pin_memory=True
        )
        self.sources = torch.zeros((shape.rows, shape.width), dtype=torch.int64, device=device)

    def fill(self, rows: Sequence[Row], linked: Sequence[Sequence[int]]) -> None:
        super().fill(rows, linked)
        table = self._host_sources.numpy()
        for row in rows:
            table[row.slot - self.shape.first, : len(row.tokens)] = list(
                self._states.sources_of(row)
            )

    def copy(self) -> None:
        super().copy()
        self.sources.copy_(self._host_sources, non_blocking=True)


class _HeadComputations(GraphComputations):
    """What graphs capture of a head."""

    def __init__(
        self, model: HeadModel, states: HeadStates, memory: GraphMemory, vocabulary: int | None
    ) -> None:
        super().__init__(model, None, memory, vocabulary)
        self._states = states
        self._tokens = model.tokens

    def _forward(
        self,
        shape: GraphShape,
        tokens: Tensor,
        cells: Tensor,
        places: Tensor,
        mask: CompactMask,
        layers: Sequence[int] = (),
        inputs: GraphInputs | None = None,
        above: Tensor | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        slots = self._memory.slots_of(shape)
        # A further step of a chain or of a tree reads what the head said of the token before.
        sources = (
            inputs.sources
            if isinstance(inputs, _HeadInputs)
            else self._states.own_source(slots, cells - 1 if above is None else above)
        )
        kv = self._memory.window(shape, cells)
        outputs = outputs_of(
            self._model,
            tokens,
            places,
            mask.additive(self._model.dtype),
            kv,
            self._states.at(sources),
        )
        self._states.own[slots, cells] = outputs
        return logits_of(self._model, self._tokens, outputs)[..., : self._vocabulary], {}
