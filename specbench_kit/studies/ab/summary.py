"""The content of `summary.json` of a run of `skit ab`, as types, and the conditions under which
such a run fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, Number
from specbench_kit.metrics.condition_terms import ConditionTerms, parse_terms
from specbench_kit.metrics.vocabulary import DistributionValues, Unit
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.serving.figures import Interval

Figure = Literal["throughput", "ttft", "reply", "tpot", "e2e", "acceptance"]
FIGURES: dict[Figure, str] = {
    "throughput": "throughput",
    "ttft": "time to first token",
    "reply": "time to first token of the reply",
    "tpot": "time per output token",
    "e2e": "end to end",
    "acceptance": "acceptance length",
}
"""What the two servers are compared in, and how a report calls it."""
Gate = Literal["identical", "as with itself", "alike in distribution", "different", "not compared"]
"""Whether the servers' outputs agree: all of them; no fewer than when a server is asked twice;
sampled ones, whose distributions show no difference; not; or unknown.
"""


class Speculation(Struct, frozen=True):
    """Acceptance as the server reports it: for each answer, or by its counters over the whole load.

    By what answers report the acceptance length counts the tokens that were sent; counters also
    count those of a last round after the answer's end.
    """

    source: Annotated[
        Literal["each answer", "counters"],
        Meta(description="what reports it: each answer, or the server's counters"),
    ]
    acceptance_length: Annotated[
        Number | None,
        Meta(description="committed tokens per round; null if rounds are not reported"),
    ] = None
    acceptance_rate: Annotated[
        Number | None,
        Meta(
            description="share of the drafted tokens that were accepted; null if either is not reported, and "
            "without drafts"
        ),
    ] = None
    rounds: Annotated[Count | None, Meta(description="rounds; null if not reported")] = None
    drafted: Annotated[Count | None, Meta(description="drafted tokens; null if not reported")] = (
        None
    )
    accepted: Annotated[Count | None, Meta(description="accepted tokens; null if not reported")] = (
        None
    )
    interval: Annotated[
        list[Number] | None,
        Meta(
            description="95% interval of the acceptance length over turns; null if there are too few"
        ),
    ] = None
    tokens_per_round: Annotated[
        Number | None,
        Meta(
            description="tokens that were sent, without each answer's first, per counted round; null by what "
            "answers report, and where a request failed or was sent again"
        ),
    ] = None
    doubts: Annotated[list[str], Meta(description="what the counts say that cannot be right")] = []
    """What the counts say that cannot be right."""


class Validity(Struct, frozen=True):
    """How many answers of one server are valid JSON, and valid by the JSON schema of their prompt.

    Intervals are over prompts, since answers to one prompt are alike.
    """

    answers: Annotated[Count, Meta(description="answers to prompts with a JSON schema")]
    prompts: Annotated[Count, Meta(description="prompts that these answers answer")]
    json: Annotated[Count, Meta(description="answers that are valid JSON as a whole")]
    valid: Annotated[
        Count, Meta(description="answers that are valid JSON and follow their prompt's schema")
    ]
    cut: Annotated[
        Count,
        Meta(description="answers that are no valid JSON because they reached the longest length"),
    ]
    fenced: Annotated[
        Count,
        Meta(
            description="answers that are no valid JSON because it stands in a code block of Markdown"
        ),
    ]
    json_share: Annotated[Number, Meta(description="share of the answers that are valid JSON")]
    json_interval: Annotated[
        list[Number], Meta(description="95% interval of 'json_share' over prompts")
    ]
    valid_share: Annotated[
        Number, Meta(description="share of the answers that follow their prompt's schema")
    ]
    valid_interval: Annotated[
        list[Number], Meta(description="95% interval of 'valid_share' over prompts")
    ]


class ValidityComparison(Struct, frozen=True):
    """The servers compared by their answers' validity, over the prompts that both answered."""

    prompts: Annotated[Count, Meta(description="prompts with a JSON schema that both answered")]
    first_only: Annotated[
        Count,
        Meta(
            description="prompts whose answers follow their schema more often at the first server"
        ),
    ]
    second_only: Annotated[
        Count,
        Meta(
            description="prompts whose answers follow their schema more often at the second server"
        ),
    ]
    chance: Annotated[
        Number,
        Meta(description="probability that servers which are equally often valid differ as much"),
    ]
    level: Annotated[
        Number,
        Meta(
            description="probability below which a difference is shown, so that the tests of all loads "
            "together err in 5% of cases"
        ),
    ]
    verdict: Annotated[
        str, Meta(description="whether the second server's answers are valid as often, in words")
    ]


class ThinkingFigures(Struct, frozen=True):
    """The thinking parts and the replies of one server's answers that have a thinking part.

    Lengths are in tokens, or in characters if an answer of either server tells only these. The thinking part lasts from
    the first token to the first one of the reply, or to the end of an answer without a reply.
    """

    answers: Annotated[Count, Meta(description="answers with a thinking part")]
    unfinished: Annotated[
        Count, Meta(description="answers of them that ended before their reply began")
    ]
    unit: Annotated[
        Literal["tokens", "characters"], Meta(description="what lengths and rates count")
    ]
    thinking_length: Annotated[
        Number | None, Meta(description="mean length of the thinking part; null if not known")
    ]
    reply_length: Annotated[
        Number | None, Meta(description="mean length of the reply; null if not known")
    ]
    reply: Annotated[
        DistributionValues,
        Meta(description="time to first token of the reply, from when the request was sent"),
    ]
    thinking_s: Annotated[
        Number | None,
        Meta(description="mean seconds of the thinking part; null if its end is not known"),
    ]
    reply_s: Annotated[
        Number | None,
        Meta(
            description="mean seconds from the first token of the reply to the last; null if not known"
        ),
    ]
    thinking_rate: Annotated[
        Number | None,
        Meta(description="length of the thinking part per second of it; null if not known"),
    ]
    reply_rate: Annotated[
        Number | None,
        Meta(
            description="length of the reply behind its first token per second of it; null if not known"
        ),
    ]


class ServerFigures(Struct, frozen=True):
    """The figures of one server under one load."""

    finished: Annotated[Count, Meta(description="requests that were answered")]
    failed: Annotated[Count, Meta(description="requests that were not answered")]
    retried: Annotated[Count, Meta(description="requests that were sent more than once")]
    tokens: Annotated[Count, Meta(description="tokens of all answers")]
    throughput: Annotated[
        Number | None,
        Meta(
            description="tokens per second of the time in which the server had turns to answer; null without "
            "such time"
        ),
    ]
    in_flight: Annotated[
        Number | None,
        Meta(
            description="mean number of requests at the server in that time; null without such time"
        ),
    ]
    tokens_per_burst: Annotated[
        Number | None,
        Meta(
            description="mean tokens that arrived together, without each answer's first; null if none did"
        ),
    ]
    ttft: Annotated[
        DistributionValues, Meta(description="time to first token, from when the request was sent")
    ]
    tpot: Annotated[
        DistributionValues, Meta(description="time per output token of an answer after its first")
    ]
    itl: Annotated[
        DistributionValues,
        Meta(
            description="inter-token latency: gap between tokens; those that arrive together share the gap "
            "before them equally"
        ),
    ]
    e2e: Annotated[
        DistributionValues,
        Meta(description="time of the whole answer, from when the request was sent"),
    ]
    goodput: Annotated[
        Number | None,
        Meta(
            description="tokens per second of the answers that met every SLO; null without an SLO"
        ),
    ] = None
    attainment: Annotated[
        Number | None,
        Meta(description="share of all requests whose answer met every SLO; null without an SLO"),
    ] = None
    speculation: Annotated[
        Speculation | None,
        Meta(description="acceptance as the server reports it; null if it reports none"),
    ] = None
    validity: Annotated[
        Validity | None,
        Meta(description="answers that are valid JSON; null if no prompt has a JSON schema"),
    ] = None
    counted_by: Annotated[
        list[str], Meta(description="ways by which tokens of answers were counted")
    ] = []
    cached_tokens: Annotated[
        Count,
        Meta(
            description="tokens of prompts that the server says it took from its cache; 0 if it does not say"
        ),
    ] = 0
    late_p99_s: Annotated[
        Number | None,
        Meta(
            description="99th percentile of the seconds by which requests were sent later than planned; null "
            "without requests"
        ),
    ] = None
    retry_reasons: Annotated[
        dict[str, Count], Meta(description="how often requests were sent again, by reason")
    ] = {}
    thinking: Annotated[
        ThinkingFigures | UnsetType,
        Meta(
            description="thinking parts and replies; left out where no answer has a thinking part"
        ),
    ] = UNSET


class Lengths(Struct, frozen=True):
    """The lengths of the answers to the requests that both servers answered."""

    mean_tokens: Annotated[
        list[Number],
        Meta(description="mean tokens of the answers of each server, in the order of their names"),
    ]
    pairs: Annotated[Count, Meta(description="requests that both servers answered")]
    equal: Annotated[Count, Meta(description="requests whose two answers have equally many tokens")]

    @property
    def ratio(self) -> float:
        """How many times as long the second server's answers are."""
        return self.mean_tokens[1] / self.mean_tokens[0]


class FigureComparison(Struct, frozen=True):
    """How much faster the second server is than the first, in one figure, or how much longer its
    acceptance length.

    Either interval holds together with all others of its kind.
    """

    figure: Annotated[Figure, Meta(description="figure that is compared")]
    ratio: Annotated[
        Number | None,
        Meta(
            description="factor by which the second server is faster, or its acceptance length longer, by "
            "sums over all turns; null without turns in common"
        ),
    ]
    interval: Annotated[
        list[Number] | None,
        Meta(description="interval of 'ratio' over turns; null if there are too few"),
    ]
    units: Annotated[Count, Meta(description="turns over which the ratio is computed")]
    verdict: Annotated[
        str,
        Meta(
            description="what the comparison shows, in words: of times in a typical turn, of acceptance in "
            "all"
        ),
    ]
    typical: Annotated[
        Number | None,
        Meta(
            description="the same factor in a typical turn; null for acceptance lengths, and without turns in "
            "common"
        ),
    ] = None
    typical_interval: Annotated[
        list[Number] | None,
        Meta(
            description="interval of 'typical' over turns; null if there are too few, if all turns agree, and "
            "of acceptance lengths"
        ),
    ] = None


class Divergence(Struct, frozen=True):
    """The first place at which two outputs of one prompt differ."""

    request_id: Annotated[str, Meta(description="id of the prompt")]
    repeat: Annotated[Count, Meta(description="number of the repeat, from 0")]
    position: Annotated[
        Count, Meta(description="position of the first difference in the output, from 0")
    ]
    unit: Annotated[
        Literal["token", "character"],
        Meta(description="what positions count: tokens, or characters where tokens are unknown"),
    ]
    before: Annotated[
        str, Meta(description="text of the first server's output just before the difference")
    ]
    first: Annotated[
        str,
        Meta(
            description="how the first server's output goes on, with the id of its token where that is known"
        ),
    ]
    second: Annotated[
        str,
        Meta(
            description="how the second server's output goes on, with the id of its token where that is known"
        ),
    ]
    dialogue_turn: Annotated[
        Count,
        Meta(description="earlier turns of the prompt's dialogue, whose outputs are the same"),
    ] = 0


class SampleTest(Struct, frozen=True):
    """Sampled outputs compared, by a test of random swaps."""

    prompts: Annotated[
        Count, Meta(description="prompts that both servers answered in several repeats")
    ]
    samples: Annotated[Count, Meta(description="answers of each server to them")]
    chance: Annotated[
        Number,
        Meta(
            description="probability that servers with one distribution differ as much in any statistic"
        ),
    ]
    level: Annotated[
        Number,
        Meta(
            description="probability below which a difference is shown, so that the tests of all loads "
            "together err in 5% of cases"
        ),
    ]
    shown: Annotated[
        list[str],
        Meta(
            description="what differs: first tokens or lengths, of all prompts or of the prompt that differs "
            "most"
        ),
    ] = []


class OutputCheck(Struct, frozen=True):
    """The outputs of both servers compared, and those of each server with its own."""

    gate: Annotated[
        Gate,
        Meta(
            description="whether the servers' outputs agree: all of them; no fewer than when a server is "
            "asked twice; sampled ones, whose distributions show no difference; not; or unknown"
        ),
    ]
    both: Annotated[
        OutputAgreement,
        Meta(
            description="outputs of both servers to the same prompt; none are compared if they are sampled"
        ),
    ]
    repeated: Annotated[
        dict[str, OutputAgreement],
        Meta(
            description="outputs of each server, by its name, to the same prompt under the same load"
        ),
    ] = {}
    other_loads: Annotated[
        dict[str, OutputAgreement],
        Meta(
            description="outputs of each server, by its name, to the same prompt under different loads"
        ),
    ] = {}
    divergences: Annotated[
        list[Divergence],
        Meta(description="the first places at which outputs differ, of a few prompts"),
    ] = []
    sampled: Annotated[
        SampleTest | None,
        Meta(
            description="test of sampled outputs; null for others, and if there are too few pairs"
        ),
    ] = None


class LoadSummary(Struct, frozen=True):
    """One load of a comparison."""

    load: Annotated[str, Meta(description="name of the load")]
    turns: Annotated[
        Count,
        Meta(
            description="turns at this load, in which one server after the other gets the same prompts"
        ),
    ]
    turn_requests: Annotated[
        Count,
        Meta(
            description="prompts of the largest turn for each server, without later turns of dialogues"
        ),
    ]
    servers: Annotated[
        dict[str, ServerFigures], Meta(description="figures of each server, by its name")
    ]
    comparisons: Annotated[
        list[FigureComparison], Meta(description="the servers compared, by figure")
    ]
    outputs: Annotated[OutputCheck, Meta(description="the servers' outputs compared")]
    lengths: Annotated[
        Lengths | None,
        Meta(description="lengths of the answers; null if no request was answered by both"),
    ] = None
    validity: Annotated[
        ValidityComparison | None,
        Meta(
            description="the servers compared by the validity of their answers; null if no prompt that both "
            "answered has a JSON schema"
        ),
    ] = None
    itl_p99: Annotated[
        dict[str, Interval] | UnsetType,
        Meta(
            description="99th percentile of the time between tokens in seconds of each server, by its name, with "
            "its interval over stretches of turns; left out unless one server drafts and the other does not"
        ),
    ] = UNSET


class AbSummary(Struct, frozen=True):
    """The content of a comparison's `summary.json`: all of its loads."""

    names: Annotated[
        list[str],
        Meta(description="names of the two servers; comparisons are the second over the first"),
    ]
    partial: Annotated[bool, Meta(description="whether requests that were planned are missing")]
    planned: Annotated[Count, Meta(description="requests to both servers that were planned")]
    finished: Annotated[Count, Meta(description="requests that were answered")]
    failed: Annotated[Count, Meta(description="requests that were not answered")]
    level: Annotated[
        Number, Meta(description="confidence of each interval at which all hold together with 95%")
    ]
    loads: Annotated[list[LoadSummary], Meta(description="the loads that were run")]
    cautions: Annotated[
        list[str], Meta(description="what a reader must know of the comparison")
    ] = []
    saturated: Annotated[
        dict[str, dict[str, str]],
        Meta(
            description="loads at which each server is over-saturated, with the reason, by server"
        ),
    ] = {}
    left_out: Annotated[
        list[str],
        Meta(
            description="loads that were not run, because both servers were over-saturated before"
        ),
    ] = []


SPEEDUPS: Mapping[str, Figure] = {
    "speedup": "e2e",
    "throughput_speedup": "throughput",
    "ttft_speedup": "ttft",
    "reply_speedup": "reply",
    "tpot_speedup": "tpot",
    "acceptance_ratio": "acceptance",
}
"""The metrics that compare the servers in all."""
TYPICAL: Mapping[str, Figure] = {
    f"typical_{metric}": figure for metric, figure in SPEEDUPS.items() if figure != "acceptance"
}
"""The metrics that compare them in a typical turn."""
LATENCIES = ("ttft", "tpot", "itl", "e2e")
BOUNDS = ("low", "high")
PERCENTILES = ("mean", "p50", "p95", "p99")
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys([*SPEEDUPS, *TYPICAL], "times"),
    **dict.fromkeys(LATENCIES, "seconds"),
    "throughput": "rate",
    "goodput": "rate",
    "attainment": "share",
    "acceptance_length": "tokens",
    "acceptance_rate": "share",
    "failed": "count",
    "identical": "share",
    "valid_json": "share",
    "valid": "share",
}
"""Every metric of a condition: those that compare, those of the second server, and the share of
identical outputs.
"""
VALIDITY = {"valid_json": "json_share", "valid": "valid_share"}
"""The metrics of answers that should be JSON, and their fields."""
TIMELESS = (
    *("acceptance_ratio", "acceptance_length", "acceptance_rate", "failed", "identical"),
    *VALIDITY,
)
"""Metrics without a time in them, which a busy machine does not change."""


@dataclass(frozen=True, slots=True)
class AbCondition(ConditionTerms):
    """One condition, judged at every load."""

    @classmethod
    def parse(cls, text: str) -> "AbCondition":
        """Return the condition that a text states; raise SkitError if it states none."""
        percentiles = dict.fromkeys(LATENCIES, PERCENTILES)
        condition = parse_terms(cls, text, UNITS, percentiles, BOUNDS)
        if condition.detail in BOUNDS and condition.metric not in {**SPEEDUPS, **TYPICAL}:
            raise SkitError(
                f"--fail-if '{text}': {condition.metric} has no interval; leave out .{condition.detail}"
            )
        return condition

    @property
    def is_timed(self) -> bool:
        """Return True if the metric depends on the clock."""
        return self.metric not in TIMELESS

    def violations(self, summary: AbSummary) -> list[str]:
        """Return a line for every load at which the condition holds; raise SkitError where it
        cannot be judged.
        """
        lines = []
        for load in summary.loads:
            value = self._value(load, load.servers[summary.names[1]])
            if value is None:
                raise SkitError(f"--fail-if '{self.text}': there is no value for it at {load.load}")
            if self.holds(value, self.limit):
                lines.append(f"{load.load}: {self.sentence(value)}")
        return lines

    def _value(self, load: LoadSummary, figures: ServerFigures) -> float | None:
        metric = self.metric
        detail = self.detail
        if figure := {**SPEEDUPS, **TYPICAL}.get(metric):
            entry = next((entry for entry in load.comparisons if entry.figure == figure), None)
            if entry is None:
                return None
            value, bounds = entry.ratio, entry.interval
            if metric in TYPICAL:
                value, bounds = entry.typical, entry.typical_interval
            if detail is None:
                return value
            return bounds[BOUNDS.index(detail)] if bounds else None
        if metric in LATENCIES:
            distribution: DistributionValues = getattr(figures, metric)
            latency: float | None = getattr(distribution, detail or "mean")
            return latency
        if metric == "identical":
            return load.outputs.both.share
        if metric in VALIDITY:
            return getattr(figures.validity, VALIDITY[metric]) if figures.validity else None
        if metric in ("acceptance_length", "acceptance_rate"):
            return getattr(figures.speculation, metric) if figures.speculation else None
        plain: float | None = getattr(figures, metric)
        return plain
