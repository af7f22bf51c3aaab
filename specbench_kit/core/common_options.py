"""Options that several commands share, by what they are called everywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.option import DECODING, DEPLOYMENT, MODELS, OUTPUT, RUN, Option

DatasetName = Annotated[
    str,
    Option(
        "A name from `skit list datasets`, hub:owner/name?split=test&prompt=question, or a .jsonl or .parquet file.",
        RUN,
        flag="dataset",
    ),
]
DataDir = Annotated[Path | None, Option("Local datasets; SKIT_DATA_DIR if left out.", RUN)]
Sample = Annotated[bool, Option("Whether a bundled sample may stand in for the dataset.", RUN)]
Target = Annotated[str, Option("Hugging Face id, local folder, 'bundled' or 'synthetic'.", MODELS)]
Draft = Annotated[str, Option("Hugging Face id, local folder, 'bundled' or 'synthetic:ranks=0.8+0.1,...'.", MODELS)]
TorchDevice = Annotated[str, Option("auto, cpu, cuda or cuda:N.", MODELS, flag="device")]
Dtype = Annotated[str, Option("auto, float32, bfloat16 or float16.", MODELS)]
DeviceMap = Annotated[
    str, Option("Spread weights over all devices, as transformers does: auto, balanced or sequential.", MODELS)
]
MaxMemory = Annotated[str, Option("What --device-map may use of each device, as in 0=20GiB,cpu=60GiB.", MODELS)]
MaxNewTokens = Annotated[int, Option("Longest output.", DECODING)]
BatchSize = Annotated[int, Option("Requests decoded together.", DECODING)]
Seed = Annotated[int, Option("Seed of prompts drawn and tokens sampled.", DECODING)]
Limit = Annotated[int | None, Option("Number of prompts, drawn by --seed; all if left out.", RUN)]
Resume = Annotated[bool, Option("Go on with the newest unfinished run of these settings.", OUTPUT)]
DeploymentName = Annotated[
    str,
    Option(
        "Whose time: a name from `skit list deployments`, or a .toml file. 'local' is measured.",
        DEPLOYMENT,
        flag="deployment",
    ),
]
Out = Annotated[Path, Option("Folder that run directories are made in.", OUTPUT)]
Strict = Annotated[bool, Option("End with exit code 1 where a request failed.", OUTPUT)]
Force = Annotated[bool, Option("Save what was timed on a disturbed machine all the same.", OUTPUT)]

Replaced = Annotated[
    tuple[str, ...],
    Option(
        "Replace a field of the deployment, as in link.rtt_s=0.04; may be given several times.", DEPLOYMENT, flag="set"
    ),
]
Methods = Annotated[
    tuple[str, ...], Option("name or name:key=value,...; may be given several times.", RUN, flag="method")
]
RunFolder = Annotated[Path, Option("A run directory of `skit bench`, or a folder that holds one.", argument=True)]
RunFolders = Annotated[tuple[Path, ...], Option("Run directories, or folders that hold some.", argument=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """What is asked."""

    dataset: DatasetName = "gsm8k"
    data_dir: DataDir = None
    sample: Sample = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """Whose time is taken."""

    deployment: DeploymentName = "local"
    replaced: Replaced = ()
