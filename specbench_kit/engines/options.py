"""What a policy inside an engine is given: options from the environment or a file, and facts about
the engine.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.specs import from_options
from specbench_kit.decoding.constraint import (
    BY_PROMPT,
    GrammarSpec,
    parse_constraint,
    require_library,
)
from specbench_kit.models.draft_library import AUTO

PREFIX = "SKIT_"
OPTION_FILE = "SKIT_OPTIONS"
"""The environment variable that names a TOML file of options."""
CONSTRAINT = "SKIT_CONSTRAINT"
"""The environment variable that names a grammar; messages begin with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What drafts, and what is recorded; `SKIT_METHOD` in the environment sets `method`, and so on.

    The draft model `auto` is the one that belongs to the target, such as that of `skit train-draft`.
    `deployment` describes the engine's latencies for methods that plan with them; time is measured all the same.
    `out` is the folder in which the run of this process is recorded; None records nothing. Requests beyond the first
    `records` are drafted for without being recorded. `max_new_tokens` is what the requests ask of the engine, which
    does not tell its drafter; records are cut there. `kv_gib` limits the memory of the draft model's KV, and
    requests for which there is no room are decoded without drafts. `constraint` names the grammar that requests are
    asked to follow, as the engine does not tell its drafter; drafts are held to it as far as an output follows it.
    """

    method: str = "fixed-k"
    draft: str = AUTO
    device: str = "auto"
    dtype: str = "auto"
    kv_gib: float = 2.0
    deployment: str = "local"
    out: Path | None = None
    dataset: str = "requests"
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    records: int = 10_000
    constraint: str | None = None

    def __post_init__(self) -> None:
        require(self.kv_gib > 0, f"SKIT_KV_GIB must be above 0, not {self.kv_gib}")
        require(self.records >= 0, f"SKIT_RECORDS must be at least 0, not {self.records}")
        most = self.max_new_tokens
        require(most is None or most >= 1, f"SKIT_MAX_NEW_TOKENS must be at least 1, not {most}")
        require_library(self.grammar, CONSTRAINT)

    @property
    def grammar(self) -> GrammarSpec | None:
        """Return the grammar that `constraint` names, or None; raise SkitError for a wrong name."""
        if self.constraint is None:
            return None
        grammar = parse_constraint(self.constraint, CONSTRAINT)
        require(
            grammar.kind != BY_PROMPT,
            f"{CONSTRAINT}: an engine does not say which prompt a request is: name one grammar for all",
        )
        return grammar

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "EngineOptions":
        """Return the options of the file that `SKIT_OPTIONS` names, where no variable of their own
        replaces them.
        """
        values = _read_file(Path(environment[OPTION_FILE])) if environment.get(OPTION_FILE) else {}
        for field in fields(cls):
            value = environment.get(PREFIX + field.name.upper())
            if value:
                values[field.name] = value
        # The lines of the variables are parsed as a spec whose separator cannot occur in a value.
        lines = "\n".join(f"{name}={value}" for name, value in values.items())
        return from_options("options of the engine's drafter", cls, lines, separator="\n")


def _read_file(path: Path) -> dict[str, str]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SkitError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise SkitError(
            f"cannot read {path}: {error.strerror}; {OPTION_FILE} names a TOML file of options"
        ) from None
    if nested := [key for key, value in content.items() if isinstance(value, dict | list)]:
        raise SkitError(f"{path}: {nested[0]} must be a text, a number, true or false")
    return {key.replace("-", "_"): str(value) for key, value in content.items()}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's name and version, its target, and the limits within which it takes drafts.

    `target` is a folder or a hub id. At most `longest_draft` tokens of a draft are verified. `batch_size` requests of
    at most `context` tokens run at a time. `recorded` is False for a process that drafts the same as another one,
    such as the ranks of a target that is split over devices.
    """

    engine: str
    version: str
    target: str
    dtype: str
    device: str
    vocabulary: int
    context: int
    batch_size: int
    longest_draft: int
    eos_ids: frozenset[int]
    recorded: bool = True
