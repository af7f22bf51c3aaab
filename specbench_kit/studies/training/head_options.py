"""The options of `skit train-head`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from specbench_kit.core.errors import require
from specbench_kit.core.option import Option
from specbench_kit.studies.training.distillation.options import (
    TRAINING,
    DistillationSettings,
    Recipe,
    parse_layers,
    require_minimum,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecipe(Recipe):
    """The hyper-parameters of a head's training."""

    steps: Annotated[
        int, Option("Number of consecutive tokens that the head drafts from its own states in training.", TRAINING)
    ] = 4
    decay: Annotated[float, Option("Loss weight of each of the --steps relative to the step before it.", TRAINING)] = (
        0.8
    )
    learning_rate: Annotated[float, Option("Peak learning rate of the weight matrices.", TRAINING)] = 4e-3

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        require_minimum(steps=(self.steps, 1))
        require(self.decay > 0 and self.learning_rate > 0, "--decay and --learning-rate must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrainingSettings(DistillationSettings):
    """The target of a head and its training data; without `layers` the head reads those that the format prescribes."""

    layers: Annotated[
        tuple[int, ...],
        Option(
            "Three layers of the target that the head reads, such as 2,6,9 (default: those of the EAGLE-3 format).",
            TRAINING,
            parse=parse_layers,
        ),
    ] = ()

    def __post_init__(self) -> None:
        DistillationSettings.__post_init__(self)
        require(len(self.layers) in (0, 3), f"--layers takes three layers of the target, not {len(self.layers)}")
