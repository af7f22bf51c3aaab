"""The options of `skit train-head`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import DECODING, OUTPUT, RUN, Option

TRAINING = "Training"


def layers_of(text: str) -> tuple[int, ...]:
    """Numbers that commas separate."""
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise SkitError(f"--layers takes numbers separated by commas, not '{text}'") from error


def _require_least(settings: object, least: dict[str, int]) -> None:
    for name, lowest in least.items():
        value = getattr(settings, name)
        if value is not None and value < lowest:
            raise SkitError(f"--{name.replace('_', '-')} must be at least {lowest}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a head is trained; `steps` in a row are drafted, each of which counts `decay` of the one before it."""

    epochs: Annotated[int, Option("Times that every answer is learned from.", TRAINING)] = 4
    steps: Annotated[int, Option("Tokens in a row that it learns to draft on its own states.", TRAINING)] = 4
    decay: Annotated[float, Option("What each of them counts of the one before it.", TRAINING)] = 0.8
    learning_rate: Annotated[float, Option("Highest step of the layer's matrices.", TRAINING)] = 4e-3
    tokens_per_batch: Annotated[int, Option("Tokens of a training step, prompts included.", TRAINING)] = 2048
    seed: Annotated[int, Option("Seed of prompts drawn, and training.", TRAINING)] = 0

    def __post_init__(self) -> None:
        _require_least(self, {"epochs": 1, "steps": 1, "tokens_per_batch": 1})
        if not (self.decay > 0 and self.learning_rate > 0):
            raise SkitError("--decay and --learning-rate must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrainingSettings:
    """What a head is trained for and from; without `layers` it reads those that the format takes."""

    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed; all if left out.", RUN)] = 2000
    trace: Annotated[Path | None, Option("A trace of `skit record` to train on, instead of answering.", RUN)] = None
    target: common.Target = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    batch_size: Annotated[int, Option("Prompts answered together.", DECODING)] = 32
    vocabulary: Annotated[int, Option("Tokens that it can draft: the commonest of the answers.", TRAINING)] = 32000
    layers: Annotated[
        tuple[int, ...], Option("Layers of the target that it reads, as in 2,6,9.", TRAINING, parse=layers_of)
    ] = ()
    save_to: Annotated[Path | None, Option("Folder for the head; else it becomes the target's own.", OUTPUT)] = None
    recipe: Recipe = field(default_factory=Recipe)
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_least(self, {"max_new_tokens": 2, "batch_size": 1, "vocabulary": 1, "limit": 1})
        if self.layers and len(self.layers) != 3:
            raise SkitError(f"--layers takes three layers of the target, not {len(self.layers)}")
