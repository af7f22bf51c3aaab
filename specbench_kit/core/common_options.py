"""Options that several commands share, so that they have the same name and meaning everywhere."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated

from specbench_kit.core.errors import require
from specbench_kit.core.option import DECODING, DEPLOYMENT, FIRST, MODELS, OUTPUT, RUN, Option

DatasetName = Annotated[
    str,
    Option(
        "Dataset: a name from `skit list datasets`, hub:owner/name?split=test&prompt=question, or a .jsonl or "
        ".parquet file.",
        RUN,
        flag="dataset",
    ),
]
DataDir = Annotated[
    Path | None, Option("Folder with local datasets; the default is $SKIT_DATA_DIR.", RUN)
]
Sample = Annotated[bool, Option("Use a small bundled sample if the dataset is not available.", RUN)]
Target = Annotated[
    str,
    Option(
        "Target model: 'auto' for the best pair that was fetched (the toy pair 'bundled' without any), a pair from "
        "`skit list models`, a Hugging Face id, a folder, a .gguf file, or 'synthetic'.",
        MODELS,
    ),
]
Draft = Annotated[
    str,
    Option(
        "Draft model: 'auto' for the one that belongs to the target, a pair from `skit list models`, a Hugging Face "
        "id, a folder, a .gguf file, or 'synthetic:ranks=0.8+0.1,...' with the probabilities that the target's token "
        "is the draft model's 1st, 2nd, ... choice.",
        MODELS,
    ),
]
TorchDevice = Annotated[
    str,
    Option(
        "Torch device: auto, cpu, cuda or cuda:N; TARGET+DRAFT where the two run on different ones.",
        MODELS,
        flag="device",
        recorded="as found",
    ),
]
Dtype = Annotated[
    str,
    Option(
        "Number format of the weights: auto, float32, bfloat16 or float16.",
        MODELS,
        recorded="as found",
    ),
]
ExecutorName = Annotated[
    str,
    Option(
        "Executor that runs the models: auto (the fastest that computes in --dtype) or a name from `skit list "
        "executors`, such as native-bf16; two joined by + run the target and the draft models, as in auto+native-4bit.",
        MODELS,
        flag="executor",
        recorded="if changed",
    ),
]
DeviceMap = Annotated[
    str,
    Option(
        "Spread the weights over all devices, as in transformers: auto, balanced or sequential.",
        MODELS,
    ),
]
MaxMemory = Annotated[
    str, Option("Memory that --device-map may use per device, such as 0=20GiB,cpu=60GiB.", MODELS)
]
MaxNewTokens = Annotated[
    int, Option("Maximum number of output tokens per request.", DECODING, recorded="always")
]
BatchSize = Annotated[
    int, Option("Number of requests decoded together.", DECODING, recorded="always")
]
Seed = Annotated[
    int, Option("Seed for drawing prompts and sampling tokens.", DECODING, recorded="always")
]
Limit = Annotated[
    int | None,
    Option(
        "Number of prompts, drawn with --seed; of a trace, the number of its first requests, where each turn of a "
        "dialogue is a request. The default is all.",
        RUN,
        recorded="always",
    ),
]
Minutes = Annotated[
    float | None,
    Option(
        "Minutes of decoding after which no further request begins; what is done by then is reported.",
        RUN,
    ),
]
Replay = Annotated[
    Path | None,
    Option(
        "Trace to replay instead of running models: a file of `skit record`, or one of `skit list traces`.",
        RUN,
    ),
]
Resume = Annotated[bool, Option("Continue the newest unfinished run with these settings.", OUTPUT)]
DeploymentName = Annotated[
    str,
    Option(
        "Hardware and network whose time is reported: a name from `skit list deployments`, a .toml file, or a server "
        "in one line, as in server:gpu=h100,target=llama3.1-8b,drafter=eagle3; 'local' "
        "measures this machine.",
        DEPLOYMENT,
        flag="deployment",
    ),
]
Out = Annotated[Path, Option("Folder in which run directories are created.", OUTPUT)]
Strict = Annotated[bool, Option("Exit with code 1 if a request failed.", OUTPUT)]
Force = Annotated[
    bool, Option("Use the result by default even if the machine was disturbed during it.", OUTPUT)
]

ReplacedFields = Annotated[
    tuple[str, ...],
    Option(
        "Change a field of the deployment: link.rtt_s=0.04. May be given several times.",
        DEPLOYMENT,
        flag="set",
    ),
]
Methods = Annotated[
    tuple[str, ...],
    Option(
        "Drafting method: name or name:key=value,...; may be given several times.",
        RUN,
        flag="method",
    ),
]
RunFolder = Annotated[
    Path, Option("A run directory of `skit bench`, or a folder with one in it.", argument=True)
]
RunFolders = Annotated[
    tuple[Path, ...], Option("Run directories, or folders of run directories.", argument=True)
]


def require_minutes(minutes: float | None) -> None:
    """Raise SkitError unless --minutes is left out or a number above 0."""
    valid = minutes is None or (isfinite(minutes) and minutes > 0)
    require(valid, f"--minutes takes a number above 0, such as 5 or 0.5, not {minutes}")


def require_requests(
    limit: int | None, minutes: float | None, max_new_tokens: int, batch_size: int
) -> None:
    """Raise SkitError unless there is something to decode."""
    require(limit is None or limit >= 1, f"--limit must be at least 1, not {limit}")
    require_minutes(minutes)
    require(max_new_tokens >= 1, f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """The dataset of the prompts, and where to find it."""

    dataset: Annotated[DatasetName, FIRST] = "gsm8k"
    data_dir: DataDir = None
    sample: Sample = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """The deployment whose time is reported, and changes to its fields."""

    deployment: Annotated[DeploymentName, FIRST] = "local"
    replaced: ReplacedFields = ()
