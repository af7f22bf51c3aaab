"""An executor for GPUs that computes everything in one shape, so that outputs do not depend on how tokens are split.

Kernels of a GPU round differently for different numbers of tokens. Where plain decoding and every verification run
through one captured graph, with the same padding, a token's logits are the same in all of them.
"""

from collections.abc import Sequence

import torch

from specbench_kit.models.executors.base import Forward, Row, executors
from specbench_kit.models.executors.cuda_graph import CudaGraphExecutor
from specbench_kit.models.executors.graph_inputs import NODES, Shape
from specbench_kit.models.executors.graph_work import COLUMNS, Work


@executors.register("cuda-invariant")
class InvariantExecutor(CudaGraphExecutor):
    """Replays one CUDA graph of a model on a GPU for all forwards, so that a method's outputs are plain decoding's.

    Every forward computes 64 tokens of every slot over all keys that a slot can hold, whatever it was asked for: that
    is its price, which grows with the batch. Longer rows are computed in parts of 64 tokens. Trees of more than 256
    nodes are computed as the executor `transformers` does, and are no more invariant than there.
    """

    priority = -1
    has_chains = False

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        if all(len(row.tokens) <= COLUMNS for row in rows):
            return super().forward(rows, layers)
        results = [self._in_parts(row, layers) for row in rows]
        logits = [result[0] for result in results]
        hidden = {layer: [result.hidden[layer] for result in results] for layer in layers}
        return Forward(logits, hidden)

    def _in_parts(self, row: Row, layers: Sequence[int]) -> Forward:
        """Compute one row in parts of as many tokens as the shape has columns, and return the logits of all."""
        count = len(row.tokens)
        before = len(row.parents) - count if row.parents is not None else 0
        logits = []
        hidden: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        for first in range(0, count, COLUMNS):
            end = min(first + COLUMNS, count)
            parents = row.parents[: before + end] if row.parents is not None else None
            keep = max(0, min(end - first, end - (count - row.keep)))
            # The result is read before the next part overwrites it; a part that keeps nothing has none.
            part = super().forward(
                [Row(row.slot, row.tokens[first:end], row.start + first, row.prefix, parents, keep)], layers
            )
            if keep:
                logits.append(part[0])
                for layer in layers:
                    hidden[layer].append(part.hidden[layer])
        return Forward([torch.cat(logits)], {layer: [torch.cat(states)] for layer, states in hidden.items()})

    def _shape(self, work: Work) -> Shape:
        return Shape(0, self.slots, COLUMNS, self._memory.trash + 1, NODES)
