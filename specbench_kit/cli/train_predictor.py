"""`skit train-predictor`: rejection predictors for a pair of models, and what they are worth."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, not_saved, say, tell_report
from specbench_kit.option import DECODING, DEPLOYMENT, OUTPUT, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.training.run import Outcome
    from specbench_kit.training.settings import Settings

TRAINING = "Training"
LIMIT = 200
"""Prompts that take a few minutes on two cores."""


def train_predictor(
    dataset: options.DatasetOption = "gsm8k",
    limit: Annotated[int | None, typer.Option(help="Number of prompts, drawn by --seed.", rich_help_panel=RUN)] = LIMIT,
    data_dir: options.DataDirOption = None,
    sample: options.SampleOption = True,
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace of `skit record` to train on, instead of recording.", rich_help_panel=RUN),
    ] = None,
    target: options.TargetOption = "bundled",
    draft: options.DraftOption = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    max_draft: Annotated[
        int | None, typer.Option(help="Longest draft; 8, or what the trace holds.", rich_help_panel=DECODING)
    ] = None,
    families: Annotated[
        str, typer.Option(help="Predictor families, separated by commas.", rich_help_panel=TRAINING)
    ] = "all",
    features: Annotated[
        str,
        typer.Option(help="Features, separated by commas; draft_position may be added.", rich_help_panel=TRAINING),
    ] = "confidence,entropy,margin,logit_std",
    trials: Annotated[int, typer.Option(help="Hyper-parameter trials per family.", rich_help_panel=TRAINING)] = 12,
    operating_point: Annotated[
        str,
        typer.Option(help="What thresholds aim at: throughput, fpr=RATE or balanced.", rich_help_panel=TRAINING),
    ] = "throughput",
    seed: Annotated[
        int, typer.Option(help="Seed of prompts drawn, their split, and training.", rich_help_panel=TRAINING)
    ] = 0,
    deployment: Annotated[
        str,
        typer.Option(
            help="Whose time counts: a name from `skit list deployments`, or a .toml file. 'local' is the machine that "
            "recorded the trace.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "local",
    name: Annotated[
        str | None,
        typer.Option(help="Save as NAME-FAMILY, beside those that are named after the pair.", rich_help_panel=OUTPUT),
    ] = None,
    save_to: Annotated[
        Path | None,
        typer.Option(help="Folder for the recommended predictor; no other is saved.", rich_help_panel=OUTPUT),
    ] = None,
    force: options.ForceSaveOption = False,
    out: options.OutOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Train rejection predictors for `--method wisp` and report whether they are worth it.

    Prompts come from the dataset's train split or, where there is none, from the 30 % that a hash reserves: a
    benchmark with a predictor trained on these leaves them out.
    """
    from rich.console import Console

    from specbench_kit.deployments.loading import load
    from specbench_kit.training.settings import Settings, parse_families, parse_features

    settings = Settings(
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        limit=limit,
        trace=trace,
        max_draft=max_draft,
        families=parse_families(families),
        features=parse_features(features),
        trials=trials,
        seed=seed,
        operating_point=operating_point,
        deployment=load(deployment),
        out=out,
        name=name,
        save_to=save_to,
        force=force,
        argv=("skit", *sys.argv[1:]),
    )
    console = Console(stderr=as_json)
    outcome = _train(settings, None if trace else _load(settings, dataset, data_dir, sample, console))
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)
    if outcome.doubts:
        raise not_saved(outcome.doubts, str(outcome.folder / "predictors"))


def _load(
    settings: "Settings", dataset: str, data_dir: Path | None, sample: bool, console: "Console"
) -> "LoadedDataset":
    return load_dataset(dataset, data_dir, sample, settings.recording(), console, to_train=True)


def _train(settings: "Settings", dataset: "LoadedDataset | None") -> "Outcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.training.run import run_training

    with stepping_bar() as report:
        return run_training(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "Outcome") -> None:
    from specbench_kit.reports.predictor_terminal import print_training

    print_training(console, outcome.run, outcome.summary)
    for family, folder in outcome.saved.items():
        say(console, f"saved: {family} in {folder}")
