"""Measured kernels that come with the kit: one TOML file per model, card, number of cards and engine."""

from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from specbench_kit.decoding.kernel_latency import KernelTables
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Factor, Size, Text

KernelEngine = Literal["vllm", "sglang", "trtllm"]
"""The serving engines whose kernels were measured."""
FOLDER = Path(__file__).with_name("kernels")
SPREAD: tuple[float, float] = (0.93, 1.1)
"""The factors on a step between which nine of ten steps of the same model under the other engines lie."""


class MeasuredKernels(Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels of a model on some cards under an engine, and where their times come from."""

    model: Text
    device: Text
    dtype: Text
    engine: KernelEngine
    source: Text
    kernels: KernelTables
    tensor_parallel: Size = 1
    spread: tuple[Factor, Factor] = SPREAD


def file_of(model: str, device: str, engine: KernelEngine, members: int) -> Path:
    """Return the file of a model's kernels, which need not be there."""
    together = f"-tp{members}" if members > 1 else ""
    return FOLDER / f"{model}-{device}-{engine}{together}.toml"


def find_kernels(model: str, device: str, engine: KernelEngine, members: int = 1) -> MeasuredKernels | None:
    """Return the kernels of a model that come with the kit, or None."""
    path = file_of(model, device, engine, members)
    return _read(path) if path.is_file() else None


@cache
def _read(path: Path) -> MeasuredKernels:
    return cards.parse_table(MeasuredKernels, cards.read_toml(path), f"the measured kernels {path}")
