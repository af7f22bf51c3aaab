"""Any dataset of the Hugging Face hub: `hub:owner/name?split=test&prompt=question`."""

import re
from dataclasses import dataclass
from urllib.parse import unquote_plus

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Hub, Prompt, Row
from specbench_kit.datasets.messages import system_text, user_turns

PREFIX = "hub:"
PATH = re.compile(r"\w[\w.-]*/\w[\w.-]*")
KEYS = ("config", "split", "prompt", "id", "category", "rows")
EXAMPLE = f"{PREFIX}owner/name?split=test&prompt=question"


@dataclass(frozen=True, slots=True)
class AnyHub:
    """A dataset on the hub, with the columns that hold its prompts, their ids and their categories."""

    hub: Hub
    prompt_column: str
    id_column: str | None
    category_column: str | None

    @property
    def folder(self) -> str:
        """Return the path of a copy of the repository, below the data directory."""
        return f"hub/{self.hub.path}"

    def prompt(self, row: Row, index: int) -> Prompt:
        """Return the prompt of a row; raise ValueError if a column is missing."""
        for column in (self.prompt_column, self.id_column, self.category_column):
            if column is not None and column not in row:
                raise ValueError(f"there is no column '{column}': choose from {', '.join(row)}, as in {EXAMPLE}")
        identity = index if self.id_column is None else row[self.id_column]
        category = self.hub.path.partition("/")[2] if self.category_column is None else row[self.category_column]
        said = row[self.prompt_column]
        return Prompt(str(identity), str(category), user_turns(said), system=system_text(said))


def parse(spec: str) -> AnyHub:
    """Return the dataset of a spec such as `hub:owner/name?split=test`; raise SkitError if the spec is wrong.

    `rows` reads only that many rows from the start, for datasets that are too large to download.
    """
    path, _, query = spec.removeprefix(PREFIX).partition("?")
    if not PATH.fullmatch(path):
        raise SkitError(f"'{spec}' names no dataset of the hub: write {EXAMPLE}")
    pairs = [part.partition("=") for part in query.split("&") if part]
    options = {key: unquote_plus(value) for key, _, value in pairs}
    if len(options) < len(pairs) or not all(key in KEYS and value for key, value in options.items()):
        raise SkitError(f"'{spec}': write {', '.join(KEYS)} after ?, each once with a value, as in {EXAMPLE}")
    rows = options.get("rows", "1")
    if not rows.isdecimal() or not int(rows):
        raise SkitError(f"'{spec}': rows must be a whole number from 1 up, not '{rows}'")
    hub = Hub(path, options.get("split", "test"), options.get("config"), int(rows) if "rows" in options else None)
    return AnyHub(hub, options.get("prompt", "prompt"), options.get("id"), options.get("category"))
