"""What a person says in a row, in the ways in which datasets hold it."""

from typing import Any

PEOPLE = ("user", "human")


def user_turns(value: Any) -> tuple[str, ...]:
    """Of a text, a list of texts, or a list of messages (`role` and `content`, or `from` and `value`)."""
    if not isinstance(value, list):
        return (value,)
    messages = [one if isinstance(one, dict) else {"role": PEOPLE[0], "content": one} for one in value]
    said = [one for one in messages if one.get("role", one.get("from")) in PEOPLE]
    return tuple(one["content"] if "content" in one else one["value"] for one in said)
