"""Every metric's name, unit and definition.

A round is one verification by the target; it commits at least one token. Plain decoding is
autoregressive decoding by the target alone, one token per round. A request's TTFT, TPOT and
end-to-end time are measured from its arrival.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Generic, Literal, TypeVar, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, structs

Unit = Literal["count", "number", "tokens", "share", "times", "seconds", "rate"]
"""A `rate` is in tokens per second, `tokens` are a mean of them, `times` is a factor, a `share`
lies between 0 and 1, and a `number` has none of these units.
"""
BASELINE = "autoregressive"
"""The label of the baseline in every table."""


TableKind = Literal["comparison", "paper", "terminal", "run", "run, folded", "categories of a run"]
"""The tables whose columns are chosen: of methods side by side on a page, in a paper (as many as
fit one column of it) and on a terminal; of one run, what opens below it on a click, and that run's
categories.
"""


Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class ColumnHeading:
    """The column of a metric in tables that compare methods: its title, its title in a paper, and a
    caption's words.

    `part` names the one of a distribution's numbers that the column holds. Every table that compares methods can open
    the column on a click; `leads` names those that show it at once. A paper's table sets the `better` of its numbers in
    bold; of a metric that only describes, `neither`.
    """

    title: str
    symbol: str
    meaning: str = ""
    better: Better = "higher"
    part: str = ""
    leads: Sequence[TableKind] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Where a metric appears besides the summary, and what it depends on.

    A `timeless` metric has no time in it, so that a busy machine does not change it. The interval of one that is
    `bounded` has columns of its own in the CSV; something has to compute it, such as `RATIOS` in `acceptance.py`. One
    that is `relative` compares with the reference of a table, and one that is `in_sweeps` has a column in the table of
    a sweep. `topic` groups metrics that belong together.
    """

    timeless: bool = False
    bounded: bool = False
    relative: bool = False
    in_sweeps: bool = False
    topic: Literal["", "colocated", "overlap"] = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One scalar of a summary, declared at its field of `MetricValues` and nowhere else; `name` is
    the field's.
    """

    unit: Unit
    definition: str
    heading: ColumnHeading | None = None
    traits: Traits = Traits()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A metric in seconds with a mean and percentiles, and its columns in tables that compare
    methods.
    """

    definition: str
    headings: tuple[ColumnHeading, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Several:
    """A metric that is several numbers."""

    definition: str
    name: str = ""


N = TypeVar("N")
"""A number, a number that may be unknown, or a number with its interval."""


class Percentiles(Struct, Generic[N]):
    """Mean and percentiles of a quantity."""

    mean: Annotated[N, Meta(description="mean of the values")]
    p50: Annotated[N, Meta(description="median of the values")]
    p95: Annotated[N, Meta(description="95th percentile of the values")]
    p99: Annotated[N, Meta(description="99th percentile of the values")]


class DistributionValues(Percentiles[float | None]):
    """Mean and percentiles in seconds; null if there are no values."""


class PhaseValues(Struct):
    """A number for each phase, null if its time is not known: busy seconds, or shares of all busy
    seconds.
    """

    prefill: Annotated[
        float | None,
        Meta(description="the draft model's prefill; the target's is part of 'verify'"),
    ]
    draft: Annotated[float | None, Meta(description="drafting")]
    policy: Annotated[float | None, Meta(description="decisions of the method's policy")]
    link: Annotated[float | None, Meta(description="the link between drafter and verifier")]
    queue: Annotated[float | None, Meta(description="waiting for the verifier")]
    verify: Annotated[
        float | None, Meta(description="verification by the target, its prefill among it")
    ]
    commit: Annotated[float | None, Meta(description="adding tokens to outputs")]


Interval = Annotated[list[float], Meta(min_length=2, max_length=2)]
"""The two bounds of a confidence interval."""


class MetricValues(Struct, kw_only=True):
    """The metrics of a group of requests; null if a metric has no value.

    Those without a default need nothing but requests; the others need a baseline, a makespan,
    prices or a comparison.
    """

    finished: Annotated[
        int | None,
        Metric(
            "count",
            "requests that finished; all other metrics are computed over these",
            traits=Traits(timeless=True, in_sweeps=True),
        ),
    ]
    failed: Annotated[
        int | None,
        Metric(
            "count",
            "requests that ended in an error; no other metric includes them",
            traits=Traits(timeless=True),
        ),
    ]
    rounds: Annotated[
        int | None,
        Metric(
            "count",
            "verifications by the target; each commits at least one token",
            traits=Traits(timeless=True, in_sweeps=True),
        ),
    ]
    tokens: Annotated[
        int | None,
        Metric("count", "committed output tokens", traits=Traits(timeless=True, in_sweeps=True)),
    ]
    drafted: Annotated[
        int | None,
        Metric("count", "tokens that the drafter produced", traits=Traits(timeless=True)),
    ]
    submitted: Annotated[
        int | None,
        Metric(
            "count",
            "drafted tokens that were sent to the target for verification",
            traits=Traits(timeless=True),
        ),
    ]
    accepted: Annotated[
        int | None,
        Metric("count", "submitted tokens that the target accepted", traits=Traits(timeless=True)),
    ]
    acceptance_length: Annotated[
        float | None,
        Metric(
            "tokens",
            "committed tokens per verification: committed tokens / rounds, over all requests together",
            ColumnHeading(
                "acceptance length",
                "τ",
                "committed tokens per verification",
                leads=("comparison", "paper", "terminal", "run", "categories of a run"),
            ),
            Traits(timeless=True, bounded=True, in_sweeps=True),
        ),
    ]
    tokens_per_step: Annotated[
        float | None,
        Metric(
            "tokens",
            "committed tokens / steps of all stages of a pipeline, which has no rounds and so no acceptance length or "
            "rate",
            ColumnHeading(
                "tokens per step",
                "Tok/step",
                "committed tokens per pipeline step",
                leads=("comparison", "paper"),
            ),
        ),
    ] = None
    hit_rate: Annotated[
        float | None,
        Metric(
            "share",
            "share of a pipeline's committed tokens that were in flight when they were committed",
            ColumnHeading("hit rate", "Hits", "committed tokens that were in flight in a pipeline"),
        ),
    ] = None
    acceptance_length_sd: Annotated[
        float | None,
        Metric(
            "tokens",
            "standard deviation of the committed tokens per round, over all rounds",
            traits=Traits(timeless=True),
        ),
    ]
    acceptance_length_request_mean: Annotated[
        float | None,
        Metric(
            "tokens",
            "mean over requests of each request's acceptance length",
            traits=Traits(timeless=True),
        ),
    ]
    acceptance_rate: Annotated[
        float | None,
        Metric(
            "share",
            "accepted tokens / submitted tokens",
            ColumnHeading(
                "acceptance rate",
                "Accept.",
                "accepted of submitted tokens",
                leads=("run", "categories of a run"),
            ),
            Traits(timeless=True, bounded=True, in_sweeps=True),
        ),
    ]
    acceptance_rate_request_mean: Annotated[
        float | None,
        Metric(
            "share",
            "mean over requests of each request's acceptance rate",
            traits=Traits(timeless=True),
        ),
    ]
    draft_efficiency: Annotated[
        float | None,
        Metric(
            "share",
            "accepted tokens / drafted tokens",
            ColumnHeading(
                "draft efficiency",
                "Draft eff.",
                "accepted of drafted tokens",
                leads=("run, folded", "categories of a run"),
            ),
            Traits(timeless=True, bounded=True, in_sweeps=True),
        ),
    ]
    expected_accepted_length: Annotated[
        float | None,
        Metric(
            "tokens",
            "accepted tokens per round that the policy predicted from its acceptance probabilities; mean over the "
            "rounds for which it predicts any",
        ),
    ] = None
    accepted_length: Annotated[
        float | None, Metric("tokens", "accepted tokens per round; mean over the same rounds")
    ] = None
    expectation_bias: Annotated[
        float | None,
        Metric(
            "times",
            "expected_accepted_length / accepted_length: above 1 the policy is overconfident",
        ),
    ] = None
    forbidden_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the submitted tokens that the request's grammar forbids, of drafters that do not know it; what "
            "hangs below such a token is not counted. Given if outputs had to follow a grammar",
            ColumnHeading(
                "forbidden drafts",
                "Forbidden",
                "submitted tokens that the grammar forbids",
                better="lower",
            ),
            Traits(timeless=True),
        ),
    ] = None
    forced_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the output tokens that joined it without being verified, since the request's grammar allows no "
            "others in their places: they are neither drafts nor committed tokens of a round, and count in no "
            "acceptance. Given if outputs had to follow a grammar",
            ColumnHeading(
                "forced tokens",
                "Forced",
                "output tokens that the grammar forces and that were not verified",
            ),
            Traits(timeless=True),
        ),
    ] = None
    choice_acceptance_rate: Annotated[
        float | None,
        Metric(
            "share",
            "accepted / submitted tokens, without those drafted tokens that are the only ones that the request's "
            "grammar allows in their places, which no draft can get wrong. Given if outputs had to follow a grammar",
            ColumnHeading(
                "accepted choices",
                "Choices",
                "accepted share of drafted tokens in which the grammar leaves a choice",
                better="higher",
            ),
            Traits(timeless=True),
        ),
    ] = None
    valid_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the finished requests whose output follows its grammar to the end. Given if outputs had to "
            "follow one",
            ColumnHeading(
                "valid by the grammar",
                "Valid",
                "outputs that follow the grammar to its end",
                leads=("run, folded",),
            ),
            Traits(timeless=True),
        ),
    ] = None
    cut_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the finished requests whose output follows its grammar and was cut by the token limit before "
            "its end",
            traits=Traits(timeless=True),
        ),
    ] = None
    wasted_tokens: Annotated[
        int | None,
        Metric(
            "count",
            "drafted tokens that were not accepted: drafted - accepted",
            traits=Traits(timeless=True),
        ),
    ]
    wdt: Annotated[
        float | None,
        Metric(
            "seconds",
            "wasted drafting time: drafting seconds of all wasted tokens, submitted or not",
        ),
    ]
    wdt_paper: Annotated[
        float | None,
        Metric(
            "seconds",
            "wasted drafting time as WISP defines it: drafting seconds of submitted tokens that were not accepted",
        ),
    ]
    wdt_share: Annotated[
        float | None,
        Metric(
            "share",
            "wasted drafting time / all drafting time",
            ColumnHeading(
                "WDT",
                "WDT",
                "drafting time spent on wasted tokens",
                better="lower",
                leads=("run, folded",),
            ),
            Traits(in_sweeps=True),
        ),
    ]
    draft_bytes: Annotated[
        int | None,
        Metric(
            "count", "bytes of the drafts that were sent to a server, as they went over the wire"
        ),
    ] = None
    stale_bytes_share: Annotated[
        float | None,
        Metric(
            "share",
            "bytes of drafts that the server dropped unverified, since its text came out otherwise, / all",
        ),
    ] = None
    makespan_s: Annotated[
        float | None,
        Metric(
            "seconds",
            "time from the start of the run to the end of its last request",
            traits=Traits(in_sweeps=True),
        ),
    ] = None
    throughput: Annotated[
        float | None,
        Metric(
            "rate",
            "committed tokens / makespan",
            ColumnHeading("throughput", "Throughput", leads=("comparison", "terminal", "run")),
            Traits(in_sweeps=True),
        ),
    ] = None
    throughput_request_mean: Annotated[
        float | None, Metric("rate", "mean over requests of output tokens / end-to-end time")
    ] = None
    goodput: Annotated[
        float | None, Metric("rate", "committed tokens of the requests that met the SLO / makespan")
    ] = None
    slo_tpot_s: Annotated[
        float | None,
        Metric("seconds", "the SLO of goodput: the longest time per output token that meets it"),
    ] = None
    server_tokens_per_busy_second: Annotated[
        float | None,
        Metric(
            "rate",
            "committed tokens / seconds in which the target verified",
            traits=Traits(in_sweeps=True),
        ),
    ]
    cost_efficiency: Annotated[
        float | None,
        Metric(
            "number",
            "committed tokens per dollar; the server is paid for the whole makespan, a drafting device for the time in "
            "which it works",
            traits=Traits(in_sweeps=True),
        ),
    ] = None
    alignment_rate: Annotated[
        float | None,
        Metric(
            "share",
            "of the rounds that drafted ahead while the target verified, the share whose guess of the outcome was "
            "right",
            traits=Traits(topic="overlap"),
        ),
    ] = None
    acceptance_after_pause: Annotated[
        float | None,
        Metric(
            "share",
            "of the rounds that drafted after a round of the same request without a draft, the share whose first "
            "token was accepted: a drafter whose state went stale in the pause is right less often there",
        ),
    ] = None
    proactive_hit_depth: Annotated[
        float | None,
        Metric(
            "tokens",
            "accepted tokens that were drafted ahead, per round whose guess was right",
            traits=Traits(topic="overlap"),
        ),
    ] = None
    edge_idle_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the requests' end-to-end time in which their drafting devices did not work",
            traits=Traits(topic="overlap"),
        ),
    ] = None
    server_idle_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the makespan in which the target did not verify",
            traits=Traits(topic="overlap"),
        ),
    ] = None
    colocated_speedup: Annotated[
        float | None,
        Metric(
            "times",
            "time of autoregressive decoding / time of the same rounds with draft and target model on one server, "
            "where a request crosses the link once and drafting and verifying do not overlap",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    colocated_ratio: Annotated[
        float | None,
        Metric(
            "times",
            "time of the same rounds with both models on one server / their time with the draft model beyond the link: "
            "above 1, drafting beyond the link is faster",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    rtt_window_s: Annotated[
        float | None,
        Metric(
            "seconds",
            "round-trip time below which drafting beyond the link is faster than both models on one server, in closed "
            "form; 0 means at no round-trip time",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    rtt_window_overlapped_s: Annotated[
        float | None,
        Metric(
            "seconds",
            "drafting time per round on the server: at a longer round-trip time, drafting beyond the link cannot be "
            "faster even if it overlaps fully with verifying",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    rtt_window_autoregressive_s: Annotated[
        float | None,
        Metric(
            "seconds",
            "round-trip time below which drafting beyond the link is faster than autoregressive decoding on the "
            "server, in "
            "closed form; 0 means at no round-trip time",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    capacity_factor: Annotated[
        float | None,
        Metric(
            "number",
            "1 + drafting time / verifying time of a server that does both: how many times as many clients it could "
            "serve if they drafted themselves",
            traits=Traits(in_sweeps=True, topic="colocated"),
        ),
    ] = None
    headroom: Annotated[
        float | None,
        Metric(
            "share",
            "share of the throughput gap between autoregressive decoding and the oracle that the method closes; given "
            "only if the oracle is shown to be faster, and not for methods that it does not bound: trees, overlap and "
            "other drafters can be faster",
            ColumnHeading("headroom", "Headroom"),
        ),
    ] = None
    speedup: Annotated[
        float | None,
        Metric(
            "times",
            "time of autoregressive decoding / time of the method, both summed over the requests that finished in "
            "both; where sampled answers differ in length, both are times per token",
            ColumnHeading(
                "speedup in all (95%)",
                "Speedup in all",
                "summed time of autoregressive decoding over the method's",
            ),
            Traits(bounded=True, in_sweeps=True),
        ),
    ] = None
    typical_speedup: Annotated[
        float | None,
        Metric(
            "times",
            "the speedup of a typical prompt, which tables, figures and verdicts go by: exp of the median of the "
            "means of all pairs of prompts' logarithmic speedups (Hodges and Lehmann), so that no prompt counts for "
            "more because it took long",
            ColumnHeading(
                "typical speedup (95%)",
                "Speedup",
                "time of autoregressive decoding over the method's, on a typical prompt",
                leads=("comparison", "paper", "terminal", "run", "categories of a run"),
            ),
            Traits(bounded=True),
        ),
    ] = None
    time_ratio: Annotated[
        float | None,
        Metric(
            "times",
            "total time of autoregressive decoding / total time of the method, where their answers differ in length "
            "so that the speedup is of times per token",
        ),
    ] = None
    speedup_request_mean: Annotated[
        float | None, Metric("times", "mean over requests of each request's speedup")
    ] = None
    win_share: Annotated[
        float | None,
        Metric(
            "share",
            "share of the requests in both runs that were decoded faster than autoregressively",
        ),
    ] = None
    speedup_of_mean_rates: Annotated[
        float | None,
        Metric(
            "times",
            "mean over requests of tokens per second / the same mean of autoregressive decoding",
        ),
    ] = None
    relative_speed: Annotated[
        float | None,
        Metric(
            "times",
            "speedup of this method / speedup of the reference, over the same prompts, each with its own run's "
            "baseline; "
            "if a run has no baseline, time of the reference / time of this method",
            traits=Traits(bounded=True, relative=True),
        ),
    ] = None
    typical_relative_speed: Annotated[
        float | None,
        Metric(
            "times",
            "the same on a typical prompt, as typical_speedup has it",
            traits=Traits(bounded=True, relative=True),
        ),
    ] = None
    baseline_ratio: Annotated[
        float | None,
        Metric(
            "times",
            "time of the reference's baseline / time of this run's baseline: differs from 1 if machine or software "
            "changed between the runs",
            traits=Traits(bounded=True, relative=True),
        ),
    ] = None
    win_share_against: Annotated[
        float | None,
        Metric(
            "share",
            "share of the requests in both runs that were decoded faster than the reference",
            traits=Traits(relative=True),
        ),
    ] = None
    time_least: Annotated[
        float | None,
        Metric(
            "times",
            "time of the same requests where derived times are shortest / their time; given if a deployment has a "
            "range",
        ),
    ] = None
    time_most: Annotated[
        float | None,
        Metric("times", "time of the same requests where derived times are longest / their time"),
    ] = None
    typical_speedup_least: Annotated[
        float | None,
        Metric("times", "least typical_speedup at the ends of the range of derived times"),
    ] = None
    typical_speedup_most: Annotated[
        float | None,
        Metric("times", "largest typical_speedup at the ends of the range of derived times"),
    ] = None
    typical_relative_speed_least: Annotated[
        float | None,
        Metric("times", "least typical_relative_speed at the ends, both methods at the same end"),
    ] = None
    typical_relative_speed_most: Annotated[
        float | None,
        Metric("times", "largest typical_relative_speed at the ends, both methods at the same end"),
    ] = None
    fastest_share: Annotated[
        float | None,
        Metric("share", "share of the requests on which no other deployable method was faster"),
    ] = None
    repeat_spread: Annotated[
        float | None,
        Metric(
            "share", "(slowest - fastest repeat) / mean time of the repeats, over the same requests"
        ),
    ] = None
    speedup_pairs: Annotated[
        int | None,
        Metric("count", "requests that finished in both runs, over which the speedup is computed"),
    ] = None
    speedup_units: Annotated[
        int | None,
        Metric(
            "count",
            "independent units over which the speedup is computed: prompts, where all turns of a dialogue are one, or "
            "batches of prompts that shared their time",
        ),
    ] = None
    ttft: Annotated[
        DistributionValues,
        Distribution(
            "time to first token: from a request's arrival to its first committed token",
            (
                ColumnHeading(
                    "TTFT",
                    "TTFT",
                    "time to the first token",
                    better="lower",
                    part="mean",
                    leads=("run",),
                ),
            ),
        ),
    ]
    tpot: Annotated[
        DistributionValues,
        Distribution(
            "time per output token of a request: (last commit - first commit) / (output tokens - 1)",
            (
                ColumnHeading(
                    "TPOT",
                    "TPOT",
                    "time per output token after the first",
                    better="lower",
                    part="mean",
                    leads=("comparison", "paper", "run", "categories of a run"),
                ),
            ),
        ),
    ]
    itl: Annotated[
        DistributionValues,
        Distribution(
            "inter-token latency: gap between committed tokens. Tokens that are committed together share the gap "
            "before them equally; the first tokens of a request have none",
            tuple(
                ColumnHeading(
                    f"ITL {rank}", f"ITL {rank}", "inter-token latency", better="lower", part=rank
                )
                for rank in ("p50", "p95", "p99")
            ),
        ),
    ]
    acceptance_at: Annotated[
        list[float | None],
        Several("share of all rounds that accepted draft position i; in a tree, position is depth"),
    ]
    acceptance_at_conditional: Annotated[
        list[float | None],
        Several(
            "of the rounds that submitted a token at position i and accepted all before it, the "
            "share that accepted position i"
        ),
    ]
    slo_attainment: Annotated[
        list[float | None] | None,
        Several(
            "share of the finished requests whose TPOT is at most 0.8, 0.9, 1, 1.1 and 1.2 times the 90th "
            "percentile of autoregressive decoding's TPOT"
        ),
    ] = None
    phase_seconds: Annotated[
        PhaseValues,
        Several(
            "busy seconds of each phase; prefill is the draft model's, the target's is part of verify"
        ),
    ]
    phase_share: Annotated[PhaseValues, Several("phase_seconds / their sum")]
    intervals: Annotated[
        dict[str, Interval | None],
        Several(
            "95% confidence intervals of ratios of sums over prompts, or over batches that shared their time "
            "(Student's t on linearised residuals); the speeds of one table hold jointly"
        ),
    ]
    added: Annotated[
        dict[str, float | None] | UnsetType,
        Meta(
            description="metrics that other packages bring (entry points `specbench_kit.metrics`), by name; left out "
            "where there are none"
        ),
    ] = UNSET

    def value(self, name: str) -> float | None:
        """Return the metric with this name, which may be one of another package that these values
        lack.
        """
        if name not in self.__struct_fields__:
            return None if self.added is UNSET else self.added.get(name)
        value: float | None = getattr(self, name)
        return value

    def bounds(self, name: str) -> list[float] | None:
        """Return the interval of the metric with this name; None where it has none."""
        return self.intervals.get(name)


Declared = TypeVar("Declared", Metric, Distribution, Several)


def _declared(kind: type[Declared]) -> Iterator[Declared]:
    """Yield what the fields of `MetricValues` declare, each with its field's name."""
    for name, annotation in get_type_hints(MetricValues, include_extras=True).items():
        for note in annotation.__metadata__:
            if isinstance(note, kind):
                yield replace(note, name=name)


METRICS = tuple(_declared(Metric))
NEVER_MISSING = frozenset(field.name for field in structs.fields(MetricValues) if field.required)
"""The metrics that need nothing but requests, so that every summary names them."""
DISTRIBUTIONS = tuple(_declared(Distribution))
LISTS = {metric.name: metric.definition for metric in _declared(Several)}
"""The definitions of the metrics that are several numbers."""

COLOCATED = tuple(metric.name for metric in METRICS if metric.traits.topic == "colocated")
"""The metrics that compare drafting beyond a link with drafting beside the target."""
OVERLAP = tuple(metric.name for metric in METRICS if metric.traits.topic == "overlap")
"""The metrics that show the effect of drafting while the target verifies."""
