"""The options of `skit train-draft`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from specbench_kit.core.errors import require
from specbench_kit.core.option import OUTPUT, Option
from specbench_kit.studies.training.distillation.options import TRAINING, DistillationSettings, Recipe, parse_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe(Recipe):
    """The hyper-parameters of a draft model's training."""

    learning_rate: Annotated[float, Option("Peak learning rate.", TRAINING)] = 3e-3
    weight_decay: Annotated[float, Option("Weight decay of AdamW.", TRAINING)] = 0.03
    best_token_weight: Annotated[
        float, Option("Extra weight of the target's best token beside its whole distribution in the loss.", TRAINING)
    ] = 0.5

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        require(
            self.learning_rate > 0 and self.weight_decay >= 0 and self.best_token_weight >= 0,
            "--learning-rate must be above 0, --weight-decay and --best-token-weight at least 0",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTrainingSettings(DistillationSettings):
    """The target of a draft model, the layers that it starts from, and its training data."""

    layers: Annotated[
        tuple[int, ...],
        Option("Layers of the target, counted from 0, that the draft model consists of.", TRAINING, parse=parse_layers),
    ] = (0, 1)
    in_8_bits: Annotated[bool, Option("Store the matrices in 8 bits; they are computed with in bf16.", OUTPUT)] = False
