"""What a run of `skit ab` asks and keeps: the turns of its loads, and a folder with all answers,
summary and report.

Both servers take every turn, one after the other, in the order ABBA.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import NamedTuple, TypeVar

from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file
from specbench_kit.core.typed_json import decode
from specbench_kit.datasets.base import Prompt
from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, CounterChange
from specbench_kit.reports.study import Study
from specbench_kit.runs.directory import is_whole, read_object, read_run
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.folder import (
    Defining,
    encode,
    to_json,
    unfinished_folder,
    unused_folder,
    write_text,
)
from specbench_kit.runs.line_file import LineFile, lock, reported, unlock
from specbench_kit.studies.ab.kind import AB, AbStudy
from specbench_kit.studies.ab.report import AbDescription
from specbench_kit.studies.ab.settings import Load
from specbench_kit.studies.ab.summary import AbSummary

SEED_BYTES = 4


class Turn(NamedTuple):
    """The prompts that one server gets before the other gets the same ones, and which server begins
    (0 or 1).
    """

    load: Load
    repeat: int
    number: int
    prompts: Sequence[Prompt]
    first: int

    @property
    def order(self) -> tuple[int, int]:
        """The positions of both servers in the order in which they get the turn."""
        return self.first, 1 - self.first


def turns_of(load: Load, prompts: Sequence[Prompt], repeats: int) -> Iterator[Turn]:
    """Yield the turns of a load: AB, BA, AB, ... over the prompts, and the other way round in the
    next repeat.

    A machine that slows down or warms up meets both servers alike: each begins as often as the
    other, with any prompt.
    """
    for repeat in range(repeats):
        for number, begin in enumerate(range(0, len(prompts), load.turn)):
            yield Turn(
                load, repeat, number, prompts[begin : begin + load.turn], (number + repeat) % 2
            )


def arrivals_s(turn: Turn, seed: int) -> list[float]:
    """Return when each request of a turn arrives, in seconds since its first: the same for both
    servers and repeats.
    """
    rate = turn.load.rate
    if rate is None:
        return [0.0] * len(turn.prompts)
    random = Random(f"{seed}/{turn.load.label}/{turn.number}")
    return [0.0, *accumulate(random.expovariate(rate) for _ in turn.prompts[1:])]


def request_seed(seed: int, request_id: str, repeat: int, dialogue_turn: int = 0) -> int:
    """Return the seed of a request's sampler, the same for both servers; servers take 31 bits."""
    text = f"{seed}/{request_id}" + (f"/{repeat}" if repeat or dialogue_turn else "")
    text += f"/{dialogue_turn}" if dialogue_turn else ""
    return int.from_bytes(blake2b(text.encode(), digest_size=SEED_BYTES).digest()) >> 1


T = TypeVar("T")
CounterKey = tuple[str, str, int, int]
ANSWERS = "answers.jsonl"
COUNTERS = "counters.jsonl"
RUN = "run.json"
SCHEMA_VERSION = 1
HINT = "finished answers are kept; make room, then go on with --resume"


def _identity_of(folder: Path) -> Defining:
    """Return what defines the run in a folder; nothing if its file is damaged or does not say."""
    with suppress(SkitError):
        return read_object(folder / RUN).get("identity") or {}
    return {}


@dataclass
class AnswerStore:
    """The records of a run; a record replaces an earlier one of the same key, from a turn that was
    cut short.
    """

    folder: Path
    names: tuple[str, ...]
    records: dict[AnswerKey, AnswerRecord] = field(default_factory=dict)
    changes: dict[CounterKey, CounterChange] = field(default_factory=dict)

    @classmethod
    def create(
        cls, out: Path, names: tuple[str, ...], dataset: str, run: RunFields, identity: Defining
    ) -> "AnswerStore":
        """Make the folder of a new run, to which this process alone writes from now on."""
        folder = unused_folder(out, "ab", dataset, identity)
        with reported(
            f"cannot make a run directory in {out}",
            "make room there or choose another folder with --out",
        ):
            folder.mkdir(parents=True)
            replace_file(
                folder / RUN,
                encode(to_json({"schema_version": SCHEMA_VERSION, **run, "identity": identity})),
            )
            (folder / ANSWERS).touch()
        lock(folder)
        return cls(folder, names)

    @classmethod
    def resume(cls, out: Path, names: tuple[str, ...], identity: Defining) -> "AnswerStore":
        """Open the newest unfinished run with the same settings, to which this process alone writes
        from now on.

        Raise SkitError if there is none, or if another process writes to it.
        """
        folder = unfinished_folder(out, "ab", identity, RUN, _identity_of, is_whole)
        lock(folder)  # before anything is read: another process may be in the middle of a line
        return cls.open(folder, names)

    @classmethod
    def open(cls, folder: Path, names: tuple[str, ...]) -> "AnswerStore":
        """Read a run."""
        store = cls(folder, names)
        store.records = {record.key: record for record in _read(folder / ANSWERS, AnswerRecord)}
        store.changes = {change.key: change for change in _read(folder / COUNTERS, CounterChange)}
        return store

    @property
    def run(self) -> RunFields:
        """The content of `run.json`."""
        return read_run(self.folder / RUN)

    def has_turn(self, turn: Turn) -> bool:
        """Return True if both servers have taken the turn to its end."""
        keys = [
            AnswerKey(turn.load.label, name, prompt.id, turn.repeat, dialogue_turn)
            for name in self.names
            for prompt in turn.prompts
            for dialogue_turn in range(len(prompt.turns))
        ]
        return all(key in self.records for key in keys)

    @property
    def has_answers(self) -> bool:
        """Return True if a server has answered a request."""
        return any(record.answer is not None for record in self.records.values())

    def discard(self) -> None:
        """Remove the folder of a run without answers, which would show an empty table."""
        unlock(self.folder)
        rmtree(self.folder, ignore_errors=True)

    def append(self, record: AnswerRecord) -> None:
        """Add a record."""
        self.records[record.key] = record
        self._write_line(ANSWERS, record)

    def drop_replaced(self) -> None:
        """Remove the lines that a later one of the same key replaces, as after a turn that was cut
        short.
        """
        _keep_last(self.folder / ANSWERS, AnswerRecord, len(self.records))
        _keep_last(self.folder / COUNTERS, CounterChange, len(self.changes))

    def append_counters(self, change: CounterChange) -> None:
        """Add what a server's counters counted."""
        self.changes[change.key] = change
        self._write_line(COUNTERS, change)

    def amend(self, **facts: object) -> None:
        """Add facts to `run.json`."""
        write_text(self.folder / RUN, to_json({**self.run, **facts}))

    def _write_line(self, name: str, record: AnswerRecord | CounterChange) -> None:
        line = json.dumps(to_builtins(record), ensure_ascii=False, allow_nan=False)
        LineFile(self.folder / name, HINT).append(line)


def _keep_last(path: Path, kind: type[AnswerRecord] | type[CounterChange], keys: int) -> None:
    """Leave one line per key in a file of so many keys."""
    file = LineFile(path, HINT)
    lines = file.lines()
    if len(lines) > keys:
        last = {decode(kind, line).key: number for number, line in enumerate(lines)}
        file.replace(lines[number] for number in sorted(last.values()))


def _read(path: Path, kind: type[T]) -> Iterable[T]:
    lines = LineFile(path).records(
        partial(decode, kind), "a line of skit ab", "remove it and use --resume"
    )
    return (record for _, record in lines)


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """A run, and the reason for which it ended early."""

    study: AbStudy
    problem: SkitError | None = None


def conclude(store: AnswerStore, summary: AbSummary, problem: SkitError | None = None) -> AbOutcome:
    """Write summary and report of a run; from then on other processes may write to it again."""
    store.drop_replaced()
    study = Study(AB, store.folder, AbDescription.read(store.run), summary)
    study.save()
    unlock(store.folder)
    return AbOutcome(study, problem)
