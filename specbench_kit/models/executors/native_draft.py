"""Runs draft models with a reduced vocabulary on a CPU in one call per forward."""

from collections.abc import Sequence
from typing import Any

from specbench_kit.models.drafts.reduced import is_reduced
from specbench_kit.models.executors.base import Forward, Row, executors
from specbench_kit.models.executors.native import NativeExecutor
from specbench_kit.models.executors.native_head import ReducedForward
from specbench_kit.models.executors.native_weights import is_llama_like


@executors.register("native-draft")
class NativeDraftExecutor(NativeExecutor):
    """Runs draft models of `skit train-draft` with the extension of `native`."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, None)
        self.vocabulary, self._whole = vocabulary, model.lm_head.total
        self._tokens, self._token_ids = model.lm_head.tokens, model.lm_head.tokens.tolist()

    @classmethod
    def refusal(cls, model: Any) -> str:
        computed = is_reduced(model) and model.device.type == "cpu" and is_llama_like(model)
        return cls.missing() or ("" if computed else "runs draft models of `skit train-draft` on a CPU")

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        forward = self._forward(rows, layers, (None, None))
        return ReducedForward(forward, self._token_ids, self._tokens, self._whole, self.vocabulary)
