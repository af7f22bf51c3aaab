"""Sentences on the result of a training run, computed from its numbers; its headline is in
`headlines.py`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from specbench_kit.metrics.descriptions import as_metric
from specbench_kit.predictors.scoring import Classification
from specbench_kit.reports.writing.formatting import (
    interval,
    rate,
    seconds,
    share,
    significant,
    times,
)
from specbench_kit.runs.document import RunDescription


class TraceRequests(Struct):
    """The requests of a trace."""

    recorded: Annotated[int, Meta(description="requests that the trace holds")] = 0
    failed: Annotated[int, Meta(description="requests that did not fit the context")] = 0


class TrainingDescription(RunDescription, kw_only=True):
    """What `run.json` says of the training of predictors."""

    requests: Annotated[TraceRequests, Meta(description="requests of the trace")] = field(
        default_factory=TraceRequests
    )


class RatioEstimate(Struct, frozen=True):
    """A quantity with its interval."""

    value: Annotated[float | None, Meta(description="the quantity; null if it is undefined")]
    interval: Annotated[
        list[float] | None,
        Meta(description="95% interval; null if the quantity is undefined, or for too few prompts"),
    ]


class RepeatedRatio(RatioEstimate, frozen=True):
    """The geometric mean of a ratio of speeds over several splits of the prompts."""

    values: Annotated[list[float], Meta(description="ratio of each split")]


class Leaders(Struct, frozen=True):
    """Names of the fastest contender of each kind on the validation prompts."""

    classifier: Annotated[str, Meta(description="family of the fastest classifier")]
    rule: Annotated[str, Meta(description="the fastest classifier under its fastest rule")]
    feature: Annotated[str, Meta(description="the fastest rule on a single feature")]
    threshold: Annotated[str, Meta(description="the fastest 'threshold' method")]
    fixed: Annotated[str, Meta(description="the fastest fixed draft length")]
    longest: Annotated[
        str, Meta(description="the contender that always drafts as many tokens as the trace allows")
    ]


class PartCounts(Struct):
    """A part of the trace in numbers."""

    prompts: Annotated[int, Meta(description="prompts, where all turns of a dialogue are one")]
    requests: Annotated[int, Meta(description="requests")]
    offsets: Annotated[int, Meta(description="positions in outputs at which drafts were recorded")]
    examples: Annotated[int, Meta(description="drafted tokens that are examples to learn from")]
    accepted: Annotated[int, Meta(description="examples that the target accepted")]


class SplitCounts(Struct):
    """The parts of the trace."""

    training: Annotated[PartCounts, Meta(description="part to train on")]
    validation: Annotated[PartCounts, Meta(description="part to choose parameters by")]
    test: Annotated[PartCounts, Meta(description="part to evaluate on")]

    @property
    def parts(self) -> dict[str, PartCounts]:
        """The parts by name."""
        return {"training": self.training, "validation": self.validation, "test": self.test}


class Prices(Struct, frozen=True):
    """What a round costs."""

    draft_s: Annotated[float, Meta(description="seconds of a draft step")]
    verify_s: Annotated[
        tuple[float, ...], Meta(description="seconds of verifying n = 0, 1, ... drafted tokens")
    ]
    statistics_s: Annotated[float, Meta(description="seconds of a decision on a drafted token")]
    link_s: Annotated[
        tuple[float, ...],
        Meta(
            description="seconds of the round trip with n = 0, 1, ... drafted tokens; empty without a link"
        ),
    ] = ()
    adds_scores: Annotated[
        bool,
        Meta(
            description="whether a classifier's score costs its own seconds beside 'statistics_s'"
        ),
    ] = True
    origin: Annotated[str, Meta(description="how the cost of a decision is known")] = ""


class FamilySummary(Struct):
    """The search for the hyper-parameters of a family of classifiers."""

    features: Annotated[list[str], Meta(description="features that it scores by")]
    params: Annotated[dict[str, object], Meta(description="the chosen hyper-parameters")]
    validation_loss: Annotated[
        float, Meta(description="log-loss of the chosen ones on validation examples, in nats")
    ]
    default_loss: Annotated[
        float, Meta(description="the same of the family's default ones, in nats")
    ]
    trials: Annotated[int, Meta(description="combinations that were tried")]
    grid: Annotated[int, Meta(description="combinations of the whole grid")]
    latency: Annotated[dict[str, float], Meta(description="seconds of a single score by statistic")]


class ContenderSummary(Struct):
    """What was chosen for a contender."""

    name: Annotated[str, Meta(description="name of the contender")]
    kind: Annotated[
        str,
        Meta(
            description="kind of contender: classifier, feature, threshold, fixed, plain, oracle or variant"
        ),
    ]
    policy_s: Annotated[float, Meta(description="seconds of its decision on a drafted token")]
    threshold: Annotated[
        float | None,
        Meta(description="score below which it stops drafting; null if it goes by no score"),
    ]
    longest: Annotated[
        int | None, Meta(description="its longest draft in tokens; null if it goes by no score")
    ]
    validation_throughput: Annotated[
        float, Meta(description="committed tokens per second on validation prompts")
    ]


class ContenderDecoding(Struct, kw_only=True, omit_defaults=True):
    """A contender's metrics on the test prompts, null without a value, and its ratios to others."""

    kind: Annotated[
        str,
        Meta(
            description="kind of contender: classifier, feature, threshold, fixed, plain, oracle or variant"
        ),
    ]
    finished: Annotated[int, as_metric("finished")]
    failed: Annotated[int, as_metric("failed")]
    rounds: Annotated[int, as_metric("rounds")]
    tokens: Annotated[int | None, as_metric("tokens")]
    drafted: Annotated[int | None, as_metric("drafted")]
    submitted: Annotated[int | None, as_metric("submitted")]
    accepted: Annotated[int | None, as_metric("accepted")]
    wasted_tokens: Annotated[int | None, as_metric("wasted_tokens")]
    acceptance_length: Annotated[float | None, as_metric("acceptance_length")]
    acceptance_rate: Annotated[float | None, as_metric("acceptance_rate")]
    draft_efficiency: Annotated[float | None, as_metric("draft_efficiency")]
    server_tokens_per_busy_second: Annotated[
        float | None, as_metric("server_tokens_per_busy_second")
    ]
    acceptance_after_pause: Annotated[float | None, as_metric("acceptance_after_pause")] = None
    acceptance_length_request_mean: Annotated[
        float | None, as_metric("acceptance_length_request_mean")
    ]
    acceptance_rate_request_mean: Annotated[float | None, as_metric("acceptance_rate_request_mean")]
    acceptance_length_sd: Annotated[float | None, as_metric("acceptance_length_sd")]
    intervals: Annotated[dict[str, list[float] | None], as_metric("intervals")]
    wdt: Annotated[float | None, as_metric("wdt")]
    wdt_paper: Annotated[float | None, as_metric("wdt_paper")]
    wdt_share: Annotated[float | None, as_metric("wdt_share")]
    makespan_s: Annotated[float, as_metric("makespan_s")]
    throughput: Annotated[float, as_metric("throughput")]
    speedup: Annotated[RatioEstimate, Meta(description="speed / that of autoregressive decoding")]
    against_best_fixed: Annotated[
        RatioEstimate, Meta(description="speed / that of the fastest fixed draft length")
    ]
    against_best_feature: Annotated[
        RatioEstimate, Meta(description="speed / that of the fastest rule on a single feature")
    ]
    regret: Annotated[
        RatioEstimate, Meta(description="share of its time that the oracle would have saved")
    ]
    gap_closed: Annotated[
        RatioEstimate,
        Meta(
            description="share of the gap in speed between the fastest fixed draft length and the oracle that "
            "it closes"
        ),
    ]
    acceptance_gain: Annotated[
        RatioEstimate,
        Meta(
            description="share of submitted tokens that is accepted / that of the longest fixed draft length "
            "- 1"
        ),
    ]


class CalibrationBins(Struct):
    """Scores held against what was accepted, in bins of scores that are not empty."""

    mean_score: Annotated[list[float], Meta(description="mean score of each bin")]
    accepted_share: Annotated[list[float], Meta(description="share of accepted tokens of each bin")]
    count: Annotated[list[int], Meta(description="tokens of each bin")]


class BoundTerm(Struct):
    """One term of the bound."""

    rejection: Annotated[
        int, Meta(description="position of the first token that the target rejects, from 1")
    ]
    probability: Annotated[
        float, Meta(description="share of the rounds whose first rejected token has this position")
    ]
    false_positive_rate: Annotated[
        float | None,
        Meta(
            description="share of these rounds in which the rule lets that token pass; null if there are none"
        ),
    ]
    term: Annotated[float, Meta(description="tokens that the term adds to the bound")]


class WasteBound(Struct):
    """WISP's Theorem 1, which bounds the waste of a rule that does not submit the token it stops
    at.
    """

    longest: Annotated[int, Meta(description="longest draft of the rule in tokens")]
    bound: Annotated[float, Meta(description="bound on wasted tokens per round")]
    wasted_per_round: Annotated[
        float,
        Meta(description="measured submitted tokens per round from the first rejected one on"),
    ]
    terms: Annotated[list[BoundTerm], Meta(description="terms of the bound, by position")]


class Choices(Struct):
    """Ratios of speeds between the methods that a user can choose from, on the test prompts."""

    wisp_over_fixed: Annotated[
        RatioEstimate,
        Meta(description="speed of the fastest classifier / of the fastest fixed length"),
    ]
    confidence_over_fixed: Annotated[
        RatioEstimate,
        Meta(description="speed of the fastest 'threshold' method / of the fastest fixed length"),
    ]
    wisp_over_confidence: Annotated[
        RatioEstimate,
        Meta(description="speed of the fastest classifier / of the fastest 'threshold' method"),
    ]
    plain_over_fixed: Annotated[
        RatioEstimate,
        Meta(description="speed of autoregressive decoding / of the fastest fixed length"),
    ]


class Repeats(Struct):
    """Ratios of speeds over several splits and trainings."""

    count: Annotated[int, Meta(description="splits and trainings")]
    wisp_over_fixed: Annotated[
        RepeatedRatio,
        Meta(description="speed of the fastest classifier / of the fastest fixed length"),
    ]
    confidence_over_fixed: Annotated[
        RepeatedRatio,
        Meta(description="speed of the fastest 'threshold' method / of the fastest fixed length"),
    ]
    wisp_over_confidence: Annotated[
        RepeatedRatio,
        Meta(description="speed of the fastest classifier / of the fastest 'threshold' method"),
    ]
    oracle_over_fixed: Annotated[
        RepeatedRatio, Meta(description="speed of the oracle / of the fastest fixed length")
    ]


class SiteContender(Struct, kw_only=True, omit_defaults=True):
    """A contender that was tuned for a deployment."""

    name: Annotated[str, Meta(description="name of the contender")]
    threshold: Annotated[
        float | None,
        Meta(description="score below which it stops drafting; null if it goes by no score"),
    ] = None
    longest: Annotated[
        int | None, Meta(description="its longest draft in tokens; null if it goes by no score")
    ] = None
    value: Annotated[
        float | None,
        Meta(description="speed / that of the best fixed length there; null if it is undefined"),
    ]
    interval: Annotated[
        list[float] | None,
        Meta(
            description="95% interval of 'value'; null if that is undefined, or for too few prompts"
        ),
    ]


class SiteSummary(Struct):
    """What the recommended family is worth in a deployment, with the costs involved."""

    deployment: Annotated[str, Meta(description="name of the deployment")]
    fixed: Annotated[str, Meta(description="the best fixed length")]
    published: Annotated[SiteContender, Meta(description="the family under the published rule")]
    best: Annotated[SiteContender, Meta(description="the family under its fastest rule")]
    confidence: Annotated[SiteContender, Meta(description="the fastest 'threshold' method")]
    oracle: Annotated[SiteContender, Meta(description="the oracle")]
    decision_s: Annotated[
        float, Meta(description="seconds of the family's decision on a drafted token")
    ]
    decision_origin: Annotated[str, Meta(description="how the cost of a decision is known")]
    draft_s: Annotated[float, Meta(description="seconds of a draft step")]
    round_s: Annotated[
        float,
        Meta(description="seconds of a round without drafted tokens, its round trip included"),
    ]


class Attribution(Struct):
    """Tokens per second of the recommended classifier with one of its shortcomings removed."""

    never_wrong: Annotated[
        float,
        Meta(description="tokens per second if it stopped exactly at the first rejected token"),
    ]
    deciding_for_free: Annotated[
        float, Meta(description="tokens per second if its decisions took no time")
    ]
    last_token_sent: Annotated[
        float, Meta(description="tokens per second if it submitted the token that it stops at")
    ]


class CurvePoint(Struct):
    """One bin of a feature."""

    value: Annotated[float, Meta(description="mean value of the feature")]
    accepted: Annotated[float, Meta(description="share of accepted tokens")]
    count: Annotated[int, Meta(description="number of tokens")]


class CorrelationMatrix(Struct):
    """Correlations by row and column, in the order of `names`; None for a constant column."""

    names: Annotated[
        list[str],
        Meta(
            description="names of rows and columns: the features, and whether a token was accepted"
        ),
    ]
    matrix: Annotated[
        list[list[float | None]],
        Meta(description="Pearson correlations by row and column; null for a constant column"),
    ]


class TrainingSummary(Struct):
    """The content of `summary.json` of a training; every number is on the test prompts unless its
    name says otherwise.
    """

    recommended: Annotated[str, Meta(description="family that is recommended")]
    leaders: Annotated[Leaders, Meta(description="the fastest contender of each kind")]
    operating_point: Annotated[
        str, Meta(description="rule that thresholds were chosen by, as an option")
    ]
    rule: Annotated[str, Meta(description="that rule in words")]
    max_draft: Annotated[int, Meta(description="longest draft of the trace in tokens")]
    split: Annotated[SplitCounts, Meta(description="the parts of the trace")]
    timing: Annotated[Prices, Meta(description="what a round costs")]
    families: Annotated[
        dict[str, FamilySummary], Meta(description="search for hyper-parameters, by family")
    ]
    contenders: Annotated[
        list[ContenderSummary], Meta(description="what was chosen for each contender")
    ]
    decoding: Annotated[dict[str, ContenderDecoding], Meta(description="metrics by contender")]
    classification: Annotated[
        dict[str, Classification],
        Meta(description="how well scores separate accepted from rejected tokens, by contender"),
    ]
    calibration: Annotated[
        dict[str, CalibrationBins],
        Meta(description="scores held against what was accepted, by family"),
    ]
    theorem_1: Annotated[
        dict[str, WasteBound],
        Meta(description="bound of WISP's Theorem 1, by contender that it covers"),
    ]
    choices: Annotated[
        Choices,
        Meta(description="ratios of speeds between the methods that a user can choose from"),
    ]
    sites: Annotated[
        list[SiteSummary],
        Meta(
            description="worth of the recommended family in each deployment, that of the report first"
        ),
    ]
    classifier_over_feature: Annotated[
        RatioEstimate,
        Meta(
            description="speed of the recommended classifier under the published rule / of the fastest rule "
            "on a single feature"
        ),
    ]
    attribution: Annotated[
        Attribution,
        Meta(description="tokens per second without one of the classifier's shortcomings"),
    ]
    acceptance_by_feature: Annotated[
        dict[str, list[CurvePoint]],
        Meta(description="share of accepted training tokens by value of each feature"),
    ]
    correlations: Annotated[
        CorrelationMatrix,
        Meta(description="correlations of features and acceptance on training tokens"),
    ]
    repeats: Annotated[
        Repeats, Meta(description="the main ratios over several splits and trainings")
    ]

    def contender(self, name: str) -> ContenderSummary:
        """Return what was chosen for a contender."""
        return next(contender for contender in self.contenders if contender.name == name)

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every contender."""
        return {contender.name: contender.kind for contender in self.contenders}


FEW_PROMPTS = 20
"""Test prompts below which a reader is warned."""


def classifier_adds(summary: TrainingSummary) -> str:
    """Return what the classifier adds to a tuned threshold on a single feature."""
    name = summary.recommended
    feature = summary.leaders.feature
    ratio = summary.classifier_over_feature
    scores = summary.classification
    if ratio.interval is None:
        verdict = "too few prompts to tell."
    elif ratio.interval[0] > 1:
        verdict = "speed."
    else:
        verdict = (
            "nothing; it costs speed."
            if ratio.interval[1] < 1
            else "no speed that these prompts can show."
        )
    return (
        f"What the classifier adds: {verdict} `{name}` has {factor(ratio)} the speed of the best threshold on a "
        f"single feature ({feature}), tuned on the same validation prompts by the same rule; AUC "
        f"{significant(scores[name].auc)} against {significant(scores[feature].auc)}."
    )


def potential_gain(summary: TrainingSummary) -> str:
    """Return what there is to gain, and which costs keep the recommended classifier from it."""
    leaders = summary.leaders
    timing = summary.timing
    longest = summary.max_draft
    fixed = summary.decoding[leaders.fixed].throughput
    oracle = times(summary.decoding["oracle"].throughput / fixed)
    right = times(summary.attribution.never_wrong / fixed)
    free = times(summary.attribution.deciding_for_free / fixed)
    sent = times(summary.attribution.last_token_sent / fixed)
    stops_nothing = ""
    if leaders.rule in let_all_pass(summary):
        stops_nothing = (
            f"At these prices it lets every token pass and drafts {summary.contender(leaders.rule).longest} in "
            "each round: any stop on its scores would cost more than it saves. "
        )
    decision_s = summary.contender(summary.recommended).policy_s
    origin = f", {timing.origin}" if timing.origin else ""
    return (
        "What there is to gain, as a multiple of the best fixed length: an oracle that knows the answer and decides in "
        f"no time reaches {oracle}. `{leaders.classifier}` would reach {right} if it were never wrong, {free} if it "
        f"decided in no time, and {sent} if it sent the token at which it stops instead of dropping it. "
        f"{stops_nothing}Prices: a draft step {seconds(timing.draft_s)}, a decision {seconds(decision_s)} per "
        f"drafted token (of which {seconds(timing.statistics_s)} before the score{origin}), a plain target step "
        f"{seconds(timing.verify_s[0])}, verifying {longest} drafted tokens {seconds(timing.verify_s[longest])}."
    )


def time_sentence(run: TrainingDescription) -> str:
    """Return where the durations come from."""
    name = run.deployment_name
    if name in (None, "recorded"):
        return "modelled: as measured while the trace was recorded; scores take what they took in training"
    return (
        f"modelled: by the deployment '{name}', at the trace's mean context; prompts take no time"
    )


def to_measure(run: TrainingDescription, summary: TrainingSummary) -> str:
    """Return the command that measures the recommended predictor by a clock."""
    leaders = summary.leaders
    methods = (f"wisp:predictor={leaders.rule}", leaders.threshold, leaders.fixed)
    command = " ".join(["skit bench", *(f"--method {spec}" for spec in methods)])
    bundled = all(str(model.name).startswith("bundled/") for model in run.models.values() if model)
    models = "" if bundled else ", with the same `--target` and `--draft`,"
    return f"All these speeds are modelled; `{command}`{models} measures them."


def let_all_pass(summary: TrainingSummary) -> list[str]:
    """Return the contenders whose threshold of 0 stops no token."""
    return [contender.name for contender in summary.contenders if contender.threshold == 0]


def cautions(run: TrainingDescription, summary: TrainingSummary) -> list[str]:
    """Return what a reader must know before quoting a number."""
    lines = []
    failed = run.requests.failed
    if summary.split.test.prompts < FEW_PROMPTS:
        few = prompts_in_words(summary.split.test.prompts)
        lines.append(f"FEW PROMPTS: all results come from {few}; record more before you conclude.")
    fixed = [
        f"{name} as fixed-k:k={summary.contender(name).longest}"
        for name in let_all_pass(summary)
        if name in summary.families
    ]
    if fixed:
        lines.append(
            "FIXED LENGTH: a classifier that lets every token pass (threshold 0) drafts a fixed length: "
            f"{', '.join(fixed)}."
        )
    if failed:
        lines.append(
            f"FAILED REQUESTS: {failed} did not fit the context; nothing was learned from them."
        )
    return lines


def label(name: str, kind: str) -> str:
    """Return a contender's name in a table."""
    family, _, rule = name.partition(",")
    labels = {
        "classifier": f"`wisp`, {family}",
        "variant": f"`wisp:{rule}`, {family}",
        "feature": name,
    }
    return labels.get(kind, f"`{name}`")


def share_range(bounds: Sequence[float]) -> str:
    """Return both ends of an interval of shares."""
    return " to ".join(share(bound) for bound in bounds)


def prompts_in_words(prompts: int) -> str:
    """Return a number of prompts in words."""
    return f"{prompts} prompt{'s' if prompts != 1 else ''}"


def factor(estimate: RatioEstimate) -> str:
    """Return a factor with its interval."""
    return times(estimate.value) + interval_note(estimate, interval)


def interval_note(estimate: RatioEstimate, show: Callable[[Sequence[float]], str]) -> str:
    """Return an estimate's interval in brackets, or nothing if it has none."""
    return f" (95% interval {show(estimate.interval)})" if estimate.interval else ""


def headline(
    leaders: Leaders, decoding: ContenderDecoding, chosen: ContenderSummary, prompts: int
) -> str:
    """Return the recommended predictor, its speed and its acceptance rate on so many test
    prompts.
    """
    name = leaders.rule
    ratio = decoding.against_best_fixed
    gap = decoding.gap_closed
    gain = decoding.acceptance_gain.value
    same = f", which is `fixed-k:k={chosen.longest}`," if chosen.threshold == 0 else ""
    # Only an interval that does not contain 1 shows a difference.
    decided = ratio.interval and not ratio.interval[0] <= 1 <= ratio.interval[1]
    doubt = "" if decided else ": no difference is shown"
    relative = "with nothing to compare it to in" if gain is None else f"{times(1 + gain)} that of"
    if gap.value is None:
        closed = (
            "the oracle is no faster than the best fixed length here, so there is no gap to close"
        )
    else:
        part = share(gap.value) if gap.value >= 0 else "nothing"
        bounds = interval_note(gap, share_range)
        closed = f"it closes {part} of the gap between the best fixed length and the oracle{bounds}"
    return (
        f"On {prompts_in_words(prompts)} that nothing was chosen on, `wisp:predictor={name}`{same} decodes "
        f"{rate(decoding.throughput)}, {factor(ratio)} the speed of the best fixed length "
        f"(`{leaders.fixed}`){doubt}. "
        f"Its acceptance rate is {share(decoding.acceptance_rate)}, {relative} `{leaders.longest}`; {closed}."
    )


def headline_of(summary: TrainingSummary) -> str:
    """Return the headline of a training run."""
    name = summary.leaders.rule
    prompts = summary.split.test.prompts
    return headline(summary.leaders, summary.decoding[name], summary.contender(name), prompts)
