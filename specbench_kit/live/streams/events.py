"""Server-sent events: the lines of a stream in which each `data:` line holds one JSON document."""

from contextlib import suppress

from specbench_kit.core.typed_json import parse

HEAD, SHOWN = 2000, 200
"""Bytes of content without an event that are kept, and characters that a message repeats."""
END = "[DONE]"
"""The data with which OpenAI's streams end."""


class EventParser:
    """Cuts the bytes of a stream into the data of its events, wherever the network divided them."""

    def __init__(self) -> None:
        self._rest = b""
        self._events, self._head = 0, b""

    def feed(self, content: bytes) -> list[str]:
        """Return the data of every event whose line is complete now."""
        self._head = self._head or content[:HEAD]
        *lines, self._rest = (self._rest + content).replace(b"\r\n", b"\n").split(b"\n")
        found = [data for line in lines if (data := _data(line))]
        self._events += len(found)
        return found

    def end(self) -> list[str]:
        """Return the data of a last line without a line break."""
        line, self._rest = self._rest, b""
        found = [data] if (data := _data(line)) else []
        self._events += len(found)
        return found

    def said_instead(self) -> str:
        """Return how content without any event begins: a server that does not stream says there why not."""
        text = self._head.decode("utf-8", "replace").strip()
        if self._events or not text:
            return ""
        with suppress(ValueError, AttributeError):
            error = parse(text).get("error")
            text = str(error.get("message") if isinstance(error, dict) else error or text)
        return f", and no event; the server said: {text[:SHOWN]}"


def _data(line: bytes) -> str:
    # Some servers report an error in the middle of a stream by a line of its own name.
    name, _, content = line.partition(b":")
    return content.decode("utf-8", "replace").strip() if name in (b"data", b"error") else ""
