"""Counters of speculation that servers give to Prometheus, read before and after a load."""

import re
from collections.abc import Mapping
from math import isfinite

from specbench_kit.metrics.ab.answers import DraftCounts

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)", re.MULTILINE)
FIRST = 'position="0"'
"""The label of the first drafted token in counts of accepted tokens by their position."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "rounds": (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_drafts",
        "llamacpp:spec_decode_num_drafts_total",
    ),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_draft_tokens",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "tgi_request_skipped_tokens_sum",
    ),
    "accepted_first": (
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    ),
}
"""The names of each count, by server and version; the first one that a server has counts."""


def read_counters(text: str | None) -> dict[str, float]:
    """Return the counts of speculation in a text of Prometheus, summed over labels; empty if there are none."""
    sums: dict[str, float] = {}
    for sample in SAMPLE.finditer(text or ""):
        if "per_pos" in sample["name"] and FIRST not in (sample["labels"] or ""):
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        if isfinite(value):
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + value
    values: dict[str, float] = {}
    for count, names in COUNTERS.items():
        values |= next(({count: sums[name]} for name in names if name in sums), {})
    return values


def have_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Return True if a counter is lower than before, as after a server was started again."""
    return any(after[count] < before[count] for count in after if count in before)


def change(before: Mapping[str, float], after: Mapping[str, float]) -> DraftCounts | None:
    """Return how far the counters moved; None if nothing was drafted, or if one of them fell."""
    moved = {count: round(after[count] - before[count]) for count in after if count in before}
    if have_fallen(before, after) or not (moved.get("drafted") or moved.get("accepted")):
        return None
    return DraftCounts(**moved)
