"""The content of `run.json`: what a run says of itself. Files are written from plain objects and
read as these types.

`RunDescription` holds what every command records, `RunDocument` what a benchmark run adds. A field that a file leaves
out, or states as null, is not known. Fields that only one command writes, such as the series of a simulation, are not
part of it: the report of that command reads them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypedDict, get_args, get_type_hints

from msgspec import Meta, Struct, field

from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import Count, JsonObject, Number, Written, convert
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.models.description import ModelDescription
from specbench_kit.runs.deployment import DeploymentDescription, LatencyDescription
from specbench_kit.runs.folder import Defining
from specbench_kit.runs.machine.limits import MachineReadings

ENVIRONMENT = ("git_commit", "git_dirty", "versions", "platform", "hardware")
"""The fields that describe the software and the machine."""
MethodInputs = JsonObject
"""What a prepared method read from its environment that decides what it does, by its own names: a
method of another package may record whatever JSON can hold.
"""


def doc(text: str) -> Meta:
    """Return the description that a field has in the JSON Schema."""
    return Meta(description=text)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison makes of runs that differ in a setting: it `forbids` them to share a table,
    or names it.

    `title` stands before the values, and `words` says one of them. Some settings affect measured times alone.
    """

    difference: Literal["forbids", "is named", "is named if measured"]
    title: str
    words: Callable[[Any], str] | None = None


def grammar_words(spec: str | None) -> str:
    """Return a grammar in few words: its kind, and its text if that is short."""
    kind, _, text = (spec or "none").partition(":")
    shown = " ".join(text.split())
    return f"{kind} {shown}" if text and len(shown) <= SHORT_GRAMMAR else kind


SHORT_GRAMMAR = 40
"""Characters of a grammar that is shown whole."""


class NumberFormat(Struct):
    """The number formats of a model's weights."""

    computed: Annotated[
        str | None, doc("format in which the model computed; null if that is not known")
    ] = None
    published: Annotated[
        str | None, doc("format that its own configuration states; null if it states none")
    ] = None


class RunConfig(Struct):
    """The settings that were asked for."""

    device: Annotated[str | None, doc("torch device; null if that is not stated")] = None
    dtype: Annotated[
        str | None,
        doc("number format of the weights; null if that is not stated"),
        Compared("forbids", "dtype"),
    ] = None
    executor: Annotated[str, doc("executor that was asked for")] = "auto"
    executors: Annotated[
        dict[str, str | None] | None,
        doc("executor of each model, by role; null if that is not stated"),
    ] = None
    products: Annotated[
        str | None,
        doc("how products are rounded, if not by the dtype alone; null if they are"),
        Compared("forbids", "rounding of products"),
    ] = None
    kernels: Annotated[
        str | None,
        doc("what computes a layer of the target between its products on a GPU; null elsewhere"),
        Compared("is named if measured", "kernels of a layer"),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        doc("most output tokens per request; null if that is not stated"),
        Compared("forbids", "max_new_tokens"),
    ] = None
    batch_size: Annotated[
        int | None,
        doc("requests that may be decoded at once; null if that is not stated"),
        Compared("forbids", "batch size"),
    ] = None
    effective_batch_size: Annotated[
        int | None, doc("requests that were decoded at once; null if that is not stated")
    ] = None
    repeats: Annotated[
        int | None,
        doc("times that each request is decoded; null if that is not stated"),
        Compared("is named", "repeats"),
    ] = None
    processes: Annotated[
        int,
        doc("processes, one after another, that each decoded every request once"),
        Compared("is named if measured", "processes"),
    ] = 1
    limit: Annotated[int | None, doc("prompts that were asked for; null is all")] = None
    fewest_requests: Annotated[
        int,
        doc("requests that the prompts were repeated for; 0 is none"),
        Compared(
            "is named",
            "requests that prompts are repeated for",
            lambda n: f"{n:,} or more" if n else "none",
        ),
    ] = 0
    seed: Annotated[int | None, doc("seed of all random numbers; null if that is not stated")] = (
        None
    )
    temperature: Annotated[
        Number | None, doc("sampling temperature; 0 is greedy, null is not stated")
    ] = 0.0
    top_p: Annotated[Number | None, doc("top-p sampling; 1 disables it; null is not stated")] = None
    top_k: Annotated[int | None, doc("top-k sampling; 0 disables it; null is not stated")] = None
    draft_top_n: Annotated[
        int,
        doc("most probable tokens that a draft is drawn from; 0 is all"),
        Compared(
            "is named",
            "draft tokens drawn from",
            lambda n: f"the {n} most probable" if n else "all",
        ),
    ] = 0
    baseline: Annotated[
        bool | None, doc("whether the target also decoded alone; null if that is not stated")
    ] = None
    lossy: Annotated[
        str | None,
        doc("rule of lossy verification, if the run had one; null if it had none"),
        Compared("forbids", "verification", lambda rule: rule or "lossless"),
    ] = None
    constraint: Annotated[
        str | None,
        doc(
            "grammar that outputs had to follow: its kind and its text, or 'dataset' for each prompt's own; null "
            "without one"
        ),
        Compared("forbids", "grammar", grammar_words),
    ] = None
    constraint_hash: Annotated[
        str | None,
        doc("hash of the grammars of all prompts, in the order of the prompts; null without one"),
        Compared("forbids", "hash of the grammars", lambda digest: digest or "none"),
    ] = None
    skip_forced: Annotated[
        bool,
        doc("whether tokens that a grammar alone allows were committed without being verified"),
        Compared("is named", "forced tokens", lambda skips: "skipped" if skips else "verified"),
    ] = True
    launch: Annotated[
        str, doc("how the stages of a pipeline ran"), Compared("is named if measured", "launch")
    ] = "virtual"


def compared_settings() -> Iterator[tuple[str, Compared]]:
    """Yield the settings that say what a comparison makes of runs that differ in them."""
    for name, hint in get_type_hints(RunConfig, include_extras=True).items():
        yield from ((name, entry) for entry in get_args(hint)[1:] if isinstance(entry, Compared))


class HardwareDescription(Struct):
    """The machine that decoded."""

    cpu: Annotated[str | None, doc("processor; null if that is not known")] = None
    physical_cores: Annotated[int | None, doc("processor cores; null if that is not known")] = None
    usable_cpus: Annotated[
        int | None, doc("processors that the process may use; null if that is not known")
    ] = None
    torch_threads: Annotated[int | None, doc("threads of torch; null if that is not known")] = None
    memory_gb: Annotated[
        Number | None, doc("memory in GB (1e9 bytes); null if that is not known")
    ] = None
    gpu: Annotated[str | None, doc("name of the first GPU; null if there is none")] = None
    gpus: Annotated[int | None, doc("number of GPUs; null if that is not known")] = None
    cuda: Annotated[str | None, doc("version of CUDA; null if torch has none")] = None


class DerivedRange(Struct):
    """The range of derived times."""

    ends: Annotated[list[str], doc("names of the ends of the range")]
    decisions: Annotated[
        str,
        doc(
            "'anew' if the method decided anew at each of them, 'as drafted' if the run's own rounds were "
            "timed there"
        ),
    ]
    missing: Annotated[str | None, doc("why the run was not timed at the ends; null if it was")] = (
        None
    )


class EngineReference(Struct):
    """The inference engine that verified, with the kit's policy as its drafter; null where the
    kit's loop decoded.
    """

    name: Annotated[str | None, doc("name of the engine")] = None
    version: Annotated[str | None, doc("version of the engine")] = None


class EngineOverhead(Struct):
    """The work of a policy inside another engine, summed over all calls."""

    calls: Annotated[Count, doc("calls of the drafter, one per step")] = 0
    policy_s: Annotated[Number, doc("seconds of the policy's decisions")] = 0.0
    draft_s: Annotated[Number, doc("seconds of drafting")] = 0.0
    total_s: Annotated[Number, doc("seconds inside of the drafter, bookkeeping included")] = 0.0
    engine_s: Annotated[Number, doc("seconds of the engine's own steps")] = 0.0


class PredictorUse(Struct):
    """The predictor that the method loaded, and how it used it."""

    threshold: Annotated[Number | None, doc("score below which drafting stops")] = None
    max_draft: Annotated[int | None, doc("longest draft in tokens")] = None
    deployment: Annotated[str | None, doc("deployment that the threshold was tuned for")] = None
    rule: Annotated[str | None, doc("how the threshold was chosen")] = None


class PreparedInputs(Struct):
    """The predictor that the method was prepared with, and the latencies that it plans by."""

    predictor: PredictorUse | None = None
    latencies: dict[str, LatencyDescription] | None = None


class ImportedFile(Struct):
    """The file of another tool that a run or a trace was made from."""

    tool: Annotated[str, doc("name of the tool")]
    notes: Annotated[list[str], doc("what the file lacks")] = field(default_factory=list)


class TraceReference(Struct):
    """The trace that was replayed."""

    file: Annotated[str | None, doc("name of the file; null if that is not known")] = None
    sha256: Annotated[str | None, doc("SHA-256 of the file; null if that is not known")] = None
    imported: Annotated[
        ImportedFile | None,
        doc("where it comes from, if the kit did not record it; null if it did"),
    ] = None
    licence: Annotated[str | None, doc("licence of the trace; null if none is stated")] = None
    requests: Annotated[
        int | None, doc("requests that were replayed; null if that is not known")
    ] = None
    recorded: Annotated[int | None, doc("requests that it holds; null if that is not known")] = None


class ServerReference(Struct):
    """The server that verified."""

    kind: Annotated[str | None, doc("kind of server; null if that is not known")] = None
    scheduler: Annotated[
        str | None, doc("order in which it verifies requests; null if that is not known")
    ] = None
    device: Annotated[str | None, doc("device that it verifies on; null if that is not known")] = (
        None
    )
    baseline: Annotated[
        str | None,
        doc("'streamed' if it decodes the baseline by itself; null if that is not known"),
    ] = None
    model: Annotated[
        str | None,
        doc("path that it knows the model by; null if that is the model's name or not known"),
    ] = None


class ServedRun(Struct):
    """What a run states of a server that verified."""

    server: Annotated[ServerReference, doc("the server")]
    verification: Annotated[
        str | None, doc("how a server of another kind verifies; null if by the kit's protocol")
    ] = None
    shaped_link: Annotated[
        dict[str, float | None] | None,
        doc("the link whose delays were added to real messages; null if none were"),
    ] = None


class LoweredLimit(Struct):
    """A draft length that a trace does not reach."""

    lowered: Annotated[
        int, doc("longest draft in tokens that the trace holds, which the method drafts")
    ]
    default: Annotated[int, doc("longest draft in tokens by default")]


class TuningUse(Struct):
    """The tuned options that a benchmark named for methods without options of their own."""

    file: Annotated[str, doc("file of skit tune, or auto for what is bundled")]
    doubts: Annotated[list[str], doc("conditions of this run that are not those of the tuning")] = (
        field(default_factory=list)
    )
    is_untuned: Annotated[
        bool, doc("whether the file has no options for the method, whose defaults ran")
    ] = False


class Resumption(Struct):
    """One resumption of a run, and the environment in which it went on."""

    when: Annotated[
        str | None, doc("time at which it went on, in UTC; null if that is not known")
    ] = None
    commit: Annotated[str | None, doc("commit of specbench-kit; null if that is not known")] = None
    dirty: Annotated[
        bool | None,
        doc("whether files of specbench-kit differed from the commit; null if that is not known"),
    ] = None
    versions: Annotated[
        dict[str, str | None] | None, doc("versions of the packages; null if they are not known")
    ] = None
    platform: Annotated[str | None, doc("operating system; null if that is not known")] = None
    hardware: Annotated[
        HardwareDescription | None, doc("the machine; null if that is not known")
    ] = None
    done: Annotated[
        int | None, doc("requests that were finished before; null if that is not known")
    ] = None


class OutputAgreement(Struct):
    """Outputs compared with each other."""

    compared: Annotated[Count, doc("outputs that were compared")] = 0
    identical: Annotated[Count, doc("outputs of these that are identical")] = 0

    @property
    def share(self) -> float | None:
        """The share of identical outputs; None if none were compared."""
        return self.identical / self.compared if self.compared else None


class WarmUp(Struct):
    """The rounds that were decoded before the measurement."""

    rounds: Annotated[list[int], doc("rounds of each process that worked on the run")] = field(
        default_factory=list
    )


class Decided(Struct):
    """When a benchmark that goes on until it is decided was."""

    share: Annotated[
        float,
        doc(
            "share of the fastest method's speed: every method is shown to differ from it, or to lie within "
            "this share of it"
        ),
    ]
    requests: Annotated[int, doc("requests until then")]
    planned: Annotated[int, doc("requests that were planned")]


class HiddenStates(Struct, frozen=True):
    """The hidden states of the target that a drafter reads, one for each token that the target
    keeps.
    """

    layers: Annotated[tuple[int, ...], doc("layers of the target")]
    bytes_per_token: Annotated[
        float, doc("bytes per token that cross the link; 0 if the drafter runs on the server")
    ]


class RunDescription(Struct, kw_only=True):
    """What `run.json` says, whatever command wrote it. Every field may be missing."""

    command: Annotated[str | None, doc("command of skit, if it was not bench; null for bench")] = (
        None
    )
    method: Annotated[
        str | None,
        doc(
            "spec of the method, such as fixed-k:k=4; null for commands that do not run one method"
        ),
    ] = None
    options: Annotated[
        OptionValues | None,
        doc(
            "every option of the method with its value; "
            "null for commands that do not run one method"
        ),
    ] = None
    method_source: Annotated[
        str | None,
        doc(
            "SHA-256 of the source of a method that another package brings; "
            "null for methods of the kit"
        ),
    ] = None
    proposal: Annotated[
        str | None,
        doc(
            "which tokens are drafted: drawn at random, or the most probable; "
            "null if that is not stated"
        ),
    ] = None
    uses: Annotated[
        MethodInputs, doc("predictor, thresholds and profiles that the method was prepared with")
    ] = field(default_factory=dict)
    dataset: Annotated[DatasetDescription, doc("the prompts of the run")] = field(
        default_factory=DatasetDescription
    )
    models: Annotated[
        dict[str, ModelDescription | None], doc("target and draft model, by role")
    ] = field(default_factory=dict)
    config: Annotated[RunConfig, doc("the settings that were asked for")] = field(
        default_factory=RunConfig
    )
    time_kind: Annotated[str | None, doc("measured or modelled; null if that is not known")] = None
    deployment: Annotated[
        DeploymentDescription | None,
        doc("deployment that time is modelled on; null if it was measured"),
    ] = None
    deployments: Annotated[
        dict[str, DeploymentDescription], doc("deployments of several series, by name")
    ] = field(default_factory=dict)
    range: Annotated[
        DerivedRange | None, doc("range of derived times; null if no time is derived")
    ] = None
    trace: Annotated[
        TraceReference | None, doc("the trace that was replayed; null if none was")
    ] = None
    imported: Annotated[
        ImportedFile | None,
        doc("the file of another tool that the run was made from; null if it was not"),
    ] = None
    files: Annotated[
        list[str], doc("what each file of another program was taken for, and what was left out")
    ] = field(default_factory=list)
    doubts: Annotated[
        list[str], doc("values of such files that cannot be, which hints at another unit")
    ] = field(default_factory=list)
    lowered_limits: Annotated[
        dict[str, LoweredLimit], doc("methods that draft shorter than by default")
    ] = field(default_factory=dict)
    tuning: Annotated[
        TuningUse | None, doc("the file of tuned options, if one was named; null if none was")
    ] = None
    seen_prompts: Annotated[
        int | None,
        doc("prompts that a predictor had been trained on; null if none, or if that is not known"),
    ] = None
    server: Annotated[ServerReference | None, doc("the server that verified; null if none did")] = (
        None
    )
    shaped_link: Annotated[
        dict[str, float | None], doc("the link whose delays were added to real messages")
    ] = field(default_factory=dict)
    reconnections: Annotated[int, doc("times that the connection to the server was lost")] = 0
    machine: Annotated[
        list[MachineReadings], doc("readings of the machine while times were measured")
    ] = field(default_factory=list)
    started_at: Annotated[str | None, doc("start in UTC, ISO 8601; null if that is not known")] = (
        None
    )
    argv: Annotated[list[str] | None, doc("command line; null if that is not known")] = None
    git_commit: Annotated[str | None, doc("commit of specbench-kit; null if that is not known")] = (
        None
    )
    git_dirty: Annotated[
        bool | None,
        doc("whether files of specbench-kit differ from the commit; null if that is not known"),
    ] = None
    versions: Annotated[
        dict[str, str | None] | None, doc("versions of the packages; null if they are not known")
    ] = None
    platform: Annotated[str | None, doc("operating system; null if that is not known")] = None
    hardware: Annotated[
        HardwareDescription | None, doc("the machine that decoded; null if that is not known")
    ] = None

    @classmethod
    def read(cls, content: "RunFields | JsonObject") -> Self:
        """Return what the content of a `run.json` says; ValueError names a field of a wrong
        type.
        """
        run = convert(cls, {name: value for name, value in content.items() if value is not None})
        convert(_Inputs, {"uses": run.uses})
        return run

    @property
    def inputs(self) -> PreparedInputs:
        """The part of `uses` that all methods share; each method may add to it."""
        return convert(PreparedInputs, self.uses)

    @property
    def deployment_name(self) -> str | None:
        """The name of the deployment that time is modelled on; None if time was measured."""
        return self.deployment.name if self.deployment else None


class _Inputs(Struct):
    uses: PreparedInputs


class RunDocument(RunDescription, kw_only=True):
    """The content of a benchmark's `run.json`: what was run, on what, where and how.

    Every field but the version may be missing.
    """

    schema_version: Annotated[int, doc("version of the format")]
    number_formats: Annotated[
        dict[str, NumberFormat], doc("number formats of the models that ran here, by role")
    ] = field(default_factory=dict)
    engine: Annotated[
        EngineReference | None,
        doc("inference engine that verified; null where the kit's loop decoded"),
    ] = None
    overhead: Annotated[EngineOverhead, doc("work of a policy inside another engine")] = field(
        default_factory=EngineOverhead
    )
    requests: Annotated[
        Count | None, doc("requests that were planned; null if that is not known")
    ] = None
    prompts: Annotated[
        dict[str, str] | None,
        doc("hash of the first prompt's tokens, by request; null if they are not stored"),
    ] = None
    left_out: Annotated[dict[str, str], doc("methods that could not run, with the reason")] = field(
        default_factory=dict
    )
    is_named: Annotated[
        bool, doc("whether the method was named; false where all or a group stands for it")
    ] = True
    hidden_states: Annotated[
        HiddenStates | None,
        doc("hidden states that verdicts carry to the drafter; null if they carry none"),
    ] = None
    warm_up: Annotated[WarmUp, doc("rounds before the measurement")] = field(default_factory=WarmUp)
    looks: Annotated[
        int | None,
        doc(
            "times that an undecided benchmark was looked at; null unless it went on until decided"
        ),
    ] = None
    decided: Annotated[
        Decided | None,
        doc("when the benchmark was decided; null if it was not, or was to decode all prompts"),
    ] = None
    server_only: Annotated[
        OutputAgreement | None,
        doc("the same method decoded by the server alone; null if it was not"),
    ] = None
    resumptions: Annotated[list[Resumption], doc("each time that the run was resumed")] = field(
        default_factory=list
    )

    @property
    def decoded_at_once(self) -> int:
        """How many requests were decoded at once; 1 if the run does not say."""
        return self.config.effective_batch_size or self.config.batch_size or 1

    @property
    def requests_per_unit(self) -> int:
        """How many requests vary together: those that were decoded at once share the slow moments of
        a clock, and modelled time has none.
        """
        return 1 if self.time_kind == "modelled" else self.decoded_at_once

    @property
    def spans_interruption(self) -> bool:
        """True if the run's clock has a gap, so that nothing may be divided by its makespan.

        A run on modelled time is decoded again from its start when it is resumed, and has no gap.
        """
        return bool(self.resumptions) and self.time_kind != "modelled"


class LoweredOption(TypedDict):
    """A method's option that limits its drafts, its default, and the lower value with which a trace
    is replayed.
    """

    option: Annotated[str, doc("option that limits drafts")]
    default: Annotated[int, doc("its default, in tokens")]
    lowered: Annotated[int, doc("longest draft in tokens that the trace holds")]


class ResumptionFields(TypedDict):
    """An entry of the field `resumptions` as it is written."""

    when: str
    commit: str | None
    dirty: bool | None
    versions: Mapping[str, str]
    platform: str
    hardware: Mapping[str, str | float | None]
    threads: str | float | None
    done: int


class RangeFields(TypedDict, total=False):
    """The field `range` as it is written."""

    ends: Sequence[str]
    decisions: str
    missing: str


class TuningFields(TypedDict, total=False):
    """The field `tuning` as it is written."""

    file: str
    is_untuned: bool
    doubts: Sequence[str]


class RunFields(TypedDict, total=False):
    """The fields of a `run.json` as commands write them; `RunDescription` and its kinds read them.

    Each command writes some of them. A file may hold further ones, which stay in it.
    """

    schema_version: int
    command: str
    method: str
    method_source: str
    options: OptionValues
    proposal: str
    uses: MethodInputs
    seen_prompts: int
    dataset: Written | None
    models: Written
    number_formats: Written
    config: OptionValues
    time_kind: str
    deployment: Written
    deployments: Mapping[str, Written]
    range: RangeFields
    trace: Written
    imported: Written
    files: Sequence[str]
    doubts: Sequence[str]
    workload: Written
    device_memory_bytes: float
    defining: Defining
    requests: int
    prompts: Mapping[str, str]
    sample_reason: str | None
    lowered_limits: Mapping[str, LoweredOption]
    tuning: TuningFields
    left_out: Mapping[str, str]
    is_named: bool
    hidden_states: Written
    engine: Written
    server: Written
    shaped_link: Mapping[str, float | None]
    machine: Sequence[MachineReadings | Written]
    resumptions: Sequence[ResumptionFields]
    servers: Sequence[Written]
    order: str
    identity: Defining
    started_at: str | None
    argv: list[str] | None
    git_commit: str | None
    git_dirty: bool | None
    versions: Mapping[str, str] | None
    platform: str | None
    hardware: Mapping[str, str | float | None] | None
