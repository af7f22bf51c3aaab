"""The options of `skit sweep`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core import common_options as common
from specbench_kit.core.option import DECODING, DEPLOYMENT, RUN, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The methods to compare, the axes to vary, and what to record first: 100 prompts take minutes on two cores."""

    methods: common.Methods
    replaced: Annotated[
        tuple[str, ...],
        Option(
            "KEY=VALUE,VALUE,... of the deployment (link.rtt_s), of a method (fixed-k.k) or of a synthetic draft "
            "(draft.ranks); may be given several times. Default: the values that the deployment proposes.",
            DEPLOYMENT,
            flag="set",
        ),
    ] = ()
    deployment: common.DeploymentName = "local"
    trace: Annotated[
        Path | None, Option("Trace of `skit record` to replay, in place of recording one.", RUN, flag="replay")
    ] = None
    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed.", RUN)] = 100
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    max_draft: Annotated[int, Option("Draft tokens to record at every offset.", DECODING)] = 8
    batch_size: common.BatchSize = 1
    seed: common.Seed = 0
    out: common.Out = Path("results")
