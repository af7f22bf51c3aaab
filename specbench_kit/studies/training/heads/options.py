"""The options of `skit train-head`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import DECODING, OUTPUT, RUN, Option

TRAINING = "Training"


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the numbers of a comma-separated list."""
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise SkitError(f"--layers takes numbers separated by commas, not '{text}'") from error


def _require_minimum(**minima: tuple[int | None, int]) -> None:
    """Raise SkitError if a value, given with its minimum by the name of its option, is too small."""
    for name, (value, minimum) in minima.items():
        option = f"--{name.replace('_', '-')}"
        require(value is None or value >= minimum, f"{option} must be at least {minimum}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The hyper-parameters of a head's training."""

    epochs: Annotated[int, Option("Number of passes over all answers.", TRAINING)] = 4
    steps: Annotated[
        int, Option("Number of consecutive tokens that the head drafts from its own states in training.", TRAINING)
    ] = 4
    decay: Annotated[float, Option("Loss weight of each of the --steps relative to the step before it.", TRAINING)] = (
        0.8
    )
    learning_rate: Annotated[float, Option("Peak learning rate of the weight matrices.", TRAINING)] = 4e-3
    tokens_per_batch: Annotated[int, Option("Tokens per training step, prompts included.", TRAINING)] = 2048
    seed: Annotated[int, Option("Seed for drawing prompts and training.", TRAINING)] = 0

    def __post_init__(self) -> None:
        _require_minimum(epochs=(self.epochs, 1), steps=(self.steps, 1), tokens_per_batch=(self.tokens_per_batch, 1))
        require(self.decay > 0 and self.learning_rate > 0, "--decay and --learning-rate must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrainingSettings:
    """The target of a head and its training data; without `layers` the head reads those that the format prescribes."""

    limit: Annotated[int | None, Option("Number of prompts, drawn with --seed.", RUN)] = 2000
    trace: Annotated[Path | None, Option("Trace of `skit record` to train on, instead of answering prompts.", RUN)] = (
        None
    )
    target: common.Target = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    batch_size: Annotated[int, Option("Number of prompts answered together.", DECODING)] = 32
    vocabulary: Annotated[
        int, Option("Number of tokens that the head can draft: the most frequent tokens of the answers.", TRAINING)
    ] = 32000
    layers: Annotated[
        tuple[int, ...],
        Option(
            "Three layers of the target that the head reads, such as 2,6,9 (default: those of the EAGLE-3 format).",
            TRAINING,
            parse=parse_layers,
        ),
    ] = ()
    save_to: Annotated[
        Path | None, Option("Folder for the head (default: the target's folder among the user's heads).", OUTPUT)
    ] = None
    recipe: Recipe = field(default_factory=Recipe)
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_minimum(
            max_new_tokens=(self.max_new_tokens, 2),
            batch_size=(self.batch_size, 1),
            vocabulary=(self.vocabulary, 1),
            limit=(self.limit, 1),
        )
        require(len(self.layers) in (0, 3), f"--layers takes three layers of the target, not {len(self.layers)}")
