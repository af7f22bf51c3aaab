"""The one narrow door to a model's forward pass."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specbench_kit.errors import SkitError
from specbench_kit.models.kv import KVShape, KVWindow
from specbench_kit.registry import Registry


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """One padded batch.

    `tokens` and `positions` are [rows, width]; `mask` is additive, [rows, 1, width, kv.length]; logits are
    wanted from column `first` on. `key_positions` [rows, kv.length] is set where a model with sliding windows
    needs to know how far back a key lies.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    kv: KVWindow
    first: int
    key_positions: Tensor | None


class Executor(ABC):
    """Runs one model; everything above it sees only this class."""

    priority = 0
    """Among executors that support a model, the highest priority is taken."""
    needs_key_positions = False

    @classmethod
    @abstractmethod
    def supports(cls, model: Any) -> bool:
        """Whether this executor computes exactly what the transformers model computes."""

    @abstractmethod
    def __init__(self, model: Any) -> None: ...

    @property
    @abstractmethod
    def kv_shape(self) -> KVShape:
        """Size of one token's KV."""

    @abstractmethod
    def forward(self, batch: ForwardInput) -> Tensor:
        """Write the new tokens' KV through `batch.kv` and return logits [rows, width - first, vocabulary]."""


executors: Registry[type[Executor]] = Registry("executor", "specbench_kit.models.executors")


def make_executor(model: Any, name: str | None = None) -> Executor:
    """The fastest executor that supports the model, or the named one."""
    if name is not None:
        return executors.get(name)(model)
    able = [executor for executor in executors.all().values() if executor.supports(model)]
    if not able:
        raise SkitError(
            f"models of type '{model.config.model_type}' cannot be run: every layer must attend to a KV cache, "
            "with explicit positions; use another model"
        )
    return max(able, key=lambda executor: executor.priority)(model)
