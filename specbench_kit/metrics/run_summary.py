"""The content of a run's `summary.json` as reports and other programs read it, and the row of a
method in a table.
"""

from typing import Annotated, Any, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, field

from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.typed_json import Count, JsonObject, convert
from specbench_kit.metrics.along import PartAcceptance
from specbench_kit.metrics.losslessness import LosslessCounts, OutputCounts
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.thinking import ThinkingSummary
from specbench_kit.metrics.tool_calls import ToolCallSummary
from specbench_kit.metrics.vocabulary import (
    DISTRIBUTIONS,
    DistributionValues,
    MetricValues,
    PhaseValues,
)


class RequestCounts(Struct):
    """The run's requests."""

    planned: Annotated[int, Meta(description="requests that the run was to decode")]
    finished: Annotated[int, Meta(description="requests that were decoded without an error")]
    failed: Annotated[int, Meta(description="requests that ended in an error")]


class SamplingTest(Struct, kw_only=True):
    """A statistical test of sampled outputs; its numbers are null where too little was drawn."""

    places: Annotated[
        int, Meta(description="drafted tokens that were judged; 0 in the test of committed tokens")
    ] = 0
    drawn: Annotated[
        int, Meta(description="committed tokens that were tested; 0 in tests of acceptance")
    ] = 0
    classes: Annotated[
        int,
        Meta(
            description="classes of the ratio of target to draft probability that hold enough tokens to be "
            "tested"
        ),
    ] = 0
    degrees: Annotated[
        int,
        Meta(description="degrees of freedom of the chi-square test; 0 if there is no such test"),
    ] = 0
    rate: Annotated[
        float | None,
        Meta(
            description="share of the judged tokens that were accepted; null if none was judged, or if "
            "acceptance is not tested"
        ),
    ] = None
    expected_rate: Annotated[
        float | None,
        Meta(
            description="share of the judged tokens that both models' distributions let expect, the mean of 1 "
            "- total variation; null if none was judged, or if acceptance is not tested"
        ),
    ] = None
    score: Annotated[
        float | None,
        Meta(
            description="score of softened acceptance, min(1, p/q)^0.8, in standard errors, about 0 of the "
            "right rule; null in other tests"
        ),
    ] = None
    chi_square: Annotated[
        float | None,
        Meta(
            description="chi-square of committed tokens by class against the target's distribution; null in "
            "other tests, and if too few classes hold enough tokens"
        ),
    ] = None
    p_value: Annotated[
        float | None,
        Meta(
            description="probability of a statistic at least as far off if the rule is right; null if too "
            "little was drawn"
        ),
    ] = None
    power: Annotated[
        float | None,
        Meta(
            description="probability with which the test finds the fault that it is meant for; null if too "
            "little was drawn"
        ),
    ] = None


class SamplingCheck(LosslessCounts, kw_only=True, omit_defaults=True):
    """The check of sampled outputs: token for token with the same seed (rule `match`), else by
    tests.

    What was accepted is tested under the rule `residual` alone.
    """

    rule: Annotated[
        str,
        Meta(
            description="rule by which sampled outputs are checked: 'match' token for token, others by tests "
            "of distributions"
        ),
    ] = ""
    consistent: Annotated[
        bool | None,
        Meta(
            description="whether outputs follow the target's distribution; null if too little was drawn to "
            "tell"
        ),
    ] = None
    level: Annotated[
        float,
        Meta(
            description="probability with which all tests together call a right rule wrong; 0 for outputs "
            "checked token for token"
        ),
    ] = 0.0
    acceptance: Annotated[
        SamplingTest | None,
        Meta(
            description="test of how many drafted tokens were accepted; null except under the rule 'residual'"
        ),
    ] = None
    softness: Annotated[
        SamplingTest | None,
        Meta(
            description="test of which drafted tokens were accepted; null except under the rule 'residual'"
        ),
    ] = None
    tokens: Annotated[
        SamplingTest | None,
        Meta(description="test of the committed tokens' distribution; null under the rule 'match'"),
    ] = None
    compared: Annotated[
        Count, Meta(description="outputs that were compared; 0 if distributions were tested")
    ] = 0
    identical: Annotated[
        Count,
        Meta(description="outputs with the baseline's tokens; 0 if distributions were tested"),
    ] = 0
    ties: Annotated[
        Count,
        Meta(
            description="outputs whose difference is explained by rounding; 0 if distributions were tested"
        ),
    ] = 0
    errors: Annotated[
        Count,
        Meta(
            description="outputs whose difference rounding does not explain; 0 if distributions were tested"
        ),
    ] = 0


class OutputVerdicts(NamedTuple):
    """What was found of a run's outputs; a part that does not apply is None."""

    lossless: LosslessCounts | None = None
    sampling: SamplingCheck | None = None


class PipelineMetrics(Struct):
    """The steps of a pipeline."""

    stages: Annotated[int, Meta(description="stages of the pipeline")]
    hit_rate: Annotated[
        float | None,
        Meta(
            description="share of the committed tokens that were already in flight; null without tokens"
        ),
    ]
    tbt: Annotated[DistributionValues, Meta(description="time between tokens")]
    steps: Annotated[int, Meta(description="times that all stages worked")]
    fills: Annotated[int, Meta(description="times that the pipeline was filled, once per round")]
    stalls: Annotated[int, Meta(description="steps that committed no token: steps - tokens")]
    stalls_of_fills: Annotated[
        int, Meta(description="steps that filling takes: fills x (stages - 1)")
    ]
    steps_per_token: Annotated[
        float | None,
        Meta(description="steps per token after each request's first; null without such tokens"),
    ]
    expected_steps_per_token: Annotated[
        float | None, Meta(description="1 + (1 - hit rate) x (stages - 1); null without a hit rate")
    ]
    published_steps_per_token: Annotated[
        float | None,
        Meta(
            description="1 + (1 - hit rate) x stages, SpecPipe's Eq. 2, which counts the step of a miss "
            "twice; null without a hit rate"
        ),
    ]
    step_s: Annotated[
        dict[str, float | None],
        Meta(
            description="busy seconds per step by phase, without prefill; a phase is null if its seconds are "
            "not known"
        ),
    ]


class SentStates(Struct):
    """The hidden states that crossed a link to the drafter."""

    layers: Annotated[
        list[int], Meta(description="layers of the target whose hidden states were sent")
    ]
    bytes_per_token: Annotated[float, Meta(description="bytes of one token's hidden states")]
    bytes: Annotated[
        float,
        Meta(description="bytes of all hidden states that were sent, those of prompts among them"),
    ]
    prompt_bytes: Annotated[float, Meta(description="bytes of the hidden states of prompts")]


class AnswerCounts(Struct):
    """Numbers of requests that have a reference answer."""

    judged: Annotated[int, Meta(description="requests with a reference answer that did not fail")]
    correct: Annotated[
        int, Meta(description="judged requests whose output matches the reference answer")
    ]
    cut: Annotated[
        int, Meta(description="judged requests whose output ended at the token limit")
    ] = 0


class ExactMatch(Struct):
    """How many answers are right, of the method and, where they are known, of target and draft
    model alone.
    """

    rule: Annotated[
        str, Meta(description="how outputs are matched with reference answers, in words")
    ]
    method: Annotated[AnswerCounts, Meta(description="answers of the method")]
    target: Annotated[
        AnswerCounts | None,
        Meta(description="answers of the target model alone; null without a baseline"),
    ] = None
    draft: Annotated[
        AnswerCounts | None,
        Meta(description="answers of the draft model alone; null if it did not answer"),
    ] = None
    max_new_tokens: Annotated[int, Meta(description="token limit of the outputs")] = 0


class BaselineSummary(Struct):
    """The same metrics of the baseline."""

    overall: Annotated[MetricValues, Meta(description="metrics of all of the baseline's requests")]
    categories: Annotated[
        dict[str, MetricValues], Meta(description="metrics of the baseline by category of prompts")
    ]


class RunSummary(Struct):
    """The content of `summary.json`: every metric of a run, overall and by category."""

    method: Annotated[str, Meta(description="spec of the method")]
    requests: Annotated[RequestCounts, Meta(description="numbers of requests")]
    overall: Annotated[MetricValues, Meta(description="metrics of all requests")]
    categories: Annotated[
        dict[str, MetricValues], Meta(description="metrics by category of prompts")
    ]
    baseline: Annotated[
        BaselineSummary | None,
        Meta(description="the same metrics of autoregressive decoding; null without a baseline"),
    ] = None
    lossless: Annotated[
        LosslessCounts | None,
        Meta(
            description="outputs compared with the baseline's token for token; null if they were not"
        ),
    ] = None
    sampling: Annotated[
        SamplingCheck | None, Meta(description="check of sampled outputs; null if none was made")
    ] = None
    pipeline: Annotated[
        PipelineMetrics | None, Meta(description="steps of a pipeline; null for other methods")
    ] = None
    hidden_states: Annotated[
        SentStates | None, Meta(description="hidden states that crossed the link; null if none did")
    ] = None
    exact_match: Annotated[
        ExactMatch | None,
        Meta(description="answers that are right; null if no prompt has a reference answer"),
    ] = None
    partial: Annotated[bool, Meta(description="whether requests that were planned are missing")] = (
        False
    )
    overlaps: Annotated[
        bool, Meta(description="whether the method drafts while the target verifies")
    ] = False
    tool_calls: Annotated[
        ToolCallSummary | None,
        Meta(
            description="answers in conversations with tools, by kind of token and by turn; null without such"
        ),
    ] = None
    thinking: Annotated[
        ThinkingSummary | None,
        Meta(
            description="answers that begin with thoughts, by their thoughts and their replies; null without such"
        ),
    ] = None
    along: Annotated[
        list[PartAcceptance],
        Meta(
            description="acceptance by place in the answer and in the context; empty if all rounds lie in one part"
        ),
    ] = []


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


def read_summary(content: JsonObject) -> RunSummary:
    """Return the summary in a parsed `summary.json`; ValueError names a field that is missing or of
    a wrong type.
    """
    return convert(RunSummary, one_line_texts(content))


class MethodRow(MetricValues, kw_only=True):
    """The row of a method in a table: its metrics, null without a value, its outputs, and how it
    compares with the table's reference.
    """

    lossless: Annotated[
        OutputCounts | None,
        Meta(
            description="outputs compared with the baseline's token for token; null if they were not"
        ),
    ] = None
    sampling_consistent: Annotated[
        bool | UnsetType | None,
        Meta(
            description="whether sampled outputs passed their checks; null if too few tokens were drawn to "
            "tell; left out of outputs that are not sampled, and where nothing was checked"
        ),
    ] = UNSET
    lossy: Annotated[
        bool, Meta(description="whether a rule of verification was named that lets outputs differ")
    ] = False
    speedup_verdict: Annotated[
        str | None, Meta(description="what the speedup shows, in words; null without a baseline")
    ] = None
    verdict: Annotated[
        str | None,
        Meta(
            description="what the speed relative to the reference shows, in words; null for the reference "
            "itself, and without common prompts"
        ),
    ] = None
    baseline_verdict: Annotated[
        str | None,
        Meta(
            description="what the ratio of the baselines' times shows, in words; null without baselines that "
            "share prompts"
        ),
    ] = None
    raw_times: Annotated[
        bool, Meta(description="whether times were compared with the reference's without baselines")
    ] = False
    repeats: Annotated[
        int | None,
        Meta(
            description="times that each request was decoded; null if once, or without a baseline"
        ),
    ] = None
    speedup_by_repeat: Annotated[
        list[float | None],
        Meta(
            description="speedup of each repeat in all, as a factor; null where a repeat has none"
        ),
    ] = field(default_factory=list)
    relative_speed_units: Annotated[
        int,
        Meta(
            description="independent prompts over which the speed relative to the reference is computed"
        ),
    ] = 0
    typical_relative_speed_upper: Annotated[
        float | None,
        Meta(
            description="factor that typical_relative_speed is below, with a confidence of 95%; null for too "
            "few prompts"
        ),
    ] = None
    typical_relative_speed_error: Annotated[
        float | None,
        Meta(
            description="standard error of the logarithm of typical_relative_speed over prompts; null for too "
            "few prompts"
        ),
    ] = None
    typical_relative_speed_limit: Annotated[
        float | None,
        Meta(
            description="standard errors beyond which the table shows a difference; null without a speed "
            "relative to the reference"
        ),
    ] = None
    process_error: Annotated[
        float | None,
        Meta(
            description="standard error of the logarithm of two methods' ratio of measured times over "
            "processes; null if times are not measured"
        ),
    ] = None
    process_half_width: Annotated[
        float | None,
        Meta(
            description="half the width of that logarithm's interval over processes in this table; null if "
            "times are not measured"
        ),
    ] = None
    process_seen: Annotated[
        bool,
        Meta(
            description="whether several processes have shown how far they are apart; else one is taken to "
            "differ by so much"
        ),
    ] = False
    typical_speedup_at_ends: Annotated[
        list[float] | None,
        Meta(
            description="typical_speedup at each end of the range of derived times; null without a range"
        ),
    ] = None
    typical_relative_speed_at_ends: Annotated[
        list[float] | None,
        Meta(
            description="typical_relative_speed at each end of the range of derived times; null without a "
            "range"
        ),
    ] = None


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
