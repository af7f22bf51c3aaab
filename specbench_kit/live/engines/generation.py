"""Responses that an engine decodes by itself: the request, and the events of its stream."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import httpx

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.streams.events import END, EventParser


class GenerationRequest(NamedTuple):
    """A text to continue by at most `max_tokens` tokens; `seed` is that of the engine's own sampler."""

    text: Sequence[int]
    max_tokens: int
    sampler: Sampler
    seed: int


def read_events(client: httpx.Client, path: str, body: JsonObject) -> Iterator[JsonObject]:
    """Yield the JSON document of each event as it arrives; raise SkitError with one line if the stream breaks."""
    parser = EventParser()
    with _one_line_errors(f"{client.base_url}".rstrip("/") + path), client.stream("POST", path, json=body) as response:
        if response.is_error:
            response.read()
            response.raise_for_status()
        for content in response.iter_bytes():
            for data in parser.feed(content):
                if data != END:
                    yield _document(data)
        yield from (_document(data) for data in parser.end() if data != END)


def _document(data: str) -> JsonObject:
    document = parse(data)
    if not isinstance(document, dict):
        raise ValueError(f"an event that is no object: {data[:80]}")
    return document


@contextmanager
def _one_line_errors(route: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        text = first_line(ValueError(error.response.text[:200] or error.response.reason_phrase))
        raise SkitError(f"{route} answered {error.response.status_code}: {text}") from error
    except (httpx.HTTPError, ValueError) as error:
        raise SkitError(f"{route} broke off: {first_line(error)}") from error
