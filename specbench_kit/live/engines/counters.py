"""What servers call their counts of speculation: in the text of their counters for Prometheus, and
beside an answer.
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite

from msgspec import Struct

from specbench_kit.live.engines.answers import DraftCounts

ROUTES = ("/metrics", "/prometheus/metrics")
"""Where servers give their counters; TensorRT-LLM has something else at the first one."""
COUNTERS: Mapping[str, Sequence[str]] = {
    "rounds": (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:spec_decode_num_drafts",
        "sglang:spec_verify_calls_total",
        'trtllm_spec_decode_drafted_tokens_total{token_position="0"}',
    ),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens",
        "trtllm_spec_decode_drafted_tokens_total",
        "trtllm_spec_decode_num_draft_tokens_total",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens",
        "trtllm_spec_decode_accepted_tokens_total",
        "trtllm_spec_decode_num_accepted_tokens_total",
        "tgi_request_skipped_tokens_sum",
    ),
    "accepted_first": (
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}',
        'vllm:spec_decode_num_accepted_tokens_per_pos{position="0"}',
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"}',
        'llamacpp:spec_decode_num_accepted_tokens_per_pos{position="0"}',
        'trtllm_spec_decode_accepted_tokens_total{token_position="0"}',
    ),
}
"""The names of each count, by server and version, some with the label of the samples that count;
the first one that a server has counts. SGLang's gauges `spec_accept_rate` and `spec_accept_length`
say no sums, only what was last.
"""
BY_POSITION = (
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos",
    "trtllm_spec_decode_accepted_tokens_total",
)
"""The names of the counter of accepted tokens by their place in the draft."""
POSITION = re.compile(r'position="(\d+)"')
SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)", re.MULTILINE
)


def read_counters(text: str | None) -> dict[str, float]:
    """Return the counts of speculation in a text of Prometheus, summed over labels; empty if there
    are none.
    """
    samples = [
        (found["name"], found["labels"] or "", _number(found["value"]))
        for found in SAMPLE.finditer(text or "")
    ]
    values: dict[str, float] = {}
    for count, counters in COUNTERS.items():
        for counter in counters:
            name, _, label = counter.removesuffix("}").partition("{")
            found = [
                value
                for own, labels, value in samples
                if own == name and label in labels and value is not None
            ]
            if found:
                values[count] = sum(found)
                break
    return values


def read_positions(text: str | None) -> dict[int, float]:
    """Return how many tokens were accepted at each place of the draft, from 0, summed over other
    labels; empty if a text of Prometheus does not say.
    """
    for name in BY_POSITION:
        values: dict[int, float] = {}
        for found in SAMPLE.finditer(text or ""):
            place = POSITION.search(found["labels"] or "")
            value = _number(found["value"])
            if found["name"] == name and place is not None and value is not None:
                values[int(place[1])] = values.get(int(place[1]), 0.0) + value
        if values:
            return values
    return {}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def have_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return True if a counter is lower than before, as after a server was started again."""
    return any(after[count] < before[count] for count in after if count in before)


def change(before: Mapping[str, float], after: Mapping[str, float]) -> DraftCounts | None:
    """Return how far the counters moved; None if nothing was drafted or verified, or if one of them
    fell.
    """
    moved = {count: round(after[count] - before[count]) for count in after if count in before}
    if have_fallen(before, after) or not any(
        moved.get(count) for count in ("rounds", "drafted", "accepted")
    ):
        return None
    return DraftCounts(**moved)


class SglangCounts(Struct):
    """SGLang's counts of one answer, under the names of each version: from 0.5.12 on, of 0.5.11,
    and before it.
    """

    spec_verify_ct: int | None = None
    spec_num_proposed_drafts: int | None = None
    spec_proposed_drafts: int | None = None
    spec_draft_token_num: int | None = None
    spec_num_correct_drafts: int | None = None
    spec_accepted_drafts: int | None = None
    spec_accept_token_num: int | None = None
    spec_correct_drafts_histogram: list[int] | None = None
    spec_accept_histogram: list[int] | None = None

    def drafts(self, tokens: int | None = None) -> DraftCounts | None:
        """Return the counts; None where nothing was verified.

        A version that counts no accepted tokens has verifications alone: each committed one of the
        answer's `tokens` more than it accepted, and the first token comes from the prompt's
        forward.
        """
        rounds = self.spec_verify_ct
        if not rounds:
            return None
        drafted = _first(
            self.spec_num_proposed_drafts, self.spec_proposed_drafts, self.spec_draft_token_num
        )
        accepted = _first(
            self.spec_num_correct_drafts, self.spec_accepted_drafts, self.spec_accept_token_num
        )
        if accepted is None and tokens is not None:
            accepted = max(0, tokens - 1 - rounds)
        rounds_by_length = self.spec_correct_drafts_histogram or self.spec_accept_histogram
        return DraftCounts(
            rounds, drafted, accepted, sum(rounds_by_length[1:]) if rounds_by_length else None
        )


class CompletionDetails(Struct):
    """OpenAI's details of an answer's tokens: how many were thoughts, and how many were predicted,
    in which gateways state the counts of a server's speculation.
    """

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None

    def drafts(self) -> DraftCounts | None:
        """Return the counts; None where nothing was predicted."""
        accepted = self.accepted_prediction_tokens or 0
        drafted = accepted + (self.rejected_prediction_tokens or 0)
        return DraftCounts(None, drafted, accepted) if drafted else None


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
