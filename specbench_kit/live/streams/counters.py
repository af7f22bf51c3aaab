"""Counters of speculation that servers give to Prometheus, read before and after a load."""

import re
from collections.abc import Mapping

from specbench_kit.metrics.ab.answers import DraftCounts

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(?P<value>\S+)", re.MULTILINE)
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
}
"""The names of each count, by server and version; the first one that a server has counts."""


def read_counters(text: str | None) -> dict[str, float]:
    """Return the counts of speculation in a text of Prometheus, summed over labels; empty if there are none."""
    sums: dict[str, float] = {}
    for sample in SAMPLE.finditer(text or ""):
        try:
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + float(sample["value"])
        except ValueError:
            continue
    values: dict[str, float] = {}
    for count, names in COUNTERS.items():
        values |= next(({count: sums[name]} for name in names if name in sums), {})
    return values


def change(before: Mapping[str, float], after: Mapping[str, float]) -> DraftCounts | None:
    """Return how far the counters moved; None if nothing was drafted, or if the server was started again in between."""
    moved = {count: round(after[count] - before.get(count, 0.0)) for count in after if count in before}
    if not moved or min(moved.values()) < 0 or not (moved.get("drafted") or moved.get("accepted")):
        return None
    return DraftCounts(moved.get("rounds"), moved.get("drafted"), moved.get("accepted"))
