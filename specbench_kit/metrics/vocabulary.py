"""Each metric's name, the unit that it is in and what it means."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["count", "number", "share", "times", "seconds", "rate"]
"""A rate is in tokens per second, `times` is a factor, and a number has no unit."""
BASELINE = "autoregressive"
"""The row that the baseline has in every table."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One scalar of a summary."""

    name: str
    unit: Unit
    definition: str


METRICS = (
    Metric("finished", "count", "requests that ran to their end; every metric is over these"),
    Metric("failed", "count", "requests that ended in an error; counted here and nowhere else"),
    Metric("rounds", "count", "target verifications; one decodes at least one token"),
    Metric("tokens", "count", "committed output tokens"),
    Metric("drafted", "count", "tokens that the draft model produced"),
    Metric("submitted", "count", "drafted tokens that were sent for verification"),
    Metric("accepted", "count", "submitted tokens that the target accepted"),
    Metric(
        "acceptance_length",
        "number",
        "committed tokens per verification: committed tokens / rounds, pooled over all requests",
    ),
    Metric("acceptance_length_sd", "number", "standard deviation of the committed tokens of single rounds"),
    Metric("acceptance_length_request_mean", "number", "mean over requests of their own tokens per round"),
    Metric("acceptance_rate", "share", "accepted / submitted"),
    Metric("acceptance_rate_request_mean", "share", "mean over requests of their own accepted / submitted"),
    Metric("draft_efficiency", "share", "accepted / drafted"),
    Metric(
        "expected_accepted_length",
        "number",
        "submitted tokens of a round that the policy reckoned with to be accepted, each by its chances of it and of "
        "those before it; the mean over the rounds where it decides by such chances",
    ),
    Metric("accepted_length", "number", "submitted tokens that were accepted, the mean over the same rounds"),
    Metric("expectation_bias", "times", "expected_accepted_length / accepted_length: above 1 the policy is too sure"),
    Metric("wasted_tokens", "count", "drafted - accepted, summed over rounds"),
    Metric("wdt", "seconds", "wasted drafting time: drafting seconds spent on wasted tokens, sent or not"),
    Metric("wdt_paper", "seconds", "WISP's own convention of wdt: counts only tokens that were sent, (K - L)+"),
    Metric("wdt_share", "share", "wdt / all drafting seconds"),
    Metric("makespan_s", "seconds", "time in which the run decoded all its requests"),
    Metric("throughput", "rate", "committed tokens / makespan"),
    Metric("throughput_request_mean", "rate", "mean over requests of their own tokens per second"),
    Metric("goodput", "rate", "committed tokens of the requests that met the SLO / makespan"),
    Metric("slo_tpot_s", "seconds", "the SLO of goodput: the highest tpot that meets it"),
    Metric("server_tokens_per_busy_second", "rate", "committed tokens / seconds that the verifier was busy"),
    Metric(
        "cost_efficiency",
        "number",
        "committed tokens / (dollars per hour x time, summed over the devices): the verifier's is paid for the "
        "makespan, a drafter's while it works",
    ),
    Metric("alignment_rate", "share", "rounds whose answer was the one drafted ahead for / rounds that drafted ahead"),
    Metric("proactive_hit_depth", "number", "accepted tokens that were drafted ahead / rounds that were aligned"),
    Metric("edge_idle_share", "share", "1 - seconds that drafting devices worked / seconds that their requests took"),
    Metric("server_idle_share", "share", "1 - seconds that the verifier was busy / makespan"),
    Metric(
        "colocated_speedup",
        "times",
        "autoregressive time / the time of the same rounds with the draft model beside the target, where a request "
        "crosses the link once, and what was drafted while the target verified is drafted after it",
    ),
    Metric(
        "colocated_ratio",
        "times",
        "time of the same rounds with the draft model beside the target / their time from beyond the link: above 1 the "
        "edge is faster",
    ),
    Metric(
        "rtt_window_s",
        "seconds",
        "round trip below which the edge beats the same rounds beside the target, in closed form; 0 is nowhere",
    ),
    Metric(
        "rtt_window_overlapped_s",
        "seconds",
        "drafting of a round beside the target: beyond such a round trip no drafting ahead can make up for the link",
    ),
    Metric(
        "rtt_window_autoregressive_s",
        "seconds",
        "round trip below which the edge beats autoregressive decoding on the server, in closed form; 0 is nowhere",
    ),
    Metric(
        "capacity_factor",
        "number",
        "1 + drafting / verifying seconds of a server that does both: how many times as many clients it could keep up "
        "with if they drafted themselves",
    ),
    Metric(
        "headroom",
        "share",
        "share of the throughput gap between autoregressive and oracle that the method closes, where the oracle is "
        "shown to be faster; it bounds chains, so that trees and overlap can close more than all",
    ),
    Metric(
        "speedup", "times", "autoregressive time / method time, end to end, as a ratio of sums over paired requests"
    ),
    Metric("speedup_request_mean", "times", "mean over requests of their own speedups"),
    Metric("win_share", "share", "prompts that were decoded faster than autoregressively / prompts in both runs"),
    Metric(
        "speedup_of_mean_rates", "times", "mean of the requests' own tokens per second / the same of autoregressive"
    ),
    Metric(
        "relative_speed",
        "times",
        "this method's speedup / the reference method's, over the same prompts, each over its own run's baseline; "
        "without a baseline in both runs, the reference's raw time / this method's",
    ),
    Metric(
        "baseline_ratio",
        "times",
        "the time of the reference's baseline / that of this run's: not 1 where machine or engine changed between them",
    ),
    Metric("win_share_against", "share", "prompts that were decoded faster than by the reference / prompts in both"),
    Metric("fastest_share", "share", "prompts on which no other method that can be deployed was faster"),
    Metric("repeat_spread", "share", "(slowest - fastest repeat) / their mean, over the same requests"),
    Metric("speedup_pairs", "count", "requests that finished in both runs, which the speedup is over"),
    Metric("speedup_units", "count", "prompts, or batches that shared their time, which the speedup is over"),
)

COLOCATED = (
    "colocated_speedup",
    "colocated_ratio",
    "rtt_window_s",
    "rtt_window_overlapped_s",
    "rtt_window_autoregressive_s",
    "capacity_factor",
)
"""The metrics that hold drafting beyond a link against the same beside the target."""
OVERLAP = ("alignment_rate", "proactive_hit_depth", "edge_idle_share", "server_idle_share")
"""The metrics that say what drafting while the target verifies brings."""

DISTRIBUTIONS = {
    "ttft": "arrival to first committed token",
    "tpot": "(last commit - first commit) / (output tokens - 1), per request",
    "itl": "gap between committed tokens; a burst of n tokens is n gaps of gap / n, a request's first burst gives none",
}
"""Metrics with a mean and percentiles."""

LISTS = {
    "acceptance_at": "rounds that accepted position i / all rounds (in a tree, position is depth)",
    "acceptance_at_conditional": "the same, over the rounds that submitted a token at i and accepted all before i",
    "slo_attainment": "requests whose tpot is at most 0.8, 0.9, 1, 1.1 and 1.2 x the 90th percentile of plain "
    "decoding's / finished requests",
    "phase_seconds": "busy seconds per phase; prefill is the draft model's, the target's is in verify",
    "phase_share": "phase_seconds / their sum",
    "intervals": "95% intervals of ratios of sums (Student's t on linearised residuals) over prompts, or over batches "
    "that shared their time; the speeds of one table hold together",
}
