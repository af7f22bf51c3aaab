"""Spec-Bench's answer files: per question its turns, tokens, steps, wall time and accept
lengths.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain, groupby, starmap
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.base import Row
from specbench_kit.datasets.rows import read_rows
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.interchange.base import UNKNOWN, ForeignRun, Format, dialogues, formats

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory
    from specbench_kit.runs.document import RunDocument

LATEST = 2**33
"""Seconds since 1970 beyond which a number is not taken for a time stamp."""
FAILED = "ERROR"
"""The answer that Spec-Bench writes for a turn that raised an error."""
Tokens = Annotated[float, Meta(gt=-1e15, lt=1e15)]
"""A whole number, which some engines write as 10.0."""


class AnsweredRepeat(Struct, kw_only=True, omit_defaults=True):
    """One repeat of a question: the lists have an entry per turn, but `accept_lengths`, which has one
    per round of all turns. `idxs` is an older name of `decoding_steps`.
    """

    index: Tokens
    turns: list[str]
    decoding_steps: list[Tokens] | None = None
    new_tokens: list[Tokens]
    wall_time: list[float]
    accept_lengths: list[Tokens]
    idxs: list[Tokens] | None = None


class AnsweredQuestion(Struct, kw_only=True):
    """A line of the file: the answers to one question."""

    question_id: str | int | float
    category: str = "spec-bench"
    answer_id: str = ""
    model_id: str | None = "unnamed"
    choices: list[AnsweredRepeat]
    tstamp: float | str | None = None


@formats.register("spec-bench")
class SpecBenchAnswers(Format):
    """Spec-Bench (Xia et al. 2024), `evaluation/eval.py`.

    A round is one entry of `accept_lengths`: its accepted tokens and the bonus token. The prompt's
    forward counts as the first round if an engine takes a token from it that no entry counts.
    """

    summary = "answer files of Spec-Bench, JSONL with one question per line"
    tool = "Spec-Bench"
    holds = "answers, wall_time in seconds"
    dataset = "spec-bench"

    def read(self, path: Path) -> ForeignRun:
        answers = [(line, _answer(line, row)) for line, row in read_rows(path)]
        if not answers:
            raise SkitError(f"{path} holds no answer: give an answer file of Spec-Bench")
        names = dict.fromkeys(str(answer.model_id) for _, answer in answers)
        if len(names) > 1:
            raise SkitError(
                f"{path} holds answers of several models: {', '.join(names)}; import one file for each"
            )
        records = [record for line, answer in answers for record in _records(line, answer)]
        if not records:
            raise SkitError(f"{path} holds no answer: every question's choices are empty")
        # Spec-Bench decodes one request after the other.
        for record, end_s in zip(
            records, accumulate(record.e2e_s or 0.0 for record in records), strict=True
        ):
            record.finished_s = end_s
        stamps = [
            stamp
            for _, answer in answers
            if isinstance(stamp := answer.tstamp, int | float) and 0 < stamp < LATEST
        ]
        started_at = (
            datetime.fromtimestamp(min(stamps), UTC).isoformat(timespec="seconds")
            if stamps
            else None
        )
        unexplained = sum(
            bool(r.rounds) and r.rounds[0].committed > r.rounds[0].accepted + 1 for r in records
        )
        note = f"more new_tokens than accept_lengths in {unexplained} of {len(records)} requests"
        at_zero = sum(record.e2e_s == 0 and bool(record.output_ids) for record in records)
        doubt = f"{at_zero} of {len(records)} answers have tokens and a wall_time of 0 s."
        return ForeignRun(
            next(iter(names)),
            records,
            started_at,
            {"batch_size": 1},
            notes=[note] if unexplained else [],
            doubts=[doubt] if at_zero else [],
        )

    def write(self, run: "RunDirectory") -> str:
        of_repeat = attrgetter("repeat")
        records = sorted(run.records(), key=of_repeat)
        repeats = [dialogues(list(group)) for _, group in groupby(records, of_repeat)]
        document = run.document
        folder = run.path.resolve().name
        rows = (
            _row(name, repeats, document, folder)
            for name in dict.fromkeys(chain.from_iterable(repeats))
        )
        return "".join(
            json.dumps(to_builtins(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows
        )


def _answer(line: str, row: Row) -> AnsweredQuestion:
    """Return the answers in a row of the file."""
    try:
        return convert(AnsweredQuestion, row)
    except ValueError as error:
        raise SkitError(f"{line}: not an answer of Spec-Bench ({error})") from error


def _records(line: str, answer: AnsweredQuestion) -> Iterator[RequestRecord]:
    """Yield a record per turn of every choice; a choice is a repeat."""
    try:
        for choice in answer.choices:
            for turn in range(len(choice.turns)):
                yield _record(answer, choice, turn)
    except (IndexError, ValueError, OverflowError) as error:
        raise SkitError(f"{line}: not an answer of Spec-Bench ({error})") from error


def _record(answer: AnsweredQuestion, choice: AnsweredRepeat, turn: int) -> RequestRecord:
    name = str(answer.question_id)
    text = choice.turns[turn]
    tokens = int(choice.new_tokens[turn])
    wall_s = choice.wall_time[turn]
    if not 0 <= wall_s < inf:
        raise ValueError(f"wall_time must be seconds, not {wall_s}")
    return RequestRecord.from_document(
        {
            "request_id": name if len(choice.turns) == 1 else f"{name}/{turn + 1}",
            "category": answer.category,
            "prompt_ids": [],
            "output_ids": [None] * tokens,
            "text": text,
            "finish_reason": "error" if text == FAILED else "length",
            "error": "Spec-Bench records an error" if text == FAILED else None,
            "e2e_s": wall_s,
            "repeat": int(choice.index),
            "rounds": _rounds(_accept_lengths(choice)[turn], tokens),
        }
    )


def _accept_lengths(choice: AnsweredRepeat) -> list[list[int]]:
    """Return the accept lengths of each turn, which the file holds one after the other.

    A turn ends where its steps end, which some engines count from 0; if the steps do not add up,
    where its tokens end.
    """
    lengths = [int(length) for length in choice.accept_lengths]
    turns = len(choice.turns)
    counted = choice.idxs if choice.decoding_steps is None else choice.decoding_steps
    steps = [int(count) for count in counted or ()]
    for counts in (steps, [count + 1 for count in steps]):
        if len(counts) == turns and sum(counts) == len(lengths):
            return [
                lengths[end - count : end]
                for end, count in zip(accumulate(counts), counts, strict=True)
            ]
    tokens = [int(count) for count in choice.new_tokens]
    by_turn: list[list[int]] = [[] for _ in tokens]
    turn = 0
    for length in lengths:
        while turn < len(tokens) - 1 and sum(by_turn[turn]) >= tokens[turn]:
            turn += 1
        by_turn[turn].append(length)
    return by_turn


def _rounds(lengths: Sequence[int], tokens: int) -> list[Mapping[str, int | None]]:
    """Return rounds that commit `tokens` in all; the last rounds lack what the end of the output
    cuts off.
    """
    first = max(0, tokens - sum(lengths))
    rounds: list[Mapping[str, int | None]] = (
        [{**UNKNOWN, "accepted": 0, "committed": first}] if first else []
    )
    remaining = tokens - first
    for length in lengths:
        # The last round may have accepted tokens beyond the end of the output.
        rounds.append(
            {**UNKNOWN, "accepted": max(0, length - 1), "committed": min(length, remaining)}
        )
        remaining -= min(length, remaining)
    return rounds


def _row(
    name: str,
    repeats: Sequence[Mapping[str, Sequence[RequestRecord]]],
    run: "RunDocument",
    folder: str,
) -> AnsweredQuestion:
    """Return the line of one question, with a choice for every repeat that holds its dialogue."""
    choices = {index: turns[name] for index, turns in enumerate(repeats) if name in turns}
    first = next(iter(choices.values()))[0]
    started_at = run.started_at
    return AnsweredQuestion(
        question_id=int(name) if name.isdigit() else name,
        category=first.category,
        answer_id=f"{folder}/{name}",
        model_id=run.method,
        choices=list(starmap(_choice, choices.items())),
        tstamp=datetime.fromisoformat(started_at).timestamp() if started_at else None,
    )


def _choice(index: int, turns: Sequence[RequestRecord]) -> AnsweredRepeat:
    return AnsweredRepeat(
        index=index,
        turns=[FAILED if record.finish_reason == "error" else record.text for record in turns],
        decoding_steps=[len(record.rounds) for record in turns],
        new_tokens=[len(record.output_ids) for record in turns],
        wall_time=[record.e2e_s or 0.0 for record in turns],
        accept_lengths=[step.accepted + 1 for record in turns for step in record.rounds],
    )
