"""Sentences on break-even points, which a sweep's report shares with the terminal."""

from collections.abc import Sequence

from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.reports.stored import Row, Summary
from specbench_kit.reports.writing.formatting import significant

RIVAL = "autoregressive decoding at the server"
COLOCATED = "itself server-only"
AXES = {
    "link.rtt_s": "round trip of the link (s)",
    "link.jitter_s": "jitter of the link (s)",
    "link.loss": "share of messages that the link loses",
    "link.up_bytes_per_s": "bandwidth of the uplink (bytes/s)",
    "link.down_bytes_per_s": "bandwidth of the downlink (bytes/s)",
    "drafter.placement": "place of the drafter",
    "verifier.price_per_hour": "price of the verifier (per hour)",
}
"""Deployment fields in words, with units."""


def break_even_sentence(row: Row, values: Sequence[object], rival: str = RIVAL) -> str:
    """Return where on the axis, whose values are `values`, one method beats its rival."""
    axis = row["axis"]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    span = f"{axis} from {min(numbers):g} to {max(numbers):g}" if len(numbers) == len(values) else axis
    if row["verdict"] in ("everywhere", "nowhere"):
        return f"beats {rival} {row['verdict']} in the range ({span})."
    if row["verdict"] == TOO_FEW:
        return f"was replayed on too few prompts to tell whether it beats {rival} ({span})."
    if not row["crossings"]:
        return f"beats {rival} only at {axis} = {', '.join(map(str, row['faster_at']))}."
    changes = [
        f"{'stops' if crossing['stops'] else 'starts'} beating {rival} at {axis} = {significant(crossing['at'])} "
        f"(between {bracket(crossing)})"
        for crossing in row["crossings"]
    ]
    return f"{', '.join(changes)}."


def axis_in_words(key: str) -> str:
    """Return what varies along an axis, with its unit."""
    if key in AXES:
        return AXES[key]
    owner, _, name = key.rpartition(".")
    return f"{name} of {owner}"


def axis_value(value: object) -> str:
    """Return a value of an axis as text."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def bracket(crossing: Row) -> str:
    """Return the neighbours on the grid between which a break-even point lies."""
    return f"{axis_value(crossing['low'])} and {axis_value(crossing['high'])}"


def headlines(summary: Summary) -> list[str]:
    """Return where every method stops to pay off, and where drafting at the edge does."""
    values = next(iter(summary["axes"].values()))
    lines = [f"{row['method']} {break_even_sentence(row, values)}" for row in summary["break_even"]]
    return lines + [
        f"{row['method']} at the edge {break_even_sentence(row, values, COLOCATED)}" for row in summary["edge"]
    ]
