"""Train a draft until its time or its epochs are up, and keep the weights that did best on held-out
answers.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.predictors.latency import stopwatch
from specbench_kit.runs.line_file import lock, reported, unlock
from specbench_kit.studies.training.distillation.answers import Answer

WARM_UP_STEPS = 20
EVALUATION_COSTS = 8
"""Training between two evaluations lasts at least this many times as long as one of them."""
LOWEST_RATE = 0.02
"""The learning rate at the end, as a share of its peak."""


class StepOptimizer(Protocol):
    """Updates a draft's weights."""

    def step(self, share: float) -> None:
        """Update the weights with `share` of the peak learning rate, and clear the gradients."""


@dataclass(frozen=True, slots=True)
class LossReport:
    """What one training batch gave: the loss to minimise, and the hit rate of each draft step."""

    loss: Tensor
    hit_rates: list[float]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How training stands: `acceptance_length` is what held-out answers promise, in tokens per
    verification.
    """

    minutes: float
    steps: int
    tokens: int
    loss: float
    acceptance_length: float
    acceptance: list[float]

    @property
    def sentence(self) -> str:
        """Return one line for people."""
        rates = ", ".join(f"{rate:.0%}" for rate in self.acceptance)
        return (
            f"{self.minutes:5.1f} min, {self.tokens:,} tokens, loss {self.loss:.3f}; held out: "
            f"{self.acceptance_length:.2f} tokens per verification, accepted by position: {rates}"
        )


@dataclass(slots=True)
class TrainingLoop:
    """The parts of a training that all drafts share.

    `planned_s` is the time that training may take; without it `planned_batches` says when it ends. `evaluate` returns
    the acceptance length on held-out answers, and the acceptance rate by position. `keep` stores the weights of the
    model at each checkpoint that is the best so far.
    """

    model: nn.Module
    optimizer: StepOptimizer
    loss: Callable[[list[Answer]], LossReport]
    evaluate: Callable[[], tuple[float, list[float]]]
    tell: Callable[[Checkpoint], None]
    keep: Callable[[], None]
    progress: Callable[[float], None]
    planned_s: float | None
    planned_batches: int
    evaluations: int = 12
    best: Checkpoint | None = None
    _best_weights: dict[str, Tensor] = field(default_factory=dict)
    _loss: float = 0.0

    def run(self, batches: Iterator[list[Answer]]) -> Checkpoint:
        """Train on the batches, and leave the model with its best weights."""
        started_s = monotonic_s()
        tokens = 0
        steps = 0
        due = 0.0
        for steps, batch in enumerate(batches, 1):
            share = self._share(monotonic_s() - started_s, steps - 1)
            if share >= due:
                before_s = monotonic_s()
                self._checkpoint(before_s - started_s, steps - 1, tokens)
                # Evaluations must not eat up the time of a short training.
                cost = self._share(monotonic_s() - before_s, 0)
                due = share + max(1 / self.evaluations, EVALUATION_COSTS * cost)
            if share >= 1:
                break
            report = self.loss(batch)
            report.loss.backward()
            self.optimizer.step(min(1.0, steps / WARM_UP_STEPS) * max(LOWEST_RATE, 1 - share))
            current = float(report.loss.detach())
            self._loss = current if steps == 1 else 0.95 * self._loss + 0.05 * current
            tokens += sum(len(answer.output) for answer in batch)
            self.progress(share)
        self._checkpoint(monotonic_s() - started_s, steps, tokens)
        self.progress(1.0)
        self.model.load_state_dict(self._best_weights, strict=False)
        assert self.best is not None
        return self.best

    def _share(self, spent_s: float, steps: int) -> float:
        by_steps = steps / max(1, self.planned_batches)
        return by_steps if self.planned_s is None else spent_s / max(self.planned_s, 1e-9)

    def _checkpoint(self, spent_s: float, steps: int, tokens: int) -> None:
        self.model.eval()
        with torch.no_grad():
            acceptance_length, acceptance = self.evaluate()
        self.model.train()
        checkpoint = Checkpoint(
            spent_s / 60, steps, tokens, self._loss, acceptance_length, acceptance
        )
        self.tell(checkpoint)
        if self.best is None or acceptance_length > self.best.acceptance_length:
            self.best = checkpoint
            trained = {
                name for name, weight in self.model.named_parameters() if weight.requires_grad
            }
            state = self.model.state_dict()
            self._best_weights = {name: state[name].detach().clone() for name in trained}
            self.keep()


MUCH_FASTER = 1.5
"""How many times as fast products in bf16 have to be to pay for the conversions around them."""


def faster_in_bf16(device: torch.device) -> bool:
    """Return whether matrix products in bf16 beat fp32 there: on CUDA, and on processors whose own
    products say so.
    """
    return device.type == "cuda" or (device.type == "cpu" and _processor_is_faster_in_bf16())


@cache
def _processor_is_faster_in_bf16() -> bool:
    """Return whether this processor is, by products of the size of a training batch, in turns.

    No name tells: tiles (AMX) are fast, AVX512-BF16 is on Zen 5 (four times) and hardly on Intel's
    cores, and without either bf16 is computed slowly by conversion. A small product tells that in
    a tenth of a second, where the large one takes several.
    """
    return _speed_of_bf16(rows=4) > 1 / MUCH_FASTER and _speed_of_bf16(rows=512) > MUCH_FASTER


def _speed_of_bf16(rows: int) -> float:
    """Return how many times as fast as in fp32 so many rows are multiplied in bf16."""
    seconds: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    operands = {
        dtype: (torch.ones(rows, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype))
        for dtype in seconds
    }
    for _ in range(4):
        for dtype, (inputs, weights) in operands.items():
            elapsed_s = stopwatch()
            torch.mm(inputs, weights)
            seconds[dtype].append(elapsed_s())
    return min(seconds[torch.float32]) / min(seconds[torch.bfloat16])


NAME = "unfinished"


@dataclass(frozen=True, slots=True)
class UnfinishedDraft:
    """The best weights so far, in a folder inside the one where the finished draft will be."""

    result: Path

    @property
    def folder(self) -> Path:
        """Return the folder of the best weights so far."""
        return self.result / NAME

    def start(self, *, resume: bool) -> Path:
        """Return the folder to resume from: that of an interrupted training, else the result's.

        Without `resume` the weights of an interrupted training are deleted. Until `finish`, no
        other process trains into the result's folder: raise SkitError if one does.
        """
        with reported(
            f"cannot write in {self.result}",
            "make room there or choose another folder with --save-to",
        ):
            self.result.mkdir(parents=True, exist_ok=True)
        lock(self.result)
        if not resume:
            self.remove()
        return self.folder if self.folder.is_dir() else self.result

    def keep(self, save: Callable[[Path], None]) -> None:
        """Replace the weights by those that `save` writes; if it is interrupted, the earlier ones
        stay whole.
        """
        written = self.folder.with_name(f"{NAME}.writing")
        shutil.rmtree(written, ignore_errors=True)
        save(written)
        if not self.folder.is_dir():
            written.rename(self.folder)
            return
        # All checkpoints of a training have one configuration, so that any of them fits any
        # weights.
        for file in sorted(written.iterdir()):
            os.replace(file, self.folder / file.name)
        written.rmdir()

    def finish(self) -> None:
        """Delete the weights, now that the finished draft took their place, and let other processes
        train there.
        """
        self.remove()
        unlock(self.result)

    def remove(self) -> None:
        """Delete the weights of an interrupted training."""
        for folder in (self.folder, self.folder.with_name(f"{NAME}.writing")):
            shutil.rmtree(folder, ignore_errors=True)
