"""Server-sent events: the lines of a stream in which each `data:` line holds one JSON document."""

END = "[DONE]"
"""The data with which OpenAI's streams end."""


class EventParser:
    """Cuts the bytes of a stream into the data of its events, wherever the network divided them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> list[str]:
        """Return the data of every event whose line is complete now."""
        *lines, self._rest = (self._rest + content).replace(b"\r\n", b"\n").split(b"\n")
        return [data for line in lines if (data := _data(line))]

    def end(self) -> list[str]:
        """Return the data of a last line without a line break."""
        line, self._rest = self._rest, b""
        return [data] if (data := _data(line)) else []


def _data(line: bytes) -> str:
    # Some servers report an error in the middle of a stream by a line of its own name.
    name, _, content = line.partition(b":")
    return content.decode("utf-8", "replace").strip() if name in (b"data", b"error") else ""
