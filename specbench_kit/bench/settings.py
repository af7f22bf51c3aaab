"""What one benchmark is asked to do, as the command line gives it."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from specbench_kit.errors import SkitError


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked when made: a value that makes no sense is an error of one line."""

    methods: tuple[str, ...]
    target: str = "bundled"
    draft: str = "bundled"
    device: str = "auto"
    dtype: str = "auto"
    max_new_tokens: int = 128
    batch_size: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    limit: int | None = None
    baseline: bool = True
    out: Path = Path("results")
    resume: bool = False
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(bool(self.methods), "no method: give at least one --method")
        _require(len(set(self.methods)) == len(self.methods), "a method is given twice: name each --method once")
        _require(self.limit is None or self.limit >= 1, f"--limit must be at least 1, not {self.limit}")
        _require(self.max_new_tokens >= 1, f"--max-new-tokens must be at least 1, not {self.max_new_tokens}")
        _require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        temperature_fits = isfinite(self.temperature) and self.temperature >= 0
        _require(temperature_fits, f"--temperature must be a number from 0 up, not {self.temperature}")
        _require(0 < self.top_p <= 1, f"--top-p must lie above 0 and up to 1, not {self.top_p}")
        _require(self.top_k >= 0, f"--top-k must not be negative, but is {self.top_k}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SkitError(message)
