"""The target's logits along an output, computed again in each of the shapes that decoding gives its forwards."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import psutil
import torch
from msgspec import structs
from torch import Tensor

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.models.executors.base import Padding, Row
from specbench_kit.models.runner import Append, Runner

CONTROL_ROWS = 3
"""Rows of the batch in which plain decoding is repeated as a control."""
ROOM = 1.2
"""Of a model's own size: free memory that its copy in float32 takes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: new tokens and their parents, the columns whose logits lead to output tokens, and what is kept.

    `padded` is where they lay in the batch that they shared; None is alone.
    """

    tokens: list[int]
    parents: list[int] | None
    columns: list[int]
    commit: list[int]
    padded: Padding | None


def plain_steps(record: RequestRecord, beside: Sequence[RoundRecord] = ()) -> Iterator[Step]:
    """As plain decoding goes: the prompt, then token by token, in the batches of those rounds of plain decoding."""
    padded = [*map(_padded, beside), *repeat(None, len(record.output_ids))]
    yield Step(record.prompt_ids, None, [len(record.prompt_ids) - 1], list(range(len(record.prompt_ids))), padded[0])
    for token, batch in zip(record.output_ids[:-1], padded[1:], strict=False):
        yield Step([token], None, [0], [0], batch)


def _padded(one: RoundRecord) -> Padding | None:
    return Padding(*one.padded) if one.padded else None


def round_steps(record: RequestRecord) -> Iterator[Step]:
    """As the record's rounds were verified; rejected tokens are not known, and no other token's logits depend on them.

    A pipeline's rounds are taken for one level of equal width per step.
    """
    pending, at = record.prompt_ids, 0
    for one in record.rounds:
        for part in _parts(one):
            yield _round_step(part, pending, record.output_ids[at:])
            at += part.committed
            pending = record.output_ids[at - 1 : at]


def _parts(one: RoundRecord) -> Iterator[RoundRecord]:
    if not one.steps:
        yield one
        return
    width = -(-(one.submitted + 1) // one.steps)
    for _ in range(one.committed):
        yield structs.replace(one, submitted=width - 1, accepted=0, committed=1, steps=0)


def _round_step(one: RoundRecord, pending: list[int], ahead: list[int]) -> Step:
    root, path = len(pending) - 1, one.path or list(range(1, one.accepted + 1))
    submitted = [pending[-1]] * one.submitted
    for place, token in zip(path, ahead, strict=False):
        submitted[place - 1] = token
    parents = [root + place for place in one.parents or range(one.submitted)]
    accepted = [root + place for place in path]
    columns = [root, *accepted][: one.committed]
    kept = [*range(root + 1), *accepted]
    return Step([*pending, *submitted], [*range(-1, root), *parents], columns, kept, _padded(one))


class RecomputedLogits:
    """Forwards of one target over slots of its own, so that what a run left in its slots does not matter."""

    def __init__(self, target: Runner, model: Any) -> None:
        self._target, self._model = target, model
        self._runners: dict[int, Runner] = {}

    @property
    def reduced(self) -> bool:
        """Whether the model computes in half precision."""
        return bool(self._model.dtype != torch.float32)

    @property
    def bitwise(self) -> bool:
        """Whether all shapes give the same logits to the bit."""
        return self._target.executor.bitwise

    def plain(self, record: RequestRecord, baseline: RequestRecord | None = None) -> Tensor:
        """Logits before each output token [tokens, vocabulary], as plain decoding computes them.

        In the batches in which it computed the baseline, as long as that goes; else alone.
        """
        return self._run(list(plain_steps(record, baseline.rounds if baseline else ())))

    def control(self, record: RequestRecord) -> Tensor:
        """The same in a batch of equal rows."""
        steps = plain_steps(record)
        places = (len(record.prompt_ids) + at for at in range(len(record.output_ids)))
        return self._run([_among_equals(step, length) for step, length in zip(steps, places, strict=True)])

    def rounds(self, record: RequestRecord) -> Tensor:
        """The same, as the record's verifications computed them."""
        return self._run(list(round_steps(record)))

    def single_forward(self, record: RequestRecord) -> Tensor:
        """The same by the transformers model itself, all tokens in one forward."""
        return single_forward_logits(self._model, record, self._target.vocabulary)

    def precise(self, record: RequestRecord) -> Tensor | None:
        """As `single_forward_logits`, in float32; None where a copy of the model does not fit."""
        return None if self._precise is None else single_forward_logits(self._precise, record, self._target.vocabulary)

    @cached_property
    def _precise(self) -> Any | None:
        needed = 4 * self._model.num_parameters() * ROOM
        return deepcopy(self._model).float() if needed < _free_bytes(self._model.device) else None

    def _runner(self, rows: int) -> Runner:
        if rows not in self._runners:
            self._runners[rows] = Runner(self._target.executor.with_slots(rows, self._target.capacity))
        return self._runners[rows]

    @torch.inference_mode()
    def _run(self, steps: Sequence[Step]) -> Tensor:
        rows = max(step.padded.rows if step.padded else 1 for step in steps)
        runner = self._runner(2 * rows - 1)  # so that the middle slot can be any of the rows
        slots = [runner.acquire() for _ in range(2 * rows - 1)]
        try:
            return torch.cat([_forward(runner, slots[rows - 1], step) for step in steps])
        finally:
            for slot in slots:
                runner.release(slot)


def _among_equals(step: Step, length: int) -> Step:
    return replace(step, padded=Padding(CONTROL_ROWS, 0, len(step.tokens), step.columns[0], length))


def _forward(runner: Runner, slot: int, step: Step) -> Tensor:
    keep = len(step.tokens) - step.columns[0]
    beside = _neighbours(step.padded, slot) if step.padded else ()
    logits = runner.forward([Append(slot, step.tokens, step.parents, keep)], extra_rows=beside)[0]
    runner.commit(slot, step.commit)
    return logits[[column - step.columns[0] for column in step.columns]]


def _neighbours(padded: Padding, slot: int) -> list[Row]:
    """Rows of any tokens, in adjacent slots, that give a batch its shape and the slot's row its place in it."""
    start, width = padded.length - padded.width, padded.width
    first = slot - padded.row
    others = (one for one in range(first, first + padded.rows) if one != slot)
    return [Row(one, [0] * width, start, start, keep=width - padded.first) for one in others]


@torch.inference_mode()
def single_forward_logits(model: Any, record: RequestRecord, vocabulary: int | None) -> Tensor:
    """Logits before each output token [tokens, vocabulary], by one forward of a transformers model."""
    tokens = torch.tensor([record.prompt_ids + record.output_ids[:-1]], device=model.device)
    logits: Tensor = model(tokens, use_cache=False).logits[0, len(record.prompt_ids) - 1 :, :vocabulary]
    return logits


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
