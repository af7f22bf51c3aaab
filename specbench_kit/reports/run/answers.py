"""The section on how many answers are right, for reports on one run and on several."""

from collections.abc import Mapping

from specbench_kit.reports.document import Blocks, Column, Heading, Paragraph, Table, code
from specbench_kit.reports.stored import Summary


def answers_section(summaries: Mapping[str, Summary]) -> Blocks:
    """Return the exact match of the target, the draft model and each label's method, if answers are known."""
    matches = {label: summary["exact_match"] for label, summary in summaries.items() if summary.get("exact_match")}
    if not matches:
        return []
    first = next(iter(matches.values()))
    roles = (("target", "target"), ("draft", "draft model alone"))
    sides = [(name, first[role]) for role, name in roles if first[role]]
    sides += [(code(label), match["method"]) for label, match in matches.items()]
    rows = [
        (name, side["correct"] / side["judged"] if side["judged"] else None, side["correct"], side["judged"])
        for name, side in sides
    ]
    columns = ("", Column("exact match", "share"), Column("right", "count"), Column("judged", "count"))
    hint = "" if first["draft"] else " `--draft-answers` adds the draft model alone."
    note = f"Answers are extracted from texts by this rule: {first['rule']}. Nothing in them is executed.{hint}"
    return [Heading("Answers"), Table(columns, rows), Paragraph(note)]
