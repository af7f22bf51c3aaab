"""The traces of named pairs that come with the kit, which every command takes by name. Imports
nothing heavy.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError, did_you_mean

BUNDLED = Path(__file__).with_name("bundled")
CATALOGUE = BUNDLED / "traces.toml"
SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class BundledTrace:
    """A trace in the kit: what it holds, in a sentence, and the licence under which others may use
    it.
    """

    name: str
    summary: str
    licence: str

    @property
    def file(self) -> Path:
        return BUNDLED / f"{self.name}{SUFFIX}"


def bundled_traces() -> Mapping[str, BundledTrace]:
    """Return the bundled traces by name, in the order of the catalogue."""
    entries = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return {name: BundledTrace(name=name, **entry) for name, entry in entries.items()}


DEFAULT_TRACE = "qwen2.5-coder"
"""The trace that simulations and sweeps take where neither acceptance nor anything to record is
asked for.
"""
SAY_DEFAULT = (
    f"no {{option}}: taking {DEFAULT_TRACE}, a pair that the kit has recorded; {{instead}} to "
    "record another pair first"
)


def trace_file(path: Path) -> Path:
    """Return the file that an option names: the file itself, if there is one, or the bundled trace
    of that name.
    """
    if path.exists() or path.suffix == SUFFIX or len(path.parts) != 1:
        return path
    bundled = bundled_traces()
    if path.name not in bundled:
        raise SkitError(
            f"no trace '{path}'{did_you_mean(path.name, bundled)}: name a file of skit record, or a bundled trace "
            f"({', '.join(bundled)})"
        )
    return bundled[path.name].file
