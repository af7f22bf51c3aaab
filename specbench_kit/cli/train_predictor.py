"""`skit train-predictor`: rejection predictors for a pair of models, and what they are worth."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit import common_options as common
from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, not_saved, say, tell_report
from specbench_kit.cli.declared import Given, options_of, part
from specbench_kit.option import DECODING, DEPLOYMENT, OUTPUT, RUN, Option

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.training.run import Outcome
    from specbench_kit.training.settings import Settings

TRAINING = "Training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained on what: 200 prompts take a few minutes on two cores."""

    dataset: common.DrawnDataset = "gsm8k"
    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed.", RUN)] = 200
    data_dir: common.DataDir = None
    sample: common.Sample = True
    trace: Annotated[Path | None, Option("A trace of `skit record` to train on, instead of recording.", RUN)] = None
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    max_draft: Annotated[int | None, Option("Longest draft; 8, or what the trace holds.", DECODING)] = None
    families: Annotated[str, Option("Predictor families, separated by commas.", TRAINING)] = "all"
    features: Annotated[str, Option("Features, separated by commas; draft_position may be added.", TRAINING)] = (
        "confidence,entropy,margin,logit_std"
    )
    trials: Annotated[int, Option("Hyper-parameter trials per family.", TRAINING)] = 12
    operating_point: Annotated[str, Option("What thresholds aim at: throughput, fpr=RATE or balanced.", TRAINING)] = (
        "throughput"
    )
    seed: Annotated[int, Option("Seed of prompts drawn, their split, and training.", TRAINING)] = 0
    repeats: Annotated[int, Option("Splits and seeds that say how certain the outcome is; 1 is none.", TRAINING)] = 5
    deployments: Annotated[
        tuple[str, ...],
        Option(
            "Whose time counts: a name from `skit list deployments`, or a .toml file. 'local' is the machine that "
            "recorded the trace. May be given several times: the report is about the first, and predictors keep a "
            "threshold for each.",
            DEPLOYMENT,
            flag="deployment",
        ),
    ] = ("local",)
    name: Annotated[str | None, Option("Save as NAME-FAMILY, beside those that are named after the pair.", OUTPUT)] = (
        None
    )
    save_to: Annotated[Path | None, Option("Folder for the recommended predictor; no other is saved.", OUTPUT)] = None
    force: common.Force = False
    out: common.Out = Path("results")

    def settings(self) -> "Settings":
        """Of the training."""
        from specbench_kit.deployments.loading import load
        from specbench_kit.training.settings import Settings, parse_families, parse_features

        first, *others = map(load, dict.fromkeys(self.deployments))
        read = {
            "families": parse_families(self.families),
            "features": parse_features(self.features),
            "deployment": first,
            "elsewhere": tuple(others),
        }
        return Settings(**{**part(Settings, asdict(self)), **read}, argv=("skit", *sys.argv[1:]))


@options_of(Training)
def train_predictor(given: Given, as_json: options.JsonOption = False) -> None:
    """Train rejection predictors for `--method wisp` and report whether they are worth it.

    Prompts come from the dataset's train split or, where there is none, from the 30 % that a hash reserves: a
    benchmark with a predictor trained on these leaves them out.
    """
    from rich.console import Console

    asked = Training(**given)
    settings = asked.settings()
    console = Console(stderr=as_json)
    outcome = _train(settings, None if asked.trace else _load(settings, asked, console))
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)
    if outcome.doubts:
        raise not_saved(outcome.doubts, str(outcome.folder / "predictors"))


def _load(settings: "Settings", asked: Training, console: "Console") -> "LoadedDataset":
    return load_dataset(asked.dataset, asked.data_dir, asked.sample, settings.recording(), console, to_train=True)


def _train(settings: "Settings", dataset: "LoadedDataset | None") -> "Outcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.training.run import run_training

    with stepping_bar() as report:
        return run_training(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "Outcome") -> None:
    from specbench_kit.reports.predictor.terminal import print_training

    print_training(console, outcome.run, outcome.summary)
    for family, folder in outcome.saved.items():
        say(console, f"saved: {family} in {folder}")
