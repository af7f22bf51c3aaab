"""The turns of the user in a conversation, and the system's message before them, in the forms of files."""

from itertools import takewhile
from typing import Any

USER_ROLES = ("user", "human")
SYSTEM_ROLES = ("system", "developer")


def user_turns(value: Any) -> tuple[Any, ...]:
    """Return the turns of the user in a text, a list of texts, or a list of messages.

    A message has `role` and `content`, or `from` and `value`; its content is a text or a list of parts of text. The
    messages of others are left out, since the model answers by itself. Whoever calls this checks that turns are texts.
    """
    if not isinstance(value, list):
        return (value,)
    return tuple(_text(message) for message in _messages(value) if _role(message) in USER_ROLES)


def system_text(value: Any) -> str:
    """Return what the system says before the first turn of the user, "" if nothing."""
    opening = takewhile(lambda message: _role(message) in SYSTEM_ROLES, _messages(value))
    return "\n\n".join(str(_text(message)) for message in opening).strip()


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [turn if isinstance(turn, dict) else {"role": USER_ROLES[0], "content": turn} for turn in value]


def _role(message: dict[str, Any]) -> str:
    return str(message.get("role", message.get("from"))).lower()


def _text(message: dict[str, Any]) -> Any:
    content = message["content"] if "content" in message else message["value"]
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError("a message has a part that is not text, which a language model alone cannot read")
    return "".join(part["text"] for part in content)
