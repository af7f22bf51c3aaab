"""The content of a run's `summary.json` as reports and other programs read it, and the row of a
method in a table.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.typed_json import Count, JsonObject, convert
from specbench_kit.metrics.losslessness import Losslessness
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.vocabulary import (
    DISTRIBUTIONS,
    DistributionValues,
    MetricValues,
    PhaseValues,
)


class RequestCounts(Struct):
    """The run's requests; `planned` are those that it was to decode."""

    planned: int
    finished: int
    failed: int


class ScoringCost(Struct):
    """What another process did to judge outputs; an engine does not say how many forwards it
    ran.
    """

    outputs: int = 0
    seconds: float = 0.0
    forwards: int = 0


class OutputCounts(Struct, kw_only=True):
    """The numbers of outputs that were compared with the baseline's, token for token, by what was
    found.
    """

    compared: Count
    identical: Count
    ties: Annotated[Count, Meta(description="outputs whose difference is explained by rounding")]
    errors: Count
    unjudged: Annotated[
        Count, Meta(description="outputs that differ where nothing is known of rounding")
    ] = 0
    lossy: Annotated[
        bool, Meta(description="whether a rule of verification was named that lets outputs differ")
    ] = False


class LosslessCounts(OutputCounts, kw_only=True):
    """The comparison of all outputs with the baseline's, token for token."""

    lossless: Annotated[
        bool | None, Meta(description="true without errors, null if it is not known")
    ] = None
    prompt_differs: Count = 0
    not_compared: Count = 0
    noise: float | None = None
    control: float | None = None
    bitwise: bool = False
    scoring: ScoringCost | None = None
    divergences: list[Losslessness] = field(default_factory=list)


class SamplingTest(Struct, kw_only=True):
    """A statistical test of sampled outputs; its numbers are null where too little was drawn."""

    places: int = 0
    drawn: int = 0
    classes: int = 0
    degrees: int = 0
    rate: float | None = None
    expected_rate: float | None = None
    score: float | None = None
    chi_square: float | None = None
    p_value: float | None = None
    power: float | None = None


class SamplingCheck(LosslessCounts, kw_only=True, omit_defaults=True):
    """The check of sampled outputs: token for token with the same seed (rule `match`), else by
    tests.

    What was accepted is tested under the rule `residual` alone.
    """

    rule: str = ""
    consistent: bool | None = None
    level: float = 0.0
    acceptance: SamplingTest | None = None
    softness: SamplingTest | None = None
    tokens: SamplingTest | None = None
    compared: Count = 0
    identical: Count = 0
    ties: Count = 0
    errors: Count = 0


class PipelineMetrics(Struct):
    """The steps of a pipeline."""

    stages: int
    hit_rate: float | None
    tbt: DistributionValues
    steps: int
    fills: int
    stalls: int
    stalls_of_fills: int
    steps_per_token: float | None
    expected_steps_per_token: float | None
    published_steps_per_token: float | None
    step_s: dict[str, float | None]


class SentStates(Struct):
    """The hidden states that crossed a link to the drafter."""

    layers: list[int]
    bytes_per_token: float
    bytes: float
    prompt_bytes: float


class AnswerCounts(Struct):
    """Numbers of requests that have a reference answer: those judged, right ones, and ones cut by
    the token limit.
    """

    judged: int
    correct: int
    cut: int = 0


class ExactMatch(Struct):
    """How many answers are right, of the method and, where they are known, of target and draft
    model alone.
    """

    rule: str
    method: AnswerCounts
    target: AnswerCounts | None = None
    draft: AnswerCounts | None = None
    max_new_tokens: int = 0


class BaselineSummary(Struct):
    """The same metrics of the baseline."""

    overall: MetricValues
    categories: dict[str, MetricValues]


class RunSummary(Struct):
    """The content of `summary.json`: every metric of a run, overall and by category."""

    method: str
    requests: RequestCounts
    overall: MetricValues
    categories: dict[str, MetricValues]
    baseline: BaselineSummary | None = None
    lossless: LosslessCounts | None = None
    sampling: SamplingCheck | None = None
    pipeline: PipelineMetrics | None = None
    hidden_states: SentStates | None = None
    exact_match: ExactMatch | None = None
    partial: bool = False
    overlaps: bool = False


def typed_summary(metrics: Metrics, **others: Any) -> RunSummary:
    """Return the summary of computed metrics, overall and by category, with what else is said of
    the run.
    """
    baseline = metrics["baseline"]
    return RunSummary(
        overall=metric_values(metrics["overall"]),
        categories={name: metric_values(part) for name, part in metrics["categories"].items()},
        baseline=BaselineSummary(
            metric_values(baseline["overall"]),
            {name: metric_values(part) for name, part in baseline["categories"].items()},
        )
        if baseline
        else None,
        **others,
    )


def judged_parts(judged: Mapping[str, object]) -> dict[str, Any]:
    """Return what judges say of a run's outputs and answers as the summary's typed parts."""
    types: dict[str, Any] = {
        "lossless": LosslessCounts,
        "sampling": SamplingCheck,
        "exact_match": ExactMatch,
    }
    return {
        name: part if part is None else convert(types[name], part) for name, part in judged.items()
    }


def read_summary(content: JsonObject) -> RunSummary:
    """Return the summary in a parsed `summary.json`; ValueError names a field that is missing or of
    a wrong type.
    """
    return convert(RunSummary, one_line_texts(content))


class MethodRow(MetricValues, kw_only=True):
    """The row of a method in a table: its metrics, its outputs, and how it compares with the
    table's reference.

    `sampling_consistent` is what `may_win` says of sampled outputs, and unset for all others, and where nothing was
    checked. `lossy` if a rule of verification was named that lets outputs differ. The lists `..._at_ends` hold a ratio
    at each end of the range of derived times. The `typical_relative_speed` has an upper bound, a standard error, and
    the number of standard errors beyond which the table shows a difference. What processes add to any ratio of two
    methods' measured times has a standard error and, in the table, a half width of the ratio's logarithm;
    `process_seen` if several processes have shown it, where one is taken to differ by so much.
    """

    lossless: OutputCounts | None = None
    sampling_consistent: bool | UnsetType | None = UNSET
    lossy: bool = False
    speedup_verdict: str | None = None
    verdict: str | None = None
    baseline_verdict: str | None = None
    raw_times: bool = False
    repeats: int | None = None
    speedup_by_repeat: list[float | None] = field(default_factory=list)
    relative_speed_units: int = 0
    typical_relative_speed_upper: float | None = None
    typical_relative_speed_error: float | None = None
    typical_relative_speed_limit: float | None = None
    process_error: float | None = None
    process_half_width: float | None = None
    process_seen: bool = False
    typical_speedup_at_ends: list[float] | None = None
    typical_relative_speed_at_ends: list[float] | None = None


def method_row(metrics: Metrics) -> MethodRow:
    """Return computed metrics as a row."""
    return MethodRow(**_with_parts(metrics))


def metric_values(metrics: Metrics) -> MetricValues:
    """Return the computed metrics of a group of requests as a typed record."""
    return MetricValues(**_with_parts(metrics))


def _with_parts(metrics: Metrics) -> Metrics:
    """Return metrics with typed records in place of distributions and of numbers by phase."""
    values = dict(metrics)
    for distribution in DISTRIBUTIONS:
        values[distribution.name] = DistributionValues(**values[distribution.name])
    for name in ("phase_seconds", "phase_share"):
        values[name] = PhaseValues(**values[name])
    return values
