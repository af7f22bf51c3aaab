"""`skit train-head`: a feature head for a target."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit import common_options as common
from specbench_kit.bench.settings import Settings as Decoding
from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, say
from specbench_kit.cli.declared import Given, options_of, part
from specbench_kit.errors import SkitError
from specbench_kit.option import DECODING, OUTPUT, RUN, Option

if TYPE_CHECKING:
    from specbench_kit.training.heads.run import Settings

TRAINING = "Training"


def layers_of(text: str) -> tuple[int, ...]:
    """Numbers that commas separate."""
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise SkitError(f"--layers takes numbers separated by commas, not '{text}'") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a head is trained on, and how."""

    dataset: common.DrawnDataset = "gsm8k"
    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed; all if left out.", RUN)] = 2000
    data_dir: common.DataDir = None
    sample: common.Sample = True
    trace: Annotated[Path | None, Option("A trace of `skit record` to train on, instead of answering.", RUN)] = None
    target: common.Target = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    batch_size: Annotated[int, Option("Prompts answered together.", DECODING)] = 32
    epochs: Annotated[int, Option("Times that every answer is learned from.", TRAINING)] = 4
    steps: Annotated[int, Option("Tokens in a row that it learns to draft on its own states.", TRAINING)] = 4
    decay: Annotated[float, Option("What each of them counts of the one before it.", TRAINING)] = 0.8
    learning_rate: Annotated[float, Option("Highest step of the layer's matrices.", TRAINING)] = 4e-3
    tokens_per_batch: Annotated[int, Option("Tokens of a training step, prompts included.", TRAINING)] = 2048
    vocabulary: Annotated[int, Option("Tokens that it can draft: the commonest of the answers.", TRAINING)] = 32000
    layers: Annotated[
        tuple[int, ...], Option("Layers of the target that it reads, as in 2,6,9.", TRAINING, parse=layers_of)
    ] = ()
    seed: Annotated[int, Option("Seed of prompts drawn, and training.", TRAINING)] = 0
    save_to: Annotated[Path | None, Option("Folder for the head; else it becomes the target's own.", OUTPUT)] = None

    def settings(self) -> "Settings":
        """Of the training."""
        from specbench_kit.training.heads.fit import Recipe
        from specbench_kit.training.heads.run import Settings

        asked = asdict(self)
        recipe = Recipe(**part(Recipe, asked))
        return Settings(**part(Settings, asked), recipe=recipe, argv=("skit", *sys.argv[1:]))

    def decoding(self) -> Decoding:
        """Of the answers."""
        shared = {name: value for name, value in part(Decoding, asdict(self)).items() if name != "out"}
        return Decoding(methods=("autoregressive",), **shared)


@options_of(Training)
def train_head(given: Given, as_json: options.JsonOption = False) -> None:
    """Train a feature head for `--method eagle` and `drafter=head` on the target's own greedy answers.

    Prompts come from the dataset's train split or, where there is none, from the 30 % that a hash reserves.
    """
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.training.heads import run

    asked = Training(**given)
    settings, console = asked.settings(), Console(stderr=as_json)
    dataset = None
    if asked.trace is None:
        dataset = load_dataset(asked.dataset, asked.data_dir, asked.sample, asked.decoding(), console, to_train=True)
    with stepping_bar() as report:
        trained = run.train_head(settings, dataset, report)
    agreement = ", ".join(f"{100 * share:.1f}" for share in trained.summary["agreement"])
    say(console, f"agrees with the target on answers set apart, token by token in a row: {agreement} %")
    say(console, f"head: {trained.folder}")
    if as_json:
        print(json.dumps({"run_dirs": [str(trained.folder)], "summary": trained.summary}, allow_nan=False))
