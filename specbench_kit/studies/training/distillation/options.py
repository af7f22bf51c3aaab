"""The options of `skit train-head` and `skit train-draft`, each declared once. Imports nothing
heavy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import DECODING, FIRST, OUTPUT, RUN, Option, WithoutEffect
from specbench_kit.core.without_effect import OWN_ANSWERS, beside

TRAINING = "Training"


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the numbers of a comma-separated list."""
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise SkitError(f"--layers takes numbers separated by commas, not '{text}'") from error


def require_same(folder: Path, **values: tuple[object, object]) -> None:
    """Raise SkitError if an option, given by its name with the value of the draft that is continued
    from `folder`, was given another value; None leaves it as it is.
    """
    for name, (given, found) in values.items():
        option = f"--{name.replace('_', '-')}"
        require(
            given is None or given == found,
            f"the draft in '{folder}' has {option} {found}, not {given}: leave out {option} or train without --resume",
        )


def require_minimum(**minima: tuple[float | None, float]) -> None:
    """Raise SkitError if a value, given with its minimum by the name of its option, is too
    small.
    """
    for name, (value, minimum) in minima.items():
        option = f"--{name.replace('_', '-')}"
        require(
            value is None or value >= minimum, f"{option} must be at least {minimum}, not {value}"
        )


TRACED = WithoutEffect(beside("trace"), OWN_ANSWERS)
TIMED = WithoutEffect(beside("minutes"), "training ends with that time; leave out one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPromptOptions:
    """The prompts that the target answers, of one dataset or of several in equal shares."""

    datasets: Annotated[
        tuple[str, ...],
        Option(
            "Dataset or prompt file whose training prompts the target answers; may be given several times.",
            RUN,
            flag="dataset",
        ),
        FIRST,
        TRACED,
    ] = ("gsm8k",)
    all_prompts: Annotated[
        bool,
        Option(
            "Train on all prompts of the datasets and files, not on those reserved for training alone; benchmarks on "
            "them then have seen prompts, which they name.",
            RUN,
        ),
        TRACED,
    ] = False
    data_dir: Annotated[common.DataDir, TRACED] = None
    sample: Annotated[common.Sample, TRACED] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings:
    """The target that a draft learns from, its answers, and the time that all of it may take."""

    limit: Annotated[
        int | None,
        Option(
            "Number of prompts, drawn with --seed (default: 2000, or as many as --minutes allows).",
            RUN,
        ),
        FIRST,
        TRACED,
    ] = None
    trace: Annotated[
        Path | None,
        Option("Trace of `skit record` to train on, instead of answering prompts.", RUN),
        FIRST,
    ] = None
    target: Annotated[common.Target, FIRST] = "auto"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: Annotated[common.MaxNewTokens, TRACED] = 160
    batch_size: Annotated[int, Option("Number of prompts answered together.", DECODING), TRACED] = (
        32
    )
    sampled_share: Annotated[
        float,
        Option(
            "Share of the answers that are sampled, at temperatures from 0.7 to 1; others are greedy.",
            TRAINING,
        ),
        TRACED,
    ] = 0.5
    minutes: Annotated[
        float | None,
        Option(
            "Time for everything, answers included: training ends in time with the best weights so far.",
            TRAINING,
        ),
        FIRST,
    ] = None
    answer_minutes: Annotated[
        float | None,
        Option(
            "Part of --minutes in which prompts are answered; 0 uses the kept answers alone (default: half).",
            TRAINING,
        ),
        TRACED,
    ] = None
    resume: Annotated[
        bool,
        Option(
            "Continue from the draft in the output folder, finished or interrupted; answers are always continued.",
            TRAINING,
        ),
        FIRST,
    ] = False
    vocabulary: Annotated[
        int | None,
        Option(
            "Number of tokens that can be drafted, the most frequent of the answers (default: by coverage and cost).",
            TRAINING,
        ),
        FIRST,
    ] = None
    answers: Annotated[
        Path | None,
        Option(
            "Folder in which the target's answers are kept (default: in the user's folder).", OUTPUT
        ),
    ] = None
    save_to: Annotated[
        Path | None,
        Option(
            "Folder for the result (default: the target's folder in the user's folder).", OUTPUT
        ),
        FIRST,
    ] = None
    seed: Annotated[
        int, Option("Seed for drawing prompts, sampling answers and training.", TRAINING)
    ] = 0
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_minimum(
            max_new_tokens=(self.max_new_tokens, 2),
            batch_size=(self.batch_size, 1),
            vocabulary=(self.vocabulary, 1),
            limit=(self.limit, 1),
            minutes=(self.minutes, 0.1),
            answer_minutes=(self.answer_minutes, 0),
        )
        require(
            0 <= self.sampled_share <= 1,
            f"--sampled-share must be from 0 to 1, not {self.sampled_share}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The hyper-parameters that all trainings have."""

    epochs: Annotated[
        int,
        Option("Number of passes over all answers, where --minutes does not end it.", TRAINING),
        TIMED,
    ] = 4
    tokens_per_batch: Annotated[
        int, Option("Tokens per training step, prompts included.", TRAINING)
    ] = 2048

    def __post_init__(self) -> None:
        require_minimum(epochs=(self.epochs, 1), tokens_per_batch=(self.tokens_per_batch, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe(Recipe):
    """The hyper-parameters of a draft model's training."""

    learning_rate: Annotated[float, Option("Peak learning rate.", TRAINING)] = 3e-3
    weight_decay: Annotated[float, Option("Weight decay of AdamW.", TRAINING)] = 0.03
    best_token_weight: Annotated[
        float,
        Option(
            "Extra weight of the target's best token beside its whole distribution in the loss.",
            TRAINING,
        ),
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
        Option(
            "Layers of the target, counted from 0, that the draft model consists of.",
            TRAINING,
            parse=parse_layers,
        ),
        FIRST,
    ] = (0, 1)
    in_8_bits: Annotated[
        bool, Option("Store the matrices in 8 bits; they are computed with in bf16.", OUTPUT)
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecipe(Recipe):
    """The hyper-parameters of a head's training."""

    steps: Annotated[
        int,
        Option(
            "Tokens drafted in a row in training, from an EAGLE head's own states; the number of Medusa heads.",
            TRAINING,
        ),
    ] = 4
    decay: Annotated[
        float,
        Option("Loss weight of each of the --steps relative to the step before it.", TRAINING),
    ] = 0.8
    learning_rate: Annotated[
        float, Option("Peak learning rate of the weight matrices.", TRAINING)
    ] = 4e-3

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        require_minimum(steps=(self.steps, 1))
        require(
            self.decay > 0 and self.learning_rate > 0, "--decay and --learning-rate must be above 0"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrainingSettings(DistillationSettings):
    """The target of a head and its training data; without `layers` the head reads those that the
    format prescribes.
    """

    kind: Annotated[
        Literal["eagle", "medusa"],
        Option(
            "One layer that drafts token after token (eagle), or a small head per token of a block (medusa).",
            TRAINING,
        ),
    ] = "eagle"

    layers: Annotated[
        tuple[int, ...],
        Option(
            "Three layers of the target that the head reads, such as 2,6,9 (default: those of the EAGLE-3 format).",
            TRAINING,
            parse=parse_layers,
        ),
        FIRST,
    ] = ()
    output_rows: Annotated[
        Literal["trained", "target"] | None,
        Option(
            "Output matrix of an EAGLE head: trained, or the target's own rows of the drafted tokens (target), which "
            "take no place in the file and need no answers to learn from (default: trained, or that of the head that "
            "--resume continues).",
            TRAINING,
        ),
    ] = None
    inner: Annotated[
        int | None,
        Option(
            "Width of an EAGLE head's feed-forward part, which is most of what a step reads (default: the target's "
            "own). A narrow one costs little acceptance where answers to learn from are few.",
            TRAINING,
        ),
    ] = None

    in_4_bits: Annotated[
        bool,
        Option(
            "Store an EAGLE head's matrices in 4 bits, and nothing that is the target's own: a third of the room, "
            "in a form that only this kit reads.",
            OUTPUT,
        ),
    ] = False

    def __post_init__(self) -> None:
        DistillationSettings.__post_init__(self)
        require(
            self.kind == "eagle" or not (self.in_4_bits or self.output_rows),
            "--in-4-bits and --output-rows have no effect with --kind medusa",
        )
        require(
            self.inner is None or (self.inner > 0 and self.inner % 16 == 0),
            f"--inner must be a multiple of 16, not {self.inner}",
        )
        require(
            self.inner is None or not self.in_4_bits or self.inner % 32 == 0,
            f"--inner must be a multiple of 32 with --in-4-bits, not {self.inner}",
        )
        require(
            self.kind == "eagle" or self.inner is None, "--inner has no effect with --kind medusa"
        )
        require(
            self.kind == "eagle" or not self.layers,
            "--layers has no effect with --kind medusa, which reads the last one",
        )
        require(
            len(self.layers) in (0, 3),
            f"--layers takes three layers of the target, not {len(self.layers)}",
        )
