"""How many answers are right, in the reports of one run and of several."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import ABSENT, count, share
from specbench_kit.reports.writing.markup import code, table

Fields = Mapping[str, Any]


def answers_section(summaries: Mapping[str, Fields]) -> str:
    """Exact match of the target, the draft model and each method, by label; nothing where no answer is known."""
    found = {label: summary["exact_match"] for label, summary in summaries.items() if summary.get("exact_match")}
    if not found:
        return ""
    first = next(iter(found.values()))
    sides = [
        (name, first[role]) for role, name in (("target", "target"), ("draft", "draft model alone")) if first[role]
    ]
    sides += [(code(label), one["method"]) for label, one in found.items()]
    rows = [(name, _share(side), count(side["correct"]), count(side["judged"])) for name, side in sides]
    missing = "" if first["draft"] else " `--draft-answers` adds the draft model alone."
    note = f"An answer is read from a text by this rule: {first['rule']}. Nothing in it is executed.{missing}"
    return f"## Answers\n\n{table(['', 'exact match', 'right', 'judged'], rows)}\n\n{note}"


def _share(side: Fields) -> str:
    return share(side["correct"] / side["judged"]) if side["judged"] else ABSENT
