"""Fast replay of chains whose own tokens say where they end.

Draft lengths at every offset are computed as arrays, then each request is walked from round to
round.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import Chains, StopRule
from specbench_kit.decoding.records import EXPECTED_DIGITS, RequestRecord, RoundRecord
from specbench_kit.deployments.single_request_clock import SingleRequestClock
from specbench_kit.traces.trace import RequestTrace, TraceHeader

UNKNOWN = -2
"""Stands where the target's answer is not recorded; nothing that a draft holds equals it."""


class BeyondTrace(SkitError):
    """A method drafts more than is recorded; whoever knows the method adds which of its options is
    too large.
    """


def draft_too_long(max_draft: int) -> BeyondTrace:
    """Return the error of a method that drafts more tokens than are recorded."""
    return BeyondTrace(f"the trace holds drafts of {max_draft} tokens and the method wants more")


def beyond_answer(tokens: int) -> BeyondTrace:
    """Return the error of a method whose draft is right up to the end of the recorded answer."""
    return BeyondTrace(f"the method's draft goes {tokens} tokens beyond the recorded answer")


class ChainLengths(NamedTuple):
    """Tokens that a round from each offset drafts, submits, and has accepted; and expects to: lists
    [offsets].
    """

    drafted: list[int]
    submitted: list[int]
    accepted: list[int]
    expected: list[float | None]
    """Accepted tokens that the stop rule expects; None if it does not go by probabilities."""


def replay_chains(
    rule: StopRule,
    header: TraceHeader,
    traces: Iterable[RequestTrace],
    clock: SingleRequestClock,
    colocated: SingleRequestClock | None = None,
    at_ends: Sequence[SingleRequestClock] = (),
) -> Iterator[RequestRecord]:
    """Yield the records of decoding requests one after the other.

    `colocated` times the same rounds with the draft model beside the target, `at_ends` at the ends of derived times.
    """
    for trace in traces:
        began_s = clock.now_s
        clock.begin(trace.request_id, len(trace.prompt_ids))
        lengths = _chain_lengths(rule, header, trace)
        record = RequestRecord(
            trace.request_id,
            trace.category,
            trace.prompt_ids,
            time_kind="modelled",
            dialogue=trace.dialogue,
        )
        record.rounds = list(_walk(trace, header.max_draft, lengths, clock, began_s))
        record.finish(trace.output_ids, trace.finish_reason, clock.now_s)
        if colocated is not None:
            record.colocated_s = _timed(colocated, record)
            record.colocated_draft_s = colocated.drafting_s
        record.ends_s = [_timed(at_end, record) for at_end in at_ends]
        yield record


def _timed(clock: SingleRequestClock, record: RequestRecord) -> float:
    """Return the seconds that the rounds of a request take by another clock."""
    began_s = clock.now_s
    context = len(record.prompt_ids)
    clock.begin(record.request_id, context)
    for entry in record.rounds:
        clock.round(context, entry.drafted, entry.submitted, entry.accepted, entry.committed)
        context += entry.committed
    return clock.now_s - began_s


def _walk(
    trace: RequestTrace,
    max_draft: int,
    lengths: ChainLengths,
    clock: SingleRequestClock,
    began_s: float,
) -> Iterator[RoundRecord]:
    """Yield the rounds of a request, each of which begins at the offset where the one before
    ended.
    """
    offset = 0
    end = len(trace.output_ids)
    answer_length = len(trace.output_ids) + len(trace.continuation)
    while offset < end:
        drafted, submitted, accepted = (column[offset] for column in lengths[:3])
        if drafted > max_draft:
            raise draft_too_long(max_draft)
        if offset + accepted >= answer_length:
            raise beyond_answer(accepted)
        committed = min(accepted + 1, end - offset)
        times = clock.round(len(trace.prompt_ids) + offset, drafted, submitted, accepted, committed)
        yield RoundRecord(
            drafted=drafted,
            submitted=submitted,
            accepted=accepted,
            committed=committed,
            prefill_s=times.prefill_s,
            draft_s=times.draft_s,
            policy_s=times.policy_s,
            link_s=times.link_s,
            queue_s=0.0,
            verify_s=times.verify_s,
            commit_s=0.0,
            end_s=times.end_s - began_s,
            deepest=submitted,
            expected=lengths.expected[offset],
        )
        offset += committed


def _chain_lengths(rule: StopRule, header: TraceHeader, trace: RequestTrace) -> ChainLengths:
    """Return the lengths of drafts that end where the rule says so, or at the end of the
    context.
    """
    offsets = np.arange(len(trace.output_ids))
    room = header.token_limit(trace) - len(trace.prompt_ids) - offsets - 1
    longest = np.minimum(rule.most, np.maximum(room, 0))
    # A draft as long as the trace's limit may have gone on, which `_walk` refuses to guess.
    recorded = trace.draft_lengths()
    longest = np.where(recorded < header.max_draft, np.minimum(longest, recorded), longest)
    right = correct_tokens(trace)
    drafted = longest
    submitted = longest
    expected: list[float | None] = [None] * len(offsets)
    if rule.stops is not None:
        # An oracle that reads the answer knows it only up to its end, as in a live run.
        inside = (offsets[:, None] + np.arange(header.max_draft)) < len(trace.output_ids)
        chains = Chains(trace.statistics.astype(np.float64), right & inside)
        stops = rule.stops(chains)
        stop = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, rule.most + 1)
        drafted = np.minimum(stop, longest)
        submitted = drafted if rule.sends_last else drafted - (stop <= longest)
        if rule.chances is not None:
            # The i-th token is accepted if all before it are: sum of cumulative products over the
            # submitted tokens.
            probabilities = rule.chances(chains)
            sums = np.pad(probabilities.cumprod(axis=1).cumsum(axis=1), ((0, 0), (1, 0)))
            reached = np.minimum(submitted, probabilities.shape[1])
            rounded = sums[offsets, reached].round(EXPECTED_DIGITS).tolist()
            expected = [number if isfinite(number) else None for number in rounded]
    accepted = np.minimum(right.cumprod(axis=1).sum(axis=1), submitted)
    return ChainLengths(drafted.tolist(), submitted.tolist(), accepted.tolist(), expected)


def correct_tokens(trace: RequestTrace) -> NDArray[np.bool_]:
    """Return True where the answer has the drafted token at its position: [offsets, max_draft]."""
    count, max_draft = trace.drafted.shape
    answer = np.array([*trace.output_ids, *trace.continuation, *[UNKNOWN] * max_draft])
    correct: NDArray[np.bool_] = (
        trace.drafted == np.lib.stride_tricks.sliding_window_view(answer, max_draft)[:count]
    )
    return correct
