"""How outputs compare with plain decoding, as a section of a report."""

from collections.abc import Sequence
from typing import Any

from specbench_kit.reports.writing import sampling_check, wording
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.markup import table

Fields = dict[str, Any]
MOST_ROWS = 20


def lossless_section(run: Fields, summary: Fields) -> str:
    lossless = summary.get("lossless") or {}
    if (summary.get("sampling") or {}).get("rule") == "match":
        lossless = summary["sampling"]
    lines = [f"**{wording.lossless_sentence(run, summary)}**"]
    if lossless.get("prompt_differs"):
        turns = "Later turns of dialogues whose earlier output diverged"
        lines.append(
            f"{turns} have another prompt than in the baseline and are not compared: {lossless['prompt_differs']}."
        )
    if lossless.get("not_compared"):
        lines.append(f"Requests without a finished baseline or result, not compared: {lossless['not_compared']}.")
    if lossless.get("divergences"):
        lines.append(_divergences(lossless["divergences"]))
    if lossless.get("noise") is not None:
        lines.append(_noise(lossless))
    if (summary.get("sampling") or {}).get("rule") == "residual":
        lines.append(table(sampling_check.HEADER, sampling_check.rows(summary["sampling"])))
    return "## Losslessness\n\n" + "\n\n".join(lines)


def _divergences(divergences: Sequence[Fields]) -> str:
    header = ["request", "verdict", "position", "method token", "baseline token", "margin", "noise", "control"]
    return capped_table(header, [_divergence_row(d) for d in divergences])


def _divergence_row(divergence: Fields) -> tuple[object, ...]:
    tokens = (_token(divergence[side]) for side in ("method_token", "baseline_token"))
    return (
        divergence["request_id"],
        divergence["verdict"],
        divergence["position"],
        *tokens,
        *(_short(divergence.get(name)) for name in ("margin", "noise", "control")),
    )


def _short(number: float | None) -> str:
    return ABSENT if number is None else f"{number:.2g}"


def _noise(found: Fields) -> str:
    """What the judgement of divergences rests on."""
    return (
        "A divergence is a tie where the two tokens are nearer than twice the noise, and each shape of forward gives "
        "the token that it gave in the run. Noise, between plain decoding and the verifications: "
        f"{found['noise']:.2g} at most; control, between plain decoding, the same in a batch, and one forward of all: "
        f"{_short(found['control'])}."
    )


def _token(token: int | None) -> str:
    return "(ended)" if token is None else str(token)


def capped_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The first rows, and how many there are more."""
    shown = table(header, rows[:MOST_ROWS])
    return shown if len(rows) <= MOST_ROWS else f"{shown}\n\nand {len(rows) - MOST_ROWS} more."
