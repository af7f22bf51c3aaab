"""Sentences on the result of a training run, computed from its numbers; its headline is in
`headlines.py`.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

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
    """The requests that a trace holds, and those that did not fit the context."""

    recorded: int = 0
    failed: int = 0


class TrainingDescription(RunDescription, kw_only=True):
    """What `run.json` says of the training of predictors."""

    requests: TraceRequests = field(default_factory=TraceRequests)


class RatioEstimate(Struct, frozen=True):
    """A quantity and its 95% interval; None if it is undefined, or if there are too few prompts for
    an interval.
    """

    value: float | None
    interval: list[float] | None


class RepeatedRatio(RatioEstimate, frozen=True):
    """The geometric mean of a ratio of speeds over several splits of the prompts, and the ratio of
    each.
    """

    values: list[float]


class Leaders(Struct, frozen=True):
    """Names of the fastest contender of each kind on the validation prompts.

    `rule` is the fastest classifier under its fastest rule, `classifier` its family. `longest` always drafts as many
    tokens as the trace allows.
    """

    classifier: str
    rule: str
    feature: str
    threshold: str
    fixed: str
    longest: str


class PartCounts(Struct):
    """The numbers of prompts, requests, offsets, examples and accepted tokens of a part of the
    trace.
    """

    prompts: int
    requests: int
    offsets: int
    examples: int
    accepted: int


class SplitCounts(Struct):
    """The parts of the trace: to train on, to choose parameters by, and to evaluate on."""

    training: PartCounts
    validation: PartCounts
    test: PartCounts

    @property
    def parts(self) -> dict[str, PartCounts]:
        """The parts by name."""
        return {"training": self.training, "validation": self.validation, "test": self.test}


class Prices(Struct, frozen=True):
    """The seconds of a draft step, of verifying n = 0, 1, ... tokens, and of the round trip with n
    tokens.

    `statistics_s` is the cost of a decision on a drafted token, to which `adds_scores` adds that of a score; `origin`
    says how it is known.
    """

    draft_s: float
    verify_s: tuple[float, ...]
    statistics_s: float
    link_s: tuple[float, ...] = ()
    adds_scores: bool = True
    origin: str = ""


class FamilySummary(Struct):
    """The search for the hyper-parameters of a family, and the seconds of single scores by
    statistic.
    """

    features: list[str]
    params: dict[str, object]
    validation_loss: float
    default_loss: float
    trials: int
    grid: int
    latency: dict[str, float]


class ContenderSummary(Struct):
    """What was chosen for a contender: its threshold, longest draft and price, and its speed on
    validation prompts.
    """

    name: str
    kind: str
    policy_s: float
    threshold: float | None
    longest: int | None
    validation_throughput: float


class ContenderDecoding(Struct, kw_only=True, omit_defaults=True):
    """A contender's metrics on the test prompts, as `metrics.vocabulary` defines them, and its
    ratios to others.
    """

    kind: str
    finished: int
    failed: int
    rounds: int
    tokens: int | None
    drafted: int | None
    submitted: int | None
    accepted: int | None
    wasted_tokens: int | None
    acceptance_length: float | None
    acceptance_rate: float | None
    draft_efficiency: float | None
    server_tokens_per_busy_second: float | None
    acceptance_after_pause: float | None = None
    acceptance_length_request_mean: float | None
    acceptance_rate_request_mean: float | None
    acceptance_length_sd: float | None
    intervals: dict[str, list[float] | None]
    wdt: float | None
    wdt_paper: float | None
    wdt_share: float | None
    makespan_s: float
    throughput: float
    speedup: RatioEstimate
    against_best_fixed: RatioEstimate
    against_best_feature: RatioEstimate
    regret: RatioEstimate
    gap_closed: RatioEstimate
    acceptance_gain: RatioEstimate


class CalibrationBins(Struct):
    """The mean score, the share of accepted tokens, and the number of tokens of each bin of
    scores.
    """

    mean_score: list[float]
    accepted_share: list[float]
    count: list[int]


class BoundTerm(Struct):
    """One term of the bound: the probability that the first rejected token has position
    `rejection`, and FP there.
    """

    rejection: int
    probability: float
    false_positive_rate: float | None
    term: float


class WasteBound(Struct):
    """The bound of WISP's Theorem 1, the measured waste per round in tokens, and the terms of the
    bound.
    """

    longest: int
    bound: float
    wasted_per_round: float
    terms: list[BoundTerm]


class Choices(Struct):
    """Ratios of speeds between the methods that a user can choose from, on the test prompts."""

    wisp_over_fixed: RatioEstimate
    confidence_over_fixed: RatioEstimate
    wisp_over_confidence: RatioEstimate
    plain_over_fixed: RatioEstimate


class Repeats(Struct):
    """The same ratios over `count` splits and trainings."""

    count: int
    wisp_over_fixed: RepeatedRatio
    confidence_over_fixed: RepeatedRatio
    wisp_over_confidence: RepeatedRatio
    oracle_over_fixed: RepeatedRatio


class SiteContender(Struct, kw_only=True, omit_defaults=True):
    """A contender that was tuned for a deployment, and its speed over the best fixed length
    there.
    """

    name: str
    threshold: float | None = None
    longest: int | None = None
    value: float | None
    interval: list[float] | None


class SiteSummary(Struct):
    """What the recommended family is worth in a deployment, with the costs involved."""

    deployment: str
    fixed: str
    published: SiteContender
    best: SiteContender
    confidence: SiteContender
    oracle: SiteContender
    decision_s: float
    decision_origin: str
    draft_s: float
    round_s: float


class Attribution(Struct):
    """The recommended classifier's tokens per second if one of its shortcomings is removed at a
    time.
    """

    never_wrong: float
    deciding_for_free: float
    last_token_sent: float


class CurvePoint(Struct):
    """The mean value of a feature in one bin, the share of accepted tokens there, and their
    number.
    """

    value: float
    accepted: float
    count: int


class CorrelationMatrix(Struct):
    """Correlations by row and column, in the order of `names`; None for a constant column."""

    names: list[str]
    matrix: list[list[float | None]]


class TrainingSummary(Struct):
    """The content of `summary.json`; every number is on the test prompts unless its name says
    otherwise.

    What is kept by name is that of families, of contenders, or of features.
    """

    recommended: str
    leaders: Leaders
    operating_point: str
    rule: str
    max_draft: int
    split: SplitCounts
    timing: Prices
    families: dict[str, FamilySummary]
    contenders: list[ContenderSummary]
    decoding: dict[str, ContenderDecoding]
    classification: dict[str, Classification]
    calibration: dict[str, CalibrationBins]
    theorem_1: dict[str, WasteBound]
    choices: Choices
    sites: list[SiteSummary]
    classifier_over_feature: RatioEstimate
    attribution: Attribution
    acceptance_by_feature: dict[str, list[CurvePoint]]
    correlations: CorrelationMatrix
    repeats: Repeats

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
