"""Any dataset of the Hugging Face hub: `hub:owner/name?split=test&prompt=question`."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Hub, Prompt
from specbench_kit.datasets.turns import user_turns

PREFIX = "hub:"
PATH = re.compile(r"\w[\w.-]*/\w[\w.-]*")
KEYS = ("config", "split", "prompt", "id", "category", "rows")
EXAMPLE = f"{PREFIX}owner/name?split=test&prompt=question"


@dataclass(frozen=True, slots=True)
class AnyHub:
    """Where the rows are, and which columns hold prompts, their ids and their categories."""

    hub: Hub
    column: str
    identity: str | None
    category: str | None

    @property
    def folder(self) -> str:
        """Where a copy of the repository lies below the data directory."""
        return f"hub/{self.hub.path}"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        """The prompt of one row."""
        for column in (self.column, self.identity, self.category):
            if column is not None and column not in row:
                raise ValueError(f"there is no column '{column}': choose of {', '.join(row)}, as in {EXAMPLE}")
        identity = index if self.identity is None else row[self.identity]
        category = self.hub.path.partition("/")[2] if self.category is None else row[self.category]
        return Prompt(str(identity), str(category), user_turns(row[self.column]))


def parse(spec: str) -> AnyHub:
    """The dataset that a spec names; `rows` reads only so many first rows, where the rest is too much to download."""
    path, _, query = spec.removeprefix(PREFIX).partition("?")
    if not PATH.fullmatch(path):
        raise SkitError(f"'{spec}' names no dataset of the hub: write {EXAMPLE}")
    pairs = [part.partition("=") for part in query.split("&") if part]
    given = {key: unquote_plus(value) for key, _, value in pairs}
    if len(given) < len(pairs) or not all(key in KEYS and value for key, value in given.items()):
        raise SkitError(f"'{spec}': after ? belong {', '.join(KEYS)}, each once with a value, as in {EXAMPLE}")
    rows = given.get("rows", "1")
    if not rows.isdecimal() or not int(rows):
        raise SkitError(f"'{spec}': rows must be a whole number from 1 up, not '{rows}'")
    hub = Hub(path, given.get("split", "test"), given.get("config"), int(rows) if "rows" in given else None)
    return AnyHub(hub, given.get("prompt", "prompt"), given.get("id"), given.get("category"))
