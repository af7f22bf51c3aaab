"""Rows from the Hugging Face hub or, where it is out of reach, from its library's cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.hub import hub_reachable, is_reachable
from specbench_kit.datasets.base import Hub
from specbench_kit.datasets.rows import LocatedRow, parse_rows

DOWNLOAD_S = 30.0
"""Seconds without data after which a download is given up."""


def hub_label(hub: Hub) -> str:
    """Return the name by which a run records this source, such as `openai/gsm8k:main:test`."""
    return ":".join(part for part in (hub.path, hub.config, hub.split) if part)


def fetch_rows(hub: Hub, folder: Path | None = None) -> list[LocatedRow]:
    """Return every row of `hub`: from a copy of its repository in `folder`, else downloaded, else from the cache.

    Raise SkitError with the reason if there are none.
    """
    online = folder is None and (is_reachable(hub.url) if hub.url else hub_reachable())
    try:
        if hub.url and online:
            from urllib.request import urlopen

            with urlopen(hub.url, timeout=DOWNLOAD_S) as lines:
                return list(parse_rows(hub.url.rpartition("/")[2], lines))
        from datasets import load_dataset

        with _library_online(online):
            streams = online and hub.stream is not None
            rows = load_dataset(str(folder or hub.path), hub.config, split=hub.split, streaming=streams)
            return [(f"{hub_label(hub)}, row {number}", row) for number, row in enumerate(islice(rows, hub.stream), 1)]
    except SkitError:
        raise
    except Exception as error:  # the library lets through whatever its parsers and HTTP clients raise
        failed = online or folder is not None
        why = f"failed: {str(error) or type(error).__name__}" if failed else "is out of reach and not cached"
        raise SkitError(f"{hub_label(hub)} {why.splitlines()[0]}") from error


@contextmanager
def _library_online(online: bool) -> Iterator[None]:
    """Keep the library from retrying a network that is known to be out of reach."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not online
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
