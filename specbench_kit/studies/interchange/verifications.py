"""What vLLM tells of a request's verifications, and AIPerf passes on."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import shown
from specbench_kit.studies.interchange.base import ForeignTrace

if TYPE_CHECKING:
    from specbench_kit.traces.outcome_traces import VerifiedRound
    from specbench_kit.traces.trace import RequestTrace

Fields = Mapping[str, Any]

DETAILED = "run the server with --per-request-spec-decode-metrics detailed"


class VerifiedRequest(NamedTuple):
    """One request: its numbers of tokens, the longest draft that was configured, and what was verified.

    `ordered`: in this order, rather than in any.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    longest: int
    rounds: "Sequence[VerifiedRound]"
    ordered: bool


def read_acceptance(request_id: str, prompt_tokens: Any, output_tokens: Any, acceptance: Any) -> VerifiedRequest:
    """Of the object `speculative_decoding` of vLLM, or `spec_decode_acceptance` of AIPerf; bad content is a ValueError.

    vLLM, docs/features/speculative_decoding/acceptance_metrics.md; AIPerf, docs/reference/spec-decode-acceptance.md.
    """
    counts = {"prompt": prompt_tokens, "output": output_tokens, "num_spec_tokens": acceptance.get("num_spec_tokens")}
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ValueError(f"the number of {name} tokens must be a whole number from 1 up, not {shown(count)}")
    ordered = acceptance.get("per_step_accepted") is not None
    rounds = list(_in_order(acceptance) if ordered else _in_any_order(acceptance, request_id))
    if any(type(count) is not int for one in rounds for count in one):
        raise ValueError("steps must be counted in whole numbers")
    if wrong := [one for one in rounds if not 0 <= one.accepted <= one.drafted]:
        raise ValueError(f"{wrong[0].accepted} of {wrong[0].drafted} drafted tokens cannot be accepted")
    return VerifiedRequest(request_id, prompt_tokens, output_tokens, counts["num_spec_tokens"], rounds, ordered)


def trace_of(requests: Sequence[VerifiedRequest]) -> ForeignTrace:
    """The trace of all requests that were verified at least once.

    The first token of an answer came with the prompt, before anything was drafted: it counts to the prompt.
    """
    from specbench_kit.traces.outcome_traces import right_rate
    from specbench_kit.traces.trace import TOKEN_IDS

    known = [one for one in requests if one.rounds and one.output_tokens > 1]
    if not known:
        raise SkitError(f"no request tells of a verification: {DETAILED} and with speculative decoding")
    if len({one.request_id for one in known}) < len(known):
        raise SkitError("two requests have one id: import the responses of one run")
    rate = right_rate(verified for one in known for verified in one.rounds)
    max_draft = max(max(one.longest, *(verified.drafted for verified in one.rounds)) for one in known)
    traces = [_trace(one, max_draft, rate) for one in known]
    return ForeignTrace(traces, max_draft, (TOKEN_IDS,), notes=_notes(requests, known, traces))


def _in_order(acceptance: Fields) -> "Iterator[VerifiedRound]":
    from specbench_kit.traces.outcome_traces import VerifiedRound

    drafted, accepted = acceptance["per_step_drafted"], acceptance["per_step_accepted"]
    yield from (VerifiedRound(*counts) for counts in zip(drafted, accepted, strict=True))


def _in_any_order(acceptance: Fields, seed: str) -> "list[VerifiedRound]":
    """As often as the histogram says."""
    from specbench_kit.traces.outcome_traces import VerifiedRound

    longest = acceptance["num_spec_tokens"]
    by_length = acceptance.get("acceptance_histogram_by_draft_length")
    if by_length is None and acceptance["num_draft_tokens"] != longest * acceptance["num_spec_steps"]:
        raise ValueError(f"drafts were of several lengths, and it does not say which were accepted: {DETAILED}")
    by_length = by_length or {longest: acceptance["acceptance_histogram"]}
    rounds = [
        VerifiedRound(int(drafted), accepted)
        for drafted, histogram in by_length.items()
        for accepted, count in _buckets(histogram)
        for _ in range(count)
    ]
    Random(seed).shuffle(rounds)
    return rounds


def _buckets(histogram: Any) -> Iterator[tuple[int, int]]:
    """Accepted tokens and how often; vLLM lists all counts, AIPerf has those that are not 0 as an object."""
    pairs = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
    return ((int(accepted), count) for accepted, count in pairs)


def _trace(one: VerifiedRequest, max_draft: int, rate: float) -> "RequestTrace":
    from specbench_kit.traces.outcome_traces import of_rounds

    sizes = one.prompt_tokens + 1, one.output_tokens - 1
    return of_rounds(one.request_id, "unnamed", *sizes, one.rounds, max_draft, rate)


def _notes(
    requests: Sequence[VerifiedRequest], known: Sequence[VerifiedRequest], traces: "Sequence[RequestTrace]"
) -> list[str]:
    whole = sum(verified.accepted == verified.drafted for one in known for verified in one.rounds)
    undrafted = sum(one.output_tokens - 1 for one in known) - sum(len(trace.output_ids) for trace in traces)
    unordered, left_out = sum(not one.ordered for one in known), len(requests) - len(known)
    lines = {
        "rounds end with a token that was not drafted, as all before it were accepted: whether it would have been "
        "right is drawn from the request's rate, and matters to other draft lengths than the recorded ones": whole,
        "requests tell how often a length was accepted and not when: their rounds are in a random order": unordered,
        "tokens came without a draft, nobody knows where: they are left out": undrafted,
        "requests were never verified, and are left out": left_out,
    }
    return [f"{count} {line}" for line, count in lines.items() if count]
