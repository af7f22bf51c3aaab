"""The file that `skit tune` writes and `skit bench --tuned` reads: each method's options for one clock."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.folder import to_json, write_text

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TunedMethod:
    """What a method was set to: tokens per second over the prompts kept for the test, and candidates tried.

    `default_tokens_per_s` is None where the method cannot be replayed as it comes.
    """

    spec: str
    tried: int
    tokens_per_s: float
    default_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class TunedOptions:
    """Choices by method name, and what they were made on."""

    methods: Mapping[str, TunedMethod]
    deployment: str
    batch_size: int
    budget: int
    run: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, spec: str) -> str:
        """A spec as it was tuned; one with options of its own is left as it is."""
        found = self.methods.get(spec)
        return found.spec if found else spec

    def doubts(self, deployment: str, batch_size: int) -> list[str]:
        """How a benchmark differs from what this was made for."""
        here = {"deployment": deployment, "batch size": batch_size}
        there = {"deployment": self.deployment, "batch size": self.batch_size}
        return [f"tuned for {name} {there[name]}, run with {here[name]}" for name in here if here[name] != there[name]]


def save(tuned: TunedOptions, path: Path) -> None:
    """Write a file, over an older one if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_json({"schema": SCHEMA, **asdict(tuned)}))


def load(path: Path) -> TunedOptions:
    """Read a file, and check every spec in it."""
    try:
        read = json.loads(path.read_text())
        if read.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        methods = {name: TunedMethod(**choice) for name, choice in read.pop("methods").items()}
        for choice in methods.values():
            parse_method(choice.spec)
        return TunedOptions(methods, **read)
    except OSError as error:
        raise SkitError(f"--tuned {path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SkitError(f"--tuned {path}: not a file of skit tune ({error})") from error
