"""What one benchmark is asked to do, as the command line gives it."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal, get_args

from specbench_kit.core.common_options import (
    BatchSize,
    DataDir,
    DeploymentOptions,
    DeviceMap,
    Draft,
    Dtype,
    Limit,
    MaxMemory,
    MaxNewTokens,
    Out,
    Resume,
    Sample,
    Seed,
    Strict,
    Target,
    TorchDevice,
)
from specbench_kit.core.errors import require
from specbench_kit.core.option import DECODING, OUTPUT, RUN, SERVER, Option
from specbench_kit.deployments.base import Deployment, Link
from specbench_kit.live.shape import parse_link

RECORDED_TOGETHER = 8
"""Requests that the target answers in one batch where a trace is recorded on the way."""


Launch = Literal["virtual", "processes"]
"""Where a pipeline's stages run: all in this process, or each in one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources(DeploymentOptions):
    """What a benchmark reads, by name: datasets or a trace, and a deployment; and how it ends."""

    dataset: Annotated[
        tuple[str, ...],
        Option(
            "A name from `skit list datasets`, hub:owner/name?split=test&prompt=question, or a .jsonl or .parquet "
            "file; may be given several times.",
            RUN,
        ),
    ] = ("gsm8k",)
    replay: Annotated[Path | None, Option("A trace of `skit record` to run on, without models.", RUN)] = None
    data_dir: DataDir = None
    sample: Sample = True
    strict: Strict = False


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Checked when made: a value that makes no sense is an error of one line.

    Without a deployment, time is this machine's, or in a replay that of the machine that recorded the trace.
    """

    methods: Annotated[
        tuple[str, ...],
        Option(
            "name or name:key=value,...; may be given several times. 'all' is every method that can run here, "
            "'group:NAME' every one of a group.",
            RUN,
            flag="method",
        ),
    ]
    target: Target = "bundled"
    draft: Draft = "bundled"
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    max_new_tokens: MaxNewTokens = 128
    batch_size: BatchSize = 1
    temperature: Annotated[float, Option("0 is greedy.", DECODING)] = 0.0
    top_p: Annotated[float, Option("Nucleus; 1 keeps everything.", DECODING)] = 1.0
    top_k: Annotated[int, Option("0 keeps everything.", DECODING)] = 0
    seed: Seed = 0
    limit: Limit = None
    repeats: Annotated[int, Option("Times that every request is asked, with the same seeds.", RUN)] = 1
    baseline: Annotated[bool, Option("Decode the autoregressive baseline too.", RUN)] = True
    out: Out = Path("results")
    resume: Resume = False
    force: Annotated[
        bool,
        Option("With --resume: go on under another commit, library version or machine; the report says so.", OUTPUT),
    ] = False
    timeline: Annotated[
        bool,
        Option(
            "Write what each resource did when, while this command decoded: a trace for Perfetto or Chrome, and a "
            "picture.",
            OUTPUT,
        ),
    ] = False
    token_view: Annotated[
        bool, Option("Write an HTML page per request, of the first 100: where each token came from.", OUTPUT)
    ] = False
    exclude_seen: Annotated[
        bool,
        Option(
            "Leave out prompts that a method's predictor or head was trained on. Those of the part of a dataset that "
            "is reserved for training are left out in any case.",
            RUN,
        ),
    ] = False
    draft_answers: Annotated[
        bool,
        Option(
            "Let the draft model answer too, outside of the measurement, so that the report says how often it is "
            "right; for datasets with answers.",
            RUN,
        ),
    ] = False
    device_map: DeviceMap = ""
    max_memory: MaxMemory = ""
    deployment: Deployment | None = None
    draft_top_n: Annotated[
        int,
        Option("Draw drafted tokens from so many of the likeliest alone; 0 is all. For sampled drafts.", DECODING),
    ] = 0
    server: Annotated[
        str | None,
        Option(
            "HOST:PORT of a `skit serve` that has the target and verifies, or ENGINE://HOST:PORT of sglang, vllm, "
            "llama-cpp or any server of completions; --target is then not loaded.",
            SERVER,
        ),
    ] = None
    server_token: Annotated[Path | None, Option("File with the token that the server asks for.", SERVER)] = None
    server_ca: Annotated[
        Path | None, Option("Certificates, PEM, that the server's is signed by; encrypts.", SERVER)
    ] = None
    link: Annotated[
        Link | None,
        Option(
            "Hold messages to and from the server back, as rtt_s=0.02,jitter_s=0.002,up_bytes_per_s=1.25e6 would.",
            SERVER,
            parse=parse_link,
        ),
    ] = None
    launch: Annotated[
        Launch,
        Option(
            "Where the stages of a pipeline run: virtual, all in this process, or processes, one for each. Under "
            "torchrun they are its processes.",
            RUN,
        ),
    ] = "virtual"
    tuned: Annotated[
        Path | None,
        Option("A file of `skit tune`: what it chose for methods that are named without options.", RUN),
    ] = None
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.methods), "no method: give at least one --method")
        require(len(set(self.methods)) == len(self.methods), "a method is given twice: name each --method once")
        require(self.limit is None or self.limit >= 1, f"--limit must be at least 1, not {self.limit}")
        require(self.repeats >= 1, f"--repeats must be at least 1, not {self.repeats}")
        require(self.resume or not self.force, "--force goes with --resume: it mixes two conditions in one run")
        varies = self.repeats == 1 or self.deployment is None
        require(varies, "--repeats measures again, and modelled time is the same every time: leave out one of them")
        require(self.max_new_tokens >= 1, f"--max-new-tokens must be at least 1, not {self.max_new_tokens}")
        require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        temperature_fits = isfinite(self.temperature) and self.temperature >= 0
        require(temperature_fits, f"--temperature must be a number from 0 up, not {self.temperature}")
        require(0 < self.top_p <= 1, f"--top-p must lie above 0 and up to 1, not {self.top_p}")
        require(self.top_k >= 0, f"--top-k must not be negative, but is {self.top_k}")
        launches = get_args(Launch)
        require(self.launch in launches, f"--launch must be {' or '.join(launches)}, not '{self.launch}'")
        require(self.draft_top_n >= 0, f"--draft-top-n must not be negative, but is {self.draft_top_n}")
        alone = self.server is not None or (self.link, self.server_token, self.server_ca) == (None, None, None)
        require(alone, "--link, --server-token and --server-ca go with --server")
        free = self.server is None or (self.deployment is None and self.launch == "virtual")
        require(free, "--server measures a real target elsewhere: leave out --deployment and --launch")
        real = self.launch == "virtual" or self.deployment is None
        require(real, "--launch processes measures this machine: leave out --deployment, or the processes")
