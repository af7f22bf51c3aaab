"""The reader of a row of a user's own prompt file."""

from specbench_kit.datasets.answers import RULES, Gold
from specbench_kit.datasets.base import Prompt, Row
from specbench_kit.datasets.messages import system_text, user_turns

ID_FIELDS = ("id", "question_id", "custom_id")
SHARED = ("conversations", "conversation")
"""The names that files of ShareGPT give to the list of messages."""
TURN_FIELDS = ("turns", "messages", *SHARED)
FIELDS = ("prompt", "question", *TURN_FIELDS)
SYSTEM_FIELDS = ("system", "system_prompt")


def file_prompt(category: str, row: Row, index: int) -> Prompt | None:
    """Return the prompt of a row, or None if no user says anything in it.

    Raise ValueError if a field is missing or has the wrong type.
    `category` stands in where the row names none, and `index` where it has no id.
    """
    identity = next((row[name] for name in ID_FIELDS if name in row), index)
    if not isinstance(identity, (str, int)):
        raise ValueError("the id must be a string or a whole number")
    category, chat = row.get("category", category), row.get("chat", True)
    if not isinstance(category, str) or not isinstance(chat, bool):
        raise ValueError("'category' must be a string and 'chat' true or false")
    name, holder = _text_field(row)
    turns = user_turns(holder[name])
    if name in SHARED:
        # Shared conversations may begin in the middle, and hold empty messages.
        turns = tuple(turn for turn in turns if not isinstance(turn, str) or turn.strip())
        if not turns:
            return None
    system = next((holder[field] for field in SYSTEM_FIELDS if holder.get(field)), None) or system_text(holder[name])
    if not isinstance(system, str):
        raise ValueError("the system's message must be a text")
    return Prompt(str(identity), category, turns, chat, _gold(row), system)


def _text_field(row: Row) -> tuple[str, Row]:
    """Return the name of the field that holds the conversation or the text, and the row or its `body` that has it."""
    fields = [name for name in TURN_FIELDS if row.get(name) is not None]
    if fields and not isinstance(row[fields[0]], list):
        raise ValueError(f"'{fields[0]}' must be a list of strings or of messages")
    if fields:
        return fields[0], row
    if isinstance(body := row.get("body"), dict):
        return _text_field(body)
    name = next((name for name in ("prompt", "question") if name in row), None)
    if name is None:
        raise ValueError(f"none of the fields {', '.join(map(repr, FIELDS))} is present")
    return name, row


def _gold(row: Row) -> Gold | None:
    """Return the right answers of a row, any of which will do, and the rule that reads them from a text."""
    if "answer" not in row:
        return None
    answer, rule = row["answer"], row.get("rule", "phrase")
    answers = tuple(answer) if isinstance(answer, list) else (answer,)
    if rule not in RULES or not all(isinstance(text, str) for text in answers):
        raise ValueError(f"'answer' must be a text or a list of texts, and 'rule' one of {', '.join(RULES)}")
    return Gold(rule, answers)
