"""How many answers are right, and how many the token limit cut, for reports on one run and on several."""

from collections.abc import Mapping, Sequence

from specbench_kit.reports.document import Blocks, Column, Heading, Paragraph, Table, caution, code
from specbench_kit.reports.stored import Row, Summary
from specbench_kit.reports.writing.formatting import ABSENT, count, share

ENOUGH_TOKENS = 320
"""The least limit to offer: answers to GSM8K, the longest that are judged here, seldom take more tokens."""


def answers_section(summaries: Mapping[str, Summary]) -> Blocks:
    """Return the exact match of the target, the draft model and each label's method, if answers are known."""
    matches = {label: summary["exact_match"] for label, summary in summaries.items() if summary.get("exact_match")}
    if not matches:
        return []
    first = next(iter(matches.values()))
    roles = (("target", "target"), ("draft", "draft model alone"))
    sides = [(name, first[role]) for role, name in roles if first[role]]
    sides += [(code(label), match["method"]) for label, match in matches.items()]
    rows = [(name, _exact_match(side), side["correct"], side["judged"], side.get("cut")) for name, side in sides]
    counts = (Column(title, "count") for title in ("right", "judged", "cut by the limit"))
    hint = "" if first["draft"] else " `--draft-answers` adds the draft model alone."
    note = f"Answers are extracted from texts by this rule: {first['rule']}. Nothing in them is executed.{hint}"
    cuts = caution(answer_cautions(list(summaries.values())))
    return [Heading("Answers"), *cuts, Table(("", Column("exact match", "share"), *counts), rows), Paragraph(note)]


def answers_line(summaries: Sequence[Summary]) -> str:
    """Return the exact match of the target, or of the first method without it, in one line; empty if unknown."""
    match = next((summary["exact_match"] for summary in summaries if summary.get("exact_match")), None)
    if match is None:
        return ""
    role = "target" if match["target"] else "method"
    side = match[role]
    name = "the target" if match["target"] else str(summaries[0]["method"])
    exact = share(value) if (value := _exact_match(side)) is not None else ABSENT
    return f"exact match of {name}: {exact} ({count(side['correct'])} of {count(side['judged'])} answers right)"


def answer_cautions(summaries: Sequence[Summary]) -> list[str]:
    """Return the caution that the token limit cut answers, with the option that lets them end; none if it cut none."""
    matches = [summary["exact_match"] for summary in summaries if summary.get("exact_match")]
    sides = [side for match in matches for side in (match["target"], match["method"]) if side and side.get("cut")]
    if not sides:
        return []
    worst, limit = max(sides, key=lambda side: side["cut"] / side["judged"]), int(matches[0]["max_new_tokens"])
    return [
        f"CUT ANSWERS: {count(worst['cut'])} of {count(worst['judged'])} answers were cut at the limit of {limit} "
        "tokens, and a cut answer may lack its result: "
        f"--max-new-tokens {max(ENOUGH_TOKENS, 2 * limit)} lets more of them end."
    ]


def _exact_match(side: Row) -> float | None:
    """Return the share of right answers; None if most answers were cut, since it would then measure the limit."""
    judged = side["judged"]
    return None if not judged or 2 * side.get("cut", 0) > judged else float(side["correct"] / judged)
