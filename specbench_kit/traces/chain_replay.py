"""Replay where a chain's own tokens say where it ends: lengths at every offset as arrays, then a walk per request."""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import Chains, StopRule
from specbench_kit.decoding.records import EXPECTED_DIGITS, RequestRecord, RoundRecord
from specbench_kit.deployments.single_request_clock import SingleRequestClock
from specbench_kit.traces.trace import RequestTrace, TraceHeader

Integers = NDArray[np.integer[Any]]
UNKNOWN = -1
"""Stands where the target's answer is not on record; no token equals it."""


def too_short(max_draft: int) -> SkitError:
    """What a method hears that drafts beyond what is on record."""
    return SkitError(
        f"the trace holds drafts of {max_draft} tokens and the method wants more: "
        "record it with a larger --max-draft, or lower the method's"
    )


def beyond_answer(tokens: int) -> SkitError:
    """What a method hears whose draft is right up to the end of what is known."""
    return SkitError(
        f"the method's draft goes {tokens} tokens beyond the recorded answer: record the trace with a larger "
        "--max-draft, or lower the method's"
    )


class ChainLengths(NamedTuple):
    """What a round from each offset drafts, sends and gets accepted: shapes [offsets]."""

    drafted: list[int]
    submitted: list[int]
    accepted: list[int]
    expected: list[float | None]
    """Accepted tokens that the rule reckons with, where it decides by a chance."""


def replay_chains(
    rule: StopRule,
    header: TraceHeader,
    traces: Iterable[RequestTrace],
    clock: SingleRequestClock,
    beside: SingleRequestClock | None = None,
) -> Iterator[RequestRecord]:
    """The records of decoding the traces' requests one after the other; `beside` takes its time over them, too."""
    for trace in traces:
        began_s = clock.now_s
        clock.begin(trace.request_id, len(trace.prompt_ids))
        lengths = _lengths(rule, header, trace)
        record = RequestRecord(trace.request_id, trace.category, trace.prompt_ids, time_kind="modelled")
        record.rounds = list(_walk(trace, header.max_draft, lengths, clock, began_s))
        record.finish(trace.output_ids, trace.finish_reason, clock.now_s)
        if beside is not None:
            _go_through(record, beside)
        yield record


def _go_through(record: RequestRecord, beside: SingleRequestClock) -> None:
    """Time the same rounds with the draft model beside the target."""
    began_s, context = beside.now_s, len(record.prompt_ids)
    beside.begin(record.request_id, context)
    for one in record.rounds:
        beside.round(context, one.drafted, one.submitted, one.accepted, one.committed)
        context += one.committed
    record.colocated_s, record.colocated_draft_s = beside.now_s - began_s, beside.drafting_s


def _walk(
    trace: RequestTrace, max_draft: int, lengths: ChainLengths, clock: SingleRequestClock, began_s: float
) -> Iterator[RoundRecord]:
    """From round to round, each of which begins where the one before has ended."""
    offset, end, known = 0, len(trace.output_ids), len(trace.output_ids) + len(trace.continuation)
    while offset < end:
        drafted, submitted, accepted = (column[offset] for column in lengths[:3])
        if drafted > max_draft:
            raise too_short(max_draft)
        if offset + accepted >= known:
            raise beyond_answer(accepted)
        committed = min(accepted + 1, end - offset)
        spent = clock.round(len(trace.prompt_ids) + offset, drafted, submitted, accepted, committed)
        yield RoundRecord(
            drafted=drafted,
            submitted=submitted,
            accepted=accepted,
            committed=committed,
            prefill_s=spent.prefill_s,
            draft_s=spent.draft_s,
            policy_s=spent.policy_s,
            link_s=spent.link_s,
            queue_s=0.0,
            verify_s=spent.verify_s,
            commit_s=0.0,
            end_s=spent.end_s - began_s,
            deepest=submitted,
            expected=lengths.expected[offset],
        )
        offset += committed


def _lengths(rule: StopRule, header: TraceHeader, trace: RequestTrace) -> ChainLengths:
    """Of a draft that ends where the rule says so, or the context."""
    offsets = np.arange(len(trace.output_ids))
    room = header.holds(trace) - len(trace.prompt_ids) - offsets - 1
    longest = np.minimum(rule.most, np.maximum(room, 0))
    right = right_tokens(trace)
    drafted, submitted = longest, longest
    expected: list[float | None] = [None] * len(offsets)
    if rule.stops is not None:
        inside = (offsets[:, None] + np.arange(header.max_draft)) < len(trace.output_ids)
        chains = Chains(trace.statistics.astype(np.float64), right & inside)
        stops = rule.stops(chains)
        stop = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, rule.most + 1)
        drafted = np.minimum(stop, longest)
        submitted = drafted if rule.sends_last else drafted - (stop <= longest)
        if rule.chances is not None:
            expected = _expected(rule.chances(chains), submitted)
    accepted = np.minimum(right.cumprod(axis=1).sum(axis=1), submitted)
    return ChainLengths(drafted.tolist(), submitted.tolist(), accepted.tolist(), expected)


def _expected(chances: NDArray[np.float64], submitted: Integers) -> list[float | None]:
    """Of as many tokens as are submitted [offsets], by the chance of each of a chain [offsets, tokens]."""
    sums = np.pad(chances.cumprod(axis=1).cumsum(axis=1), ((0, 0), (1, 0)))
    reached = np.minimum(submitted, chances.shape[1])
    found = sums[np.arange(len(sums)), reached].round(EXPECTED_DIGITS)
    return [one if isfinite(one) else None for one in found.tolist()]


def right_tokens(trace: RequestTrace) -> NDArray[np.bool_]:
    """Whether the answer has each drafted token at its place [offsets, max_draft]."""
    count, max_draft = trace.drafted.shape
    answer = np.array([*trace.output_ids, *trace.continuation, *[UNKNOWN] * max_draft])
    right: NDArray[np.bool_] = trace.drafted == np.lib.stride_tricks.sliding_window_view(answer, max_draft)[:count]
    return right
