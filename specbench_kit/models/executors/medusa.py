"""An executor for Medusa heads, which compute all tokens of a block from one hidden state of the
target.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.drafts.reduced import expand_logits
from specbench_kit.models.executors.base import Executor, Forward, Row, executors
from specbench_kit.models.heads.medusa import MedusaModel


@executors.register("medusa")
class MedusaExecutor(Executor):
    """Runs Medusa heads on any device. They read no text: a row's tokens only say how many
    positions it drafts.
    """

    def __init__(
        self, model: MedusaModel, slots: int, capacity: int, vocabulary: int | None
    ) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        self.model = model
        self.reads = (model.config.depth,)
        self._tokens = model.tokens
        self._states = torch.zeros(
            slots, model.config.hidden_size, dtype=model.dtype, device=model.device
        )

    @classmethod
    def supports(cls, model: Any) -> bool:
        return isinstance(model, MedusaModel)

    def with_slots(self, slots: int, capacity: int) -> "MedusaExecutor":
        return MedusaExecutor(self.model, slots, capacity, self.vocabulary)

    def keep_state(self, slot: int, state: Tensor) -> None:
        """Keep the target's hidden state [width] of the token before the one that a slot drafts
        from.
        """
        self._states[slot] = state.to(self._states)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        """Return the logits of the first `keep` heads of every row's slot; heads have no hidden
        states to return.
        """
        assert not layers
        states = self._states[[row.slot for row in rows]]
        logits = self.model(states, max(row.keep for row in rows))
        full = expand_logits(logits, self._tokens, self.model.config.vocab_size)[
            ..., : self.vocabulary
        ]
        return Forward([full[index, : row.keep] for index, row in enumerate(rows)])

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """Do nothing: heads have no KV."""

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return slots * self._states.shape[-1] * self._states.element_size()
