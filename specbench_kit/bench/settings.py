"""What one benchmark is asked to do, as the command line gives it."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal, get_args

from specbench_kit.deployments.base import Deployment
from specbench_kit.errors import SkitError

RECORDED_TOGETHER = 8
"""Requests that the target answers in one batch where a trace is recorded on the way."""


Launch = Literal["virtual", "processes"]
"""Where a pipeline's stages run: all in this process, or each in one of its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked when made: a value that makes no sense is an error of one line.

    Without a deployment, time is this machine's, or in a replay that of the machine that recorded the trace.
    """

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
    repeats: int = 1
    baseline: bool = True
    out: Path = Path("results")
    resume: bool = False
    force: bool = False
    timeline: bool = False
    token_view: bool = False
    exclude_seen: bool = False
    deployment: Deployment | None = None
    launch: Launch = "virtual"
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(bool(self.methods), "no method: give at least one --method")
        _require(len(set(self.methods)) == len(self.methods), "a method is given twice: name each --method once")
        _require(self.limit is None or self.limit >= 1, f"--limit must be at least 1, not {self.limit}")
        _require(self.repeats >= 1, f"--repeats must be at least 1, not {self.repeats}")
        _require(self.resume or not self.force, "--force goes with --resume: it mixes two conditions in one run")
        varies = self.repeats == 1 or self.deployment is None
        _require(varies, "--repeats measures again, and modelled time is the same every time: leave out one of them")
        _require(self.max_new_tokens >= 1, f"--max-new-tokens must be at least 1, not {self.max_new_tokens}")
        _require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        temperature_fits = isfinite(self.temperature) and self.temperature >= 0
        _require(temperature_fits, f"--temperature must be a number from 0 up, not {self.temperature}")
        _require(0 < self.top_p <= 1, f"--top-p must lie above 0 and up to 1, not {self.top_p}")
        _require(self.top_k >= 0, f"--top-k must not be negative, but is {self.top_k}")
        launches = get_args(Launch)
        _require(self.launch in launches, f"--launch must be {' or '.join(launches)}, not '{self.launch}'")
        real = self.launch == "virtual" or self.deployment is None
        _require(real, "--launch processes measures this machine: leave out --deployment, or the processes")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SkitError(message)
