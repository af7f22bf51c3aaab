"""The target's logits along an output, computed again in each of the shapes that decoding gives its
forwards.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat, takewhile
from typing import TYPE_CHECKING

import torch
from msgspec import structs
from torch import Tensor

from specbench_kit.decoding.constraint import Allowed
from specbench_kit.decoding.masking import mask_logits
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.models.executors.base import Padding, Row
from specbench_kit.models.memory import free_bytes
from specbench_kit.models.runner import Append, Runner
from specbench_kit.models.weights.stored import with_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONTROL_ROWS = 3
"""Rows of the batch in which plain decoding is repeated as a control."""
ROOM = 1.2
"""Free memory that a copy in float32 needs, as a multiple of its size."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: new tokens and their parents, the columns whose logits lead to output tokens,
    and what to commit.

    `padded` is the shape of the batch that the tokens shared; None if they were alone. `forced`
    output tokens follow, and at the very beginning `forced_first` precede, for which no logits were
    computed: the grammar allows nothing else there.
    """

    tokens: list[int]
    parents: list[int] | None
    columns: list[int]
    commit: list[int]
    padded: Padding | None
    forced: int = 0
    forced_first: int = 0


def plain_steps(record: RequestRecord, baseline: RequestRecord | None = None) -> Iterator[Step]:
    """Yield the forwards of plain decoding: the prompt, then token by token, in the batches that
    decoded `baseline` and with the forced tokens that it skipped, as far as those go.
    """
    shapes = [] if baseline is None else [(_padding(r), r.forced) for r in baseline.rounds]
    position = 0 if baseline is None else baseline.forced_first
    # What is forced behind another token than the baseline's is not known here.
    pairs = zip(record.output_ids, baseline.output_ids if baseline else (), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    pending = [*record.prompt_ids, *record.output_ids[:position]]
    forced_first = position
    for padding, forced in chain(shapes, repeat((None, 0))):
        last = len(pending) - 1
        forced = forced if position + 1 + forced <= same else 0
        yield Step(pending, None, [last], list(range(last + 1)), padding, forced, forced_first)
        pending = record.output_ids[position : position + 1 + forced]
        position += 1 + forced
        forced_first = 0
        if position >= len(record.output_ids):
            return


def round_steps(record: RequestRecord) -> Iterator[Step]:
    """Yield the forwards that verified the record's rounds.

    Rejected tokens are not recorded; any token stands for them, since no logits of the output
    depend on them. The rounds of a pipeline are taken for one level of equal width per step.
    """
    position = forced_first = record.forced_first
    pending = [*record.prompt_ids, *record.output_ids[:position]]
    for step in record.rounds:
        parts = [step]
        if step.steps:
            width = -(-(step.submitted + 1) // step.steps)
            parts = [
                structs.replace(step, submitted=width - 1, accepted=0, committed=1, steps=0)
            ] * step.committed
        for part in parts:
            forward = _round_step(part, pending, record.output_ids[position:])
            yield replace(forward, forced=part.forced, forced_first=forced_first)
            position += part.committed
            pending = record.output_ids[position - 1 : position + part.forced]
            position += part.forced
            forced_first = 0


def _round_step(step: RoundRecord, pending: list[int], output_ids: list[int]) -> Step:
    # `path` and `parents` number the submitted tokens from 1 on; 0 is the root, the last pending
    # token.
    root = len(pending) - 1
    path = step.path or list(range(1, step.accepted + 1))
    submitted = [pending[-1]] * step.submitted
    for number, token in zip(path, output_ids, strict=False):
        submitted[number - 1] = token
    parents = [root + number for number in step.parents or range(step.submitted)]
    accepted = [root + number for number in path]
    columns = [root, *accepted][: step.committed]
    commit = [*range(root + 1), *accepted]
    return Step(
        [*pending, *submitted], [*range(-1, root), *parents], columns, commit, _padding(step)
    )


def _padding(step: RoundRecord) -> Padding | None:
    return Padding(*step.padded) if step.padded else None


AllowedBefore = Callable[[RequestRecord], Sequence[Allowed]]
"""Returns what a grammar allowed before each token of an output."""


class RecomputedLogits:
    """Logits before each output token [tokens, vocabulary], in each shape of forwards.

    Forwards run over slots of their own, so that what a run left in its slots does not matter.
    `pause` is called before every forward: a server verifies meanwhile what has arrived.
    """

    def __init__(
        self, target: Runner, model: "PreTrainedModel", pause: Callable[[], None] = lambda: None
    ) -> None:
        self._target = target
        self._model = model
        self._pause = pause
        self._runners: dict[int, Runner] = {}

    def under(self, allowed: AllowedBefore) -> "MaskedLogits":
        """Return the same logits with the least number where a grammar forbids a token."""
        return MaskedLogits(self, allowed)

    @property
    def reduced(self) -> bool:
        """Return True if the model computes in half precision."""
        return bool(self._model.dtype != torch.float32)

    @property
    def bitwise(self) -> bool:
        """Return True if all shapes give the same logits to the bit."""
        return self._target.executor.bitwise

    def plain(self, record: RequestRecord, baseline: RequestRecord | None = None) -> Tensor:
        """Return the logits of plain decoding, in the batches that decoded `baseline` as far as
        those go.
        """
        return self._run(list(plain_steps(record, baseline)))

    def control(self, record: RequestRecord) -> Tensor:
        """Return the logits of plain decoding in a batch of equal rows."""
        steps = [
            replace(
                step, padded=Padding(CONTROL_ROWS, 0, len(step.tokens), step.columns[0], length)
            )
            for length, step in enumerate(plain_steps(record), len(record.prompt_ids))
        ]
        return self._run(steps)

    def rounds(self, record: RequestRecord) -> Tensor:
        """Return the logits of the record's verifications."""
        return self._run(list(round_steps(record)))

    def single_forward(self, record: RequestRecord) -> Tensor:
        """Return the logits of the transformers model, all tokens in one forward."""
        self._pause()
        return single_forward_logits(self._model, record, self._target.vocabulary)

    def precise(self, record: RequestRecord) -> Tensor | None:
        """Return the logits of one forward in float32; None if a copy of the model does not fit
        into memory.
        """
        if self._precise_model is None:
            return None
        self._pause()
        return single_forward_logits(self._precise_model, record, self._target.vocabulary)

    @cached_property
    def _precise_model(self) -> "PreTrainedModel | None":
        fits = 4 * self._model.num_parameters() * ROOM < free_bytes(self._model.device)
        return deepcopy(with_weights(self._model)).float() if fits else None

    @torch.inference_mode()
    def _run(self, steps: Sequence[Step]) -> Tensor:
        rows = max(step.padded.rows if step.padded else 1 for step in steps)
        count = 2 * rows - 1  # so that the middle slot can be any of the rows
        if count not in self._runners:
            self._runners[count] = Runner(
                self._target.executor.with_slots(count, self._target.capacity)
            )
        runner = self._runners[count]
        slots = [runner.acquire() for _ in range(count)]
        try:
            return torch.cat([self._forward(runner, slots[rows - 1], step) for step in steps])
        finally:
            for slot in slots:
                runner.release(slot)

    def _forward(self, runner: Runner, slot: int, step: Step) -> Tensor:
        self._pause()
        keep = len(step.tokens) - step.columns[0]
        neighbours = _neighbours(step.padded, slot) if step.padded else ()
        logits = runner.forward(
            [Append(slot, step.tokens, step.parents, keep)], extra_rows=neighbours
        )[0]
        runner.commit(slot, step.commit)
        rows = logits[[column - step.columns[0] for column in step.columns]]
        if not step.forced and not step.forced_first:
            return rows
        # Any logits do where a single token is allowed: what is masked leaves that one alone.
        return torch.cat(
            [rows[:1].expand(step.forced_first, -1), rows, rows[-1:].expand(step.forced, -1)]
        )


class MaskedLogits(RecomputedLogits):
    """The logits of another object, in which what is forbidden has the least number there is.

    Minus infinity has no distance from itself, and the judge asks how far logits move.
    """

    def __init__(self, unmasked: RecomputedLogits, allowed: AllowedBefore) -> None:
        self._unmasked = unmasked
        self._allowed = allowed

    @property
    def reduced(self) -> bool:
        """Return True if the model computes in half precision."""
        return self._unmasked.reduced

    @property
    def bitwise(self) -> bool:
        """Return True if all shapes give the same logits to the bit."""
        return self._unmasked.bitwise

    def plain(self, record: RequestRecord, baseline: RequestRecord | None = None) -> Tensor:
        return self._masked(record, self._unmasked.plain(record, baseline))

    def control(self, record: RequestRecord) -> Tensor:
        return self._masked(record, self._unmasked.control(record))

    def rounds(self, record: RequestRecord) -> Tensor:
        return self._masked(record, self._unmasked.rounds(record))

    def single_forward(self, record: RequestRecord) -> Tensor:
        return self._masked(record, self._unmasked.single_forward(record))

    def precise(self, record: RequestRecord) -> Tensor | None:
        logits = self._unmasked.precise(record)
        return None if logits is None else self._masked(record, logits)

    def _masked(self, record: RequestRecord, logits: Tensor) -> Tensor:
        logits = logits.float()
        return mask_logits(logits, self._allowed(record), torch.finfo(logits.dtype).min)


def _neighbours(padded: Padding, slot: int) -> list[Row]:
    """Return rows of any tokens in adjacent slots, which give the batch its shape and the slot's
    row its position.
    """
    start = padded.length - padded.width
    width = padded.width
    first = slot - padded.row
    neighbours = (number for number in range(first, first + padded.rows) if number != slot)
    return [
        Row(number, [0] * width, start, start, keep=width - padded.first) for number in neighbours
    ]


@torch.inference_mode()
def single_forward_logits(
    model: "PreTrainedModel", record: RequestRecord, vocabulary: int | None
) -> Tensor:
    """Return the logits before each output token [tokens, vocabulary], by one forward of a
    transformers model.
    """
    tokens = torch.tensor([record.prompt_ids + record.output_ids[:-1]], device=model.device)
    count = len(record.output_ids)
    # Logits of a long prompt would be of gigabytes.
    output = with_weights(model)(tokens, use_cache=False, logits_to_keep=count)
    logits: Tensor = output.logits[0, -count:, :vocabulary]
    return logits
