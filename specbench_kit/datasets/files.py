"""The reader of a row of a user's own prompt file."""

from specbench_kit.datasets.answers import RULES, Gold
from specbench_kit.datasets.base import Prompt, Row


def file_prompt(category: str, row: Row, index: int) -> Prompt:
    """Return the prompt of a row; raise ValueError if a field is missing or has the wrong type.

    `category` stands in where the row names none, and `index` where it has no id.
    """
    identity = row.get("id", row.get("question_id", index))
    if not isinstance(identity, (str, int)):
        raise ValueError("the id must be a string or a whole number")
    category, chat = row.get("category", category), row.get("chat", True)
    if not isinstance(category, str) or not isinstance(chat, bool):
        raise ValueError("'category' must be a string and 'chat' true or false")
    turns = row.get("turns")
    if "turns" in row and not isinstance(turns, list):
        raise ValueError("'turns' must be a list of strings")
    if turns is None:
        texts = [row[field] for field in ("prompt", "question") if field in row]
        if not texts:
            raise ValueError("none of the fields 'prompt', 'question', 'turns' is present")
        turns = texts[:1]
    return Prompt(str(identity), category, tuple(turns), chat, _gold(row))


def _gold(row: Row) -> Gold | None:
    """Return the right answers of a row, any of which will do, and the rule that reads them from a text."""
    if "answer" not in row:
        return None
    answer, rule = row["answer"], row.get("rule", "phrase")
    answers = tuple(answer) if isinstance(answer, list) else (answer,)
    if rule not in RULES or not all(isinstance(text, str) for text in answers):
        raise ValueError(f"'answer' must be a text or a list of texts, and 'rule' one of {', '.join(RULES)}")
    return Gold(rule, answers)
