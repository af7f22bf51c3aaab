"""The options of one benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

from specbench_kit.core.common_options import (
    BatchSize,
    DataDir,
    DeploymentOptions,
    DeviceMap,
    Draft,
    Dtype,
    ExecutorName,
    Limit,
    MaxMemory,
    MaxNewTokens,
    Minutes,
    Out,
    Replay,
    Resume,
    Sample,
    Seed,
    Strict,
    Target,
    TorchDevice,
    require_requests,
)
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import (
    DECODING,
    FIRST,
    OUTPUT,
    RUN,
    SERVER,
    NotWith,
    Option,
    WithoutEffect,
)
from specbench_kit.core.temperature import require_temperature
from specbench_kit.core.without_effect import (
    GREEDY,
    RECORDED,
    beside,
    flag,
    refuse_together,
    unless,
)
from specbench_kit.datasets.answers import ANSWER_RULES, RuleName
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.constraint import GrammarSpec, parse_constraint
from specbench_kit.decoding.lossy import LossyRule, parse_lossy
from specbench_kit.deployments.base import Deployment
from specbench_kit.live.connection_options import (
    LONGEST_SILENCE_S,
    SHORTEST_SILENCE_S,
    TEMPERATURES,
    ConnectionOptions,
    parse_link,
)
from specbench_kit.runs.deployment import Link

REPLAYED = WithoutEffect(beside("replay"), RECORDED)
RECORDED_IN_ONE = WithoutEffect(REPLAYED.case, "a trace was recorded in one; leave out one of them")

Launch = Literal["virtual", "processes"]
"""`virtual` runs all stages of a pipeline in this process, `processes` runs each stage in its own
process.
"""


"""Two options that cannot both have another value than their default, and why. Options that a user
gives without any effect say so themselves, by `WithoutEffect` beside them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources(DeploymentOptions):
    """The inputs of a benchmark by name: datasets or a trace, and a deployment; and its exit
    status.
    """

    dataset: Annotated[
        tuple[str, ...],
        Option(
            "Dataset: a name from `skit list datasets`, hub:owner/name?split=test&prompt=question, or a .jsonl, "
            ".json or .parquet file; may be given several times.",
            RUN,
        ),
        FIRST,
        REPLAYED,
    ] = ("gsm8k",)
    replay: Replay = None
    data_dir: Annotated[DataDir, REPLAYED] = None
    sample: Annotated[Sample, REPLAYED] = True
    strict: Strict = False


def parse_share(text: str) -> float:
    """Return the share that a text such as `5%` or `0.05` states."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise SkitError(
            f"--until-decided takes a difference in speed between 0% and 100%, such as 5%, not '{text}'"
        )
    return share


@dataclass(frozen=True, slots=True)
class BenchSettings(ConnectionOptions):
    """The options of one benchmark, validated on construction: an invalid value raises SkitError.

    Without a deployment, time is measured on this machine; a replay uses the time of the machine
    that recorded the trace.
    """

    methods: Annotated[
        tuple[str, ...],
        Option(
            "Method: name or name:key=value,...; may be given several times. 'all' runs every method that can run "
            "here, 'group:NAME' the methods of one group.",
            RUN,
            flag="method",
        ),
        FIRST,
    ]
    target: Annotated[Target, FIRST, REPLAYED] = "auto"
    draft: Annotated[Draft, FIRST, REPLAYED] = "auto"
    device: Annotated[TorchDevice, REPLAYED] = "auto"
    dtype: Annotated[Dtype, REPLAYED] = "auto"
    executor: Annotated[ExecutorName, REPLAYED] = "auto"
    max_new_tokens: Annotated[MaxNewTokens, FIRST, REPLAYED] = 128
    batch_size: BatchSize = 1
    temperature: Annotated[
        float,
        Option("Sampling temperature; 0 decodes greedily.", DECODING, recorded="always"),
        FIRST,
        NotWith("replay", "a recorded trace is greedy"),
    ] = 0.0
    top_p: Annotated[
        float,
        Option("Top-p sampling; 1 disables it.", DECODING, recorded="always"),
        REPLAYED,
        GREEDY,
    ] = 1.0
    top_k: Annotated[
        int, Option("Top-k sampling; 0 disables it.", DECODING, recorded="always"), REPLAYED, GREEDY
    ] = 0
    seed: Seed = 0
    limit: Annotated[Limit, FIRST] = None
    fewest_requests: Annotated[
        int,
        Option(
            "Decode all prompts as often as it takes for so many requests, one after another without a pause, so that "
            "a batch stays full; the requests of a prompt count as one sample.",
            RUN,
            recorded="if changed",
        ),
    ] = 0
    minutes: Annotated[Minutes, REPLAYED] = None
    until_decided: Annotated[
        float | None,
        Option(
            "Go on with prompts, drawn with --seed, until every method is shown to differ from the fastest or to lie "
            "within this difference of it, as in 5%; at most --limit prompts. Verdicts hold their level all the same.",
            RUN,
            parse=parse_share,
        ),
        NotWith("fewest_requests", "it goes on with new prompts, not with the same ones"),
        NotWith("repeats", "it goes on with new prompts, not with repeats"),
        NotWith("replay", "it saves decoding, and a replay decodes nothing"),
    ] = None
    repeats: Annotated[
        int,
        Option(
            "Number of times that each request is decoded, always with the same seeds.",
            RUN,
            recorded="always",
        ),
        NotWith("deployment", "modelled time never varies"),
        NotWith("replay", "a replay gives the same result every time"),
    ] = 1
    processes: Annotated[
        int,
        Option(
            "Decode each request once in each of so many processes, one after another, so that intervals and verdicts "
            "cover what lasts as long as a process, such as where its memory lies; 3 or more. --minutes is shared out.",
            RUN,
            recorded="if changed",
        ),
        RECORDED_IN_ONE,
        NotWith("deployment", "modelled time is the same in every process"),
        NotWith("server", "the server's process, which verifies, goes on"),
        NotWith("repeats", "each process is a repeat"),
        NotWith("until_decided", "it goes on with new prompts, not with processes"),
        NotWith("timeline", "a timeline shows one process"),
    ] = 1
    baseline: Annotated[
        bool,
        Option("Also decode with the target alone, as the baseline.", RUN, recorded="as found"),
    ] = True
    out: Annotated[Out, FIRST] = Path("results")
    resume: Annotated[
        Resume,
        NotWith("replay", "it runs a trace from its start"),
    ] = False
    force: Annotated[
        bool,
        Option(
            "With --resume: continue although the commit, a library version or the machine has changed; the report "
            "says so.",
            OUTPUT,
        ),
        REPLAYED,
    ] = False
    timeline: Annotated[
        bool,
        Option(
            "Write a timeline of what each resource did while this command decoded: a trace for Perfetto or Chrome, "
            "and a picture.",
            OUTPUT,
        ),
    ] = False
    token_view: Annotated[
        bool,
        Option(
            "For each of the first 100 requests, write an HTML page that shows where each token came from.",
            OUTPUT,
        ),
        NotWith("replay", "it shows the trees of a live run, which a trace does not contain"),
    ] = False
    exclude_seen: Annotated[
        bool,
        Option(
            "Exclude prompts that a method's predictor or draft head was trained on. Prompts of a split that is "
            "reserved for training are always excluded.",
            RUN,
        ),
        NotWith("replay", "the prompts of a trace are fixed"),
    ] = False
    draft_answers: Annotated[
        bool,
        Option(
            "Also let the draft model answer alone, outside of the measurement, and report its accuracy; needs a "
            "dataset with reference answers.",
            RUN,
        ),
        REPLAYED,
    ] = False
    answer_rule: Annotated[
        RuleName | None,
        Option(
            "Rule that reads answers from texts, instead of the dataset's own: number, letter or phrase, or strict or "
            "flexible, which read numbers as lm-evaluation-harness does for GSM8K.",
            RUN,
        ),
        REPLAYED,
    ] = None
    device_map: Annotated[DeviceMap, REPLAYED] = ""
    max_memory: Annotated[MaxMemory, REPLAYED] = ""
    deployment: Deployment | None = None
    draft_top_n: Annotated[
        int,
        Option(
            "Sample draft tokens from the top N only (0: no limit).",
            DECODING,
            recorded="if changed",
        ),
        REPLAYED,
        GREEDY,
    ] = 0
    lossy: Annotated[
        LossyRule | None,
        Option(
            "Verify by a rule that changes the outputs: typical or fly, with options as in typical:epsilon=0.09. The "
            "run is compared with no lossless one.",
            DECODING,
            parse=parse_lossy,
            recorded="if changed",
        ),
        REPLAYED,
        NotWith("server", "it is a rule of a target in this process, and a server has its own"),
    ] = None
    constraint: Annotated[
        GrammarSpec | None,
        Option(
            "Grammar that every output follows: json-schema:FILE, regex:TEXT or lark:FILE (or the text in place of a "
            "file), or 'dataset' for the schema in each prompt's own field `schema`. It masks target, drafts and the "
            "baseline, those of a `skit serve` too.",
            DECODING,
            parse=parse_constraint,
            recorded="if changed",
        ),
        REPLAYED,
        NotWith("lossy", "no rule that changes outputs is defined under a grammar"),
        NotWith("launch", "the grammar masks a target in this process"),
        NotWith("draft_answers", "the draft model alone would answer without the grammar"),
    ] = None
    skip_forced: Annotated[
        bool,
        Option(
            "Under --constraint, commit a token that is the only one that the grammar allows without verifying it, in "
            "the baseline too.",
            DECODING,
            recorded="if changed",
        ),
        WithoutEffect(
            unless("constraint"), "only a grammar forces tokens; give one or leave this out"
        ),
    ] = True
    server: Annotated[
        str | None,
        Option(
            "Server that verifies, instead of a --target in this process: HOST:PORT of a `skit serve` (or several with "
            "commas, of which another one takes over when one is lost), or ENGINE://HOST:PORT of sglang, vllm, "
            "llama-cpp or another completions server.",
            SERVER,
        ),
        FIRST,
        REPLAYED,
        NotWith("deployment", "it measures a real target elsewhere"),
        NotWith("launch", "the target runs elsewhere"),
    ] = None
    link: Annotated[
        Link | None,
        Option(
            "Emulate a network link to the server, as in rtt_s=0.02,jitter_s=0.002,up_bytes_per_s=1.25e6.",
            SERVER,
            parse=parse_link,
        ),
        REPLAYED,
    ] = None
    server_silence: Annotated[
        float,
        Option(
            "Seconds without a draft after which a `skit serve` goes on with the response by itself, until this device "
            "is back; 0 never.",
            SERVER,
        ),
        REPLAYED,
    ] = 0.0
    launch: Annotated[
        Launch,
        Option(
            "How the stages of a pipeline run: 'virtual' runs all in this process, 'processes' starts one process per "
            "stage. Under torchrun, its processes are used.",
            RUN,
            recorded="if changed",
        ),
        REPLAYED,
        NotWith("deployment", "it measures this machine"),
    ] = "virtual"
    tuned: Annotated[
        Path | None,
        Option(
            "File of `skit tune` with the options to use for methods that are named without options, or 'auto': those "
            "that are bundled for the target and the deployment.",
            RUN,
        ),
    ] = None
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.methods), "no method: give at least one --method")
        require(
            len(set(self.methods)) == len(self.methods),
            "a method is given twice: name each --method once",
        )
        require_requests(self.limit, self.minutes, self.max_new_tokens, self.batch_size)
        require(
            self.fewest_requests >= 0,
            f"--fewest-requests must not be negative, but is {self.fewest_requests}",
        )
        require(self.repeats >= 1, f"--repeats must be at least 1, not {self.repeats}")
        require(self.processes >= 1, f"--processes must be at least 1, not {self.processes}")
        self.require_together()
        require(
            self.resume or not self.force,
            "--force goes with --resume: it mixes two conditions in one run",
        )
        require_temperature(self.temperature)
        require(0 < self.top_p <= 1, f"--top-p must lie above 0 and up to 1, not {self.top_p}")
        require(self.top_k >= 0, f"--top-k must not be negative, but is {self.top_k}")
        launches = get_args(Launch)
        require(
            self.launch in launches,
            f"--launch must be {' or '.join(launches)}, not '{self.launch}'",
        )
        require(
            self.answer_rule is None or self.answer_rule in ANSWER_RULES,
            f"--answer-rule must be one of {', '.join(ANSWER_RULES)}, not '{self.answer_rule}'",
        )
        require(
            self.draft_top_n >= 0, f"--draft-top-n must not be negative, but is {self.draft_top_n}"
        )
        self._require_server_options()

    @property
    def passes(self) -> int:
        """The number of times that each request is decoded: repeats in one process, or one in each
        of several.
        """
        return self.repeats * self.processes

    def require_together(self, *, replayed: bool = False) -> None:
        """Raise SkitError for two options that cannot go together, or for one that cannot go with a
        replay.
        """
        changed = {
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        }
        changed |= {"replay"} if replayed else set()
        refuse_together(type(self), changed)

    def require_answers_in(self, dataset: LoadedDataset) -> None:
        """Raise SkitError for options about right answers if the dataset has none."""
        for name, is_given in (
            ("draft_answers", self.draft_answers),
            ("answer_rule", self.answer_rule),
        ):
            require(
                not is_given or any(prompt.gold for prompt in dataset.prompts),
                f"{flag(name)}: {dataset.name} does not say which answers are right; leave it out",
            )

    def _require_server_options(self) -> None:
        """Raise SkitError for options about a server that there is not, or that it would refuse."""
        self.require_connection_options()
        require(
            self.server is not None
            or not (self.link or self.concerns_server or self.server_silence),
            "--link and the options that begin with --server go with --server",
        )
        require(
            self.server_silence == 0
            or SHORTEST_SILENCE_S <= self.server_silence <= LONGEST_SILENCE_S,
            f"--server-silence is 0 or from {SHORTEST_SILENCE_S:g} to {LONGEST_SILENCE_S:g} s, not "
            f"{self.server_silence:g}",
        )
        lowest, highest = TEMPERATURES
        require(
            self.server is None
            or "://" in self.server
            or not self.temperature
            or lowest <= self.temperature <= highest,
            f"a skit serve takes a --temperature of 0 or from {lowest:g} to {highest:g}, not {self.temperature:g}",
        )


def require_distinct(datasets: Sequence[str]) -> None:
    """Raise SkitError if a dataset is named twice, whose runs would share their folders."""
    require(
        len(set(datasets)) == len(datasets), "a dataset is given twice: name each --dataset once"
    )
