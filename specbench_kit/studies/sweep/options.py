"""The options of `skit sweep`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core import common_options as common
from specbench_kit.core.option import (
    DECODING,
    DEPLOYMENT,
    FIRST,
    RUN,
    Option,
    OptionValues,
    WithoutEffect,
)
from specbench_kit.core.without_effect import RECORDED, beside
from specbench_kit.serving.options import Backend

RECORDED_PROMPTS = 100
"""Prompts that are recorded first, or random ones of a synthetic pair, unless --limit gives another
number.
"""


def _synthetic(given: OptionValues) -> str:
    from specbench_kit.models.catalogue import SYNTHETIC

    return "with --target synthetic" if given.get("target") == SYNTHETIC else ""


REPLAYED = WithoutEffect(beside("trace", "--replay"), RECORDED)
SYNTHETIC_PAIR = WithoutEffect(
    _synthetic, "a synthetic pair has no weights, and answers random tokens; leave it out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The methods to compare, the axes to vary, and what to record first: 100 prompts take minutes
    on two cores.
    """

    methods: Annotated[common.Methods, FIRST]
    replaced: Annotated[
        tuple[str, ...],
        Option(
            "Values to sweep, KEY=VALUE,VALUE,..., of a deployment field (link.rtt_s), a method option (fixed-k.k) or "
            "a synthetic draft (draft.ranks). May be given several times; the default is the deployment's own list.",
            DEPLOYMENT,
            flag="set",
        ),
        FIRST,
    ] = ()
    deployment: Annotated[common.DeploymentName, FIRST] = "local"
    trace: Annotated[
        Path | None,
        Option(
            "Trace of `skit record` to replay. Default: the recorded pair qwen2.5-coder, unless an option says what to "
            "record first.",
            RUN,
            flag="replay",
        ),
        FIRST,
    ] = None
    limit: Annotated[
        int | None,
        Option(
            "Number of prompts, drawn with --seed; of a trace, the number of its first requests. The default is "
            f"{RECORDED_PROMPTS} where prompts are recorded first, and all of a trace.",
            RUN,
        ),
        FIRST,
    ] = None
    minutes: Annotated[common.Minutes, REPLAYED, SYNTHETIC_PAIR] = None
    target: Annotated[common.Target, FIRST, REPLAYED] = "auto"
    draft: Annotated[common.Draft, FIRST, REPLAYED] = "auto"
    device: Annotated[common.TorchDevice, REPLAYED, SYNTHETIC_PAIR] = "auto"
    dtype: Annotated[common.Dtype, REPLAYED, SYNTHETIC_PAIR] = "auto"
    executor: Annotated[common.ExecutorName, REPLAYED, SYNTHETIC_PAIR] = "auto"
    max_new_tokens: Annotated[common.MaxNewTokens, REPLAYED] = 128
    max_draft: Annotated[
        int,
        Option("Number of draft tokens recorded at every position.", DECODING),
        FIRST,
        REPLAYED,
        SYNTHETIC_PAIR,
    ] = 8
    batch_size: common.BatchSize = 1
    seed: common.Seed = 0
    jobs: Annotated[
        int,
        Option("Number of processes that work on points side by side; -1 uses every core.", RUN),
    ] = 1
    backend: Annotated[
        Backend,
        Option(
            "Where points are worked on: processes of this machine, or a running ray cluster.", RUN
        ),
    ] = "processes"
    resume: common.Resume = False
    out: Annotated[common.Out, FIRST] = Path("results")
