"""Rows from the Hugging Face hub or, where it is out of reach, from its library's cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.hub import answers, hub_reachable
from specbench_kit.datasets.base import Hub
from specbench_kit.datasets.rows import PlacedRow, parse_rows

DOWNLOAD_S = 30.0
"""How long a download may stand still."""


def hub_label(hub: Hub) -> str:
    """How a run names this source, e.g. `openai/gsm8k:main:test`."""
    return ":".join(part for part in (hub.path, hub.config, hub.split) if part)


def fetch_rows(hub: Hub, folder: Path | None = None) -> list[PlacedRow]:
    """Every row that `hub` names: of a copy of its repository, downloaded, or cached.

    An error says why there are none.
    """
    online = folder is None and (answers(hub.url) if hub.url else hub_reachable())
    try:
        return _download(hub.url) if hub.url and online else _load(hub, online, str(folder or hub.path))
    except SkitError:
        raise
    except Exception as error:  # the library lets through whatever its parsers and HTTP clients raise
        failed = online or folder is not None
        why = f"failed: {str(error) or type(error).__name__}" if failed else "is out of reach and not cached"
        raise SkitError(f"{hub_label(hub)} {why.splitlines()[0]}") from error


def _download(url: str) -> list[PlacedRow]:
    from urllib.request import urlopen

    with urlopen(url, timeout=DOWNLOAD_S) as lines:
        return list(parse_rows(url.rpartition("/")[2], lines))


def _load(hub: Hub, online: bool, place: str) -> list[PlacedRow]:
    from datasets import load_dataset

    with _library_online(online):
        rows = load_dataset(place, hub.config, split=hub.split, streaming=online and hub.stream is not None)
        return [(f"{hub_label(hub)}, row {number}", row) for number, row in enumerate(islice(rows, hub.stream), 1)]


@contextmanager
def _library_online(online: bool) -> Iterator[None]:
    """Keeps the library off a network that it would only retry."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not online
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
