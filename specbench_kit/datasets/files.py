"""The fields of a user's own file of prompts."""

from typing import Any

from specbench_kit.datasets.answers import RULES, Gold
from specbench_kit.datasets.base import Prompt


def file_prompt(category: str, row: dict[str, Any], index: int) -> Prompt:
    """The prompt of a row of a user's own file."""
    identity = row.get("id", row.get("question_id", index))
    if not isinstance(identity, (str, int)):
        raise ValueError("the id must be a string or a whole number")
    category, chat = row.get("category", category), row.get("chat", True)
    if not isinstance(category, str) or not isinstance(chat, bool):
        raise ValueError("'category' must be a string and 'chat' true or false")
    return Prompt(str(identity), category, _turns(row), chat, _gold(row))


def _turns(row: dict[str, Any]) -> tuple[str, ...]:
    if "turns" in row:
        if not isinstance(row["turns"], list):
            raise ValueError("'turns' must be a list of strings")
        return tuple(row["turns"])
    for field in ("prompt", "question"):
        if field in row:
            return (row[field],)
    raise ValueError("none of the fields 'prompt', 'question', 'turns' is there")


def _gold(row: dict[str, Any]) -> Gold | None:
    """The right answer, or several of which any will do, and how it is read from a text."""
    if "answer" not in row:
        return None
    found, rule = row["answer"], row.get("rule", "phrase")
    answers = tuple(found) if isinstance(found, list) else (found,)
    if rule not in RULES or not all(isinstance(one, str) for one in answers):
        raise ValueError(f"'answer' must be a text or a list of texts, and 'rule' one of {', '.join(RULES)}")
    return Gold(rule, answers)
