"""The acceptance per request that vLLM reports and AIPerf passes on."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, shown
from specbench_kit.studies.interchange.base import ForeignTrace

if TYPE_CHECKING:
    from specbench_kit.traces.outcome_traces import DraftOutcome
    from specbench_kit.traces.trace import RequestTrace

DETAILED = "run the server with --per-request-spec-decode-metrics detailed"
NEVER_VERIFIED = "never verified"

Histogram = list[Count] | dict[str, Count]
"""How often each number of tokens was accepted: vLLM lists all counts, AIPerf gives those above 0
as an object.
"""


class Acceptance(Struct):
    """The object `speculative_decoding` of vLLM, or `spec_decode_acceptance` of AIPerf.

    vLLM, docs/features/speculative_decoding/acceptance_metrics.md; AIPerf,
    docs/reference/spec-decode-acceptance.md.
    """

    num_spec_tokens: int | None = None
    num_draft_tokens: int | None = None
    num_spec_steps: int | None = None
    per_step_drafted: list[int] = []
    per_step_accepted: list[int] | None = None
    acceptance_histogram: Histogram | None = None
    acceptance_histogram_by_draft_length: dict[str, Histogram] | None = None
    completion_tokens: int | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether the object is empty, as a server writes it that does not speculate."""
        return self == Acceptance()


class VerifiedRequest(NamedTuple):
    """One request: its numbers of tokens, the longest draft that was configured, and its verified
    rounds.

    `ordered` is True if the rounds are in the order in which they happened.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    longest: int
    rounds: "Sequence[DraftOutcome]"
    ordered: bool


def read_acceptance(
    request_id: str, prompt_tokens: int | None, output_tokens: int | None, acceptance: Acceptance
) -> VerifiedRequest:
    """Return the request that an acceptance object describes; bad content raises ValueError."""
    from specbench_kit.traces.outcome_traces import DraftOutcome

    prompt = _positive("prompt", prompt_tokens)
    output = _positive("output", output_tokens)
    longest = _positive("num_spec_tokens", acceptance.num_spec_tokens)
    if acceptance.per_step_accepted is None:
        rounds = _shuffled_rounds(acceptance, longest, request_id)
    else:
        steps = zip(acceptance.per_step_drafted, acceptance.per_step_accepted, strict=True)
        rounds = [DraftOutcome(*counts) for counts in steps]
    if wrong := [step for step in rounds if not 0 <= step.accepted <= step.drafted]:
        raise ValueError(
            f"{wrong[0].accepted} of {wrong[0].drafted} drafted tokens cannot be accepted"
        )
    return VerifiedRequest(
        request_id, prompt, output, longest, rounds, acceptance.per_step_accepted is not None
    )


def _positive(name: str, count: int | None) -> int:
    if count is None or count < 1:
        raise ValueError(
            f"the number of {name} tokens must be a whole number from 1 up, not {shown(count)}"
        )
    return count


def trace_of(requests: Sequence[VerifiedRequest], left_out: Mapping[str, int]) -> ForeignTrace:
    """Return the trace of all requests that were verified at least once.

    The first token of an answer came with the prompt, before anything was drafted: it counts to the
    prompt. `left_out` counts requests that are not among these, by the reason.
    """
    from specbench_kit.traces.outcome_traces import rate_of_right_tokens, trace_of_rounds
    from specbench_kit.traces.trace import TOKEN_IDS

    verified = [request for request in requests if request.rounds and request.output_tokens > 1]
    if not verified:
        raise SkitError(
            f"no request tells of a verification: {DETAILED} and with speculative decoding"
        )
    if len({request.request_id for request in verified}) < len(verified):
        raise SkitError("two requests have one id: import the responses of one run")
    rate = rate_of_right_tokens(step for request in verified for step in request.rounds)
    drafted = (step.drafted for request in verified for step in request.rounds)
    max_draft = max(*(request.longest for request in verified), *drafted)
    traces = []
    for request in verified:
        # The first token of the answer counts to the prompt.
        sizes = request.prompt_tokens + 1, request.output_tokens - 1
        traces.append(
            trace_of_rounds(request.request_id, "unnamed", *sizes, request.rounds, max_draft, rate)
        )
    left_out = {**left_out, NEVER_VERIFIED: len(requests) - len(verified)}
    return ForeignTrace(
        traces, max_draft, (TOKEN_IDS,), notes=_notes(requests, verified, traces), left_out=left_out
    )


def _shuffled_rounds(acceptance: Acceptance, longest: int, seed: str) -> "list[DraftOutcome]":
    """Return as many rounds of each kind as the histogram counts, in a random order."""
    from specbench_kit.traces.outcome_traces import DraftOutcome

    by_length = acceptance.acceptance_histogram_by_draft_length
    if by_length is None:
        if acceptance.num_draft_tokens != longest * (acceptance.num_spec_steps or 0):
            raise ValueError(
                f"drafts were of several lengths, and it does not say which were accepted: {DETAILED}"
            )
        if acceptance.acceptance_histogram is None:
            raise ValueError("acceptance_histogram is missing")
        by_length = {str(longest): acceptance.acceptance_histogram}
    rounds = []
    for drafted, histogram in by_length.items():
        buckets = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
        rounds += [
            DraftOutcome(int(drafted), int(accepted))
            for accepted, count in buckets
            for _ in range(count)
        ]
    # Seeded by the request, so that an import gives the same trace every time.
    Random(seed).shuffle(rounds)
    return rounds


def _notes(
    requests: Sequence[VerifiedRequest],
    verified: Sequence[VerifiedRequest],
    traces: "Sequence[RequestTrace]",
) -> list[str]:
    complete = sum(step.accepted == step.drafted for request in verified for step in request.rounds)
    undrafted = sum(request.output_tokens - 1 for request in verified) - sum(
        len(trace.output_ids) for trace in traces
    )
    unordered = sum(not request.ordered for request in verified)
    left_out = len(requests) - len(verified)
    lines = {
        "rounds end with a token that was not drafted, as all before it were accepted: whether it would have been "
        "right is drawn from the request's rate, and matters to other draft lengths than the recorded ones": complete,
        "requests tell how often a length was accepted and not when: their rounds are in a random order": unordered,
        "tokens came without a draft at unknown positions: they are left out": undrafted,
        "requests were never verified, and are left out": left_out,
    }
    return [f"{count} {line}" for line, count in lines.items() if count]
