"""The options of `skit train-predictor`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core import common_options as common
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import (
    DECODING,
    DEPLOYMENT,
    FIRST,
    OUTPUT,
    RUN,
    Option,
    WithoutEffect,
)
from specbench_kit.core.without_effect import OWN_ANSWERS, beside

TRAINING = "Training"


def parse_features(text: str) -> tuple[str, ...]:
    """Return the features of a comma-separated list, in the order in which predictors store
    them.
    """
    from specbench_kit.predictors.base import ALL_FEATURES

    names = _parse_names(text)
    if unknown := set(names) - set(ALL_FEATURES):
        raise SkitError(f"unknown feature '{min(unknown)}'; known: {', '.join(ALL_FEATURES)}")
    if not names:
        raise SkitError(f"--features names none; known: {', '.join(ALL_FEATURES)}")
    return tuple(name for name in ALL_FEATURES if name in names)


def parse_families(text: str) -> tuple[str, ...]:
    """Return the families of a comma-separated list; nothing stands for all families, as `all`
    does.
    """
    return () if text == "all" else tuple(_parse_names(text))


def _parse_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


TRACED = WithoutEffect(beside("trace"), OWN_ANSWERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The predictors to train, and the data to train them on: 200 prompts take a few minutes on two
    cores.
    """

    limit: Annotated[
        int | None, Option("Number of prompts, drawn with --seed.", RUN), FIRST, TRACED
    ] = 200
    trace: Annotated[
        Path | None,
        Option("Trace of `skit record` to train on, instead of recording one.", RUN),
        FIRST,
    ] = None
    target: Annotated[common.Target, FIRST] = "auto"
    draft: Annotated[common.Draft, FIRST] = "auto"
    device: Annotated[common.TorchDevice, TRACED] = "auto"
    dtype: Annotated[common.Dtype, TRACED] = "auto"
    executor: Annotated[common.ExecutorName, TRACED] = "auto"
    max_new_tokens: Annotated[common.MaxNewTokens, TRACED] = 128
    max_draft: Annotated[
        int | None,
        Option(
            "Longest draft in tokens (default: 8, or the longest draft in the trace).", DECODING
        ),
    ] = None
    families: Annotated[
        tuple[str, ...],
        Option(
            "Predictor families, separated by commas (default: all).",
            TRAINING,
            parse=parse_families,
        ),
        FIRST,
    ] = ()
    features: Annotated[
        tuple[str, ...],
        Option(
            "Features of a token, separated by commas; draft_position can be added.",
            TRAINING,
            parse=parse_features,
        ),
    ] = ("confidence", "entropy", "margin", "logit_std")
    trials: Annotated[int, Option("Number of hyper-parameter trials per family.", TRAINING)] = 12
    space: Annotated[
        tuple[str, ...],
        Option(
            "Values of a hyper-parameter to try instead of the family's own: mlp.batch_size=32,64,128. May be given "
            "several times.",
            TRAINING,
        ),
    ] = ()
    operating_point: Annotated[
        str,
        Option(
            "Goal when choosing thresholds: throughput, fpr=RATE (best recall up to this false positive rate) or "
            "balanced (accuracy).",
            TRAINING,
        ),
    ] = "throughput"
    seed: Annotated[
        int, Option("Seed for drawing prompts, splitting them, and training.", TRAINING)
    ] = 0
    repeats: Annotated[
        int,
        Option(
            "Number of trainings, with different splits and seeds, for confidence intervals.",
            TRAINING,
        ),
    ] = 5
    name: Annotated[
        str | None,
        Option("Save predictors as NAME-FAMILY (default: named after the pair).", OUTPUT),
        FIRST,
    ] = None
    save_to: Annotated[
        Path | None,
        Option("Folder for the recommended predictor; no other predictor is saved.", OUTPUT),
        FIRST,
    ] = None
    force: common.Force = False
    out: Annotated[common.Out, FIRST] = Path("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDeployments:
    """The deployments to choose thresholds for, by name."""

    deployments: Annotated[
        tuple[str, ...],
        Option(
            "Deployment whose time counts: a name from `skit list deployments`, or a .toml file; 'local' is the "
            "machine that recorded the trace. May be given several times: the report is about the first, and "
            "predictors store a threshold for each.",
            DEPLOYMENT,
            flag="deployment",
        ),
        FIRST,
    ] = ("local",)
