"""Compare what other tools measured at two servers, in the terms of `skit ab`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import FileReading, described_readings
from specbench_kit.core.typed_json import Written
from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.figures import Targets
from specbench_kit.studies.ab.imports.base import (
    ImportedAnswer,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    reading_of,
    recognised,
    result_files,
)
from specbench_kit.studies.ab.settings import AbSettings
from specbench_kit.studies.ab.store import AbOutcome, AnswerStore, conclude

ONE_AFTER_THE_OTHER = (
    "NOT IN TURNS: these results were measured one server after the other. A machine that changed in between looks "
    "like a difference between the servers."
)
Pair = tuple[ImportedAnswer, ImportedAnswer]
Request = tuple[ImportedAnswer | None, ImportedAnswer | None]
"""The answers of both sides to one request, None where a side does not have it."""


def compare_files(settings: AbSettings) -> AbOutcome:
    """Read both sides, pair their requests, and write a run directory with a report."""
    sides = [[_read(path) for path in paths] for _, paths in settings.files]
    files = [file for side in sides for file in side]
    notes = [note for file in files for note in (file.kind.note, *file.results.notes) if note]
    loads, unpaired = _paired_loads(
        settings.names, [[load for file in side for load in file.results.loads] for side in sides]
    )
    records = [
        record
        for label, pairs in loads.items()
        for record in _records(settings.names, label, pairs)
    ]
    prompts = {record.key.request_id for record in records}
    described: list[Written] = []
    contents: list[set[str]] = []
    for (name, paths), side in zip(settings.files, sides, strict=True):
        tools = ", ".join(dict.fromkeys(file.kind.tool for file in side))
        hashes = [provenance.hash_file(path) for path in paths]
        contents.append(set(hashes))
        server: Written = {
            "name": name,
            "address": ", ".join(path.name for path in paths),
            "dialect": f"results of {tools}",
            "sha256": hashes,
        }
        described.append(server)
    run: RunFields = {
        "command": "ab",
        "time_kind": "measured",
        "dataset": {"name": "imported", "source": "imported", "count": len(prompts)},
        "servers": described,
        "order": "one server after the other, by another tool",
        "config": {"ttft_slo": settings.ttft_slo, "tpot_slo": settings.tpot_slo},
    }
    readings = described_readings([file.reading for file in files])
    store = AnswerStore.create(
        settings.out,
        settings.names,
        "imported",
        {**run, **readings, **provenance.collect(settings.argv)},
        {"servers": described},
    )
    for record in records:
        store.append(record)
    plan = Plan(
        settings.names,
        list(loads),
        planned=len(records),
        # Its turns overlap in time, so that no turn has a throughput of its own.
        open_loads=list(loads),
        targets=Targets(settings.ttft_slo, settings.tpot_slo),
    )
    cautions = [
        *_same_files(settings.names, *contents),
        *unpaired,
        ONE_AFTER_THE_OTHER,
        *dict.fromkeys(notes),
    ]
    return conclude(store, summarise(plan, records, cautions=cautions))


def _same_files(names: Sequence[str], first: set[str], second: set[str]) -> list[str]:
    """Return a line if a file of one side has the content of a file of the other."""
    if not first & second:
        return []
    return [
        f"SAME FILE: {names[0]} and {names[1]} were given one content, so that a result is compared with itself."
    ]


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A file, its format, and what it holds."""

    kind: ResultFile
    results: ImportedResults
    reading: FileReading


def _read(path: Path) -> _ReadFile:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SkitError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    kind = recognised(path, content)
    if kind is None:
        known = ", ".join(kind.tool for kind in result_files.all().values())
        raise SkitError(f"{path} is no result file with single requests of {known}")
    try:
        results = kind.read(path, content)
    except ValueError as error:
        raise SkitError(f"{path}: {error}") from error
    return _ReadFile(kind, results, reading_of(path, kind, results))


def _paired_loads(
    names: Sequence[str], sides: Sequence[Sequence[ImportedLoad]]
) -> tuple[dict[str, list[Pair]], list[str]]:
    """Return the pairs of every load that both sides have, and a line for whatever has no partner.

    Loads without a label are paired by their order.
    """
    named = []
    for side in sides:
        numbered = enumerate(side, 1)
        named.append(
            {load.label or f"load {number}": load for number, load in numbered if load.answers}
        )
    both = [label for label in named[0] if label in named[1]]
    listed = [
        f"{name} has {', '.join(side) or 'none'}" for name, side in zip(names, named, strict=True)
    ]
    require(bool(both), f"the results have no load in common: {'; '.join(listed)}")
    pairs = {}
    lines = []
    for label in both:
        found = _paired(named[0][label].answers, named[1][label].answers, label)
        lines += _unpaired(names, found, f" at {label}" if len(both) > 1 else "")
        # Without the others, a server's own figures are of the same requests as the ratios beside
        # them.
        pairs[label] = _pairs(found)
    for name, partner, own in zip(names, reversed(names), named, strict=True):
        if alone := [label for label in own if label not in both]:
            lines.append(
                f"UNPAIRED: {partner} has no load {', '.join(alone)}, and what {name} did there is left out."
            )
    return pairs, lines


def _pairs(requests: Sequence[Request]) -> list[Pair]:
    return [
        (first, second) for first, second in requests if first is not None and second is not None
    ]


def _unpaired(names: Sequence[str], requests: Sequence[Request], at_load: str) -> list[str]:
    """Return a line for every side some of whose requests have no partner."""
    lines = []
    paired = len(_pairs(requests))
    for name, partner, side in zip(
        names, reversed(names), zip(*requests, strict=True), strict=True
    ):
        own = [answer for answer in side if answer is not None]
        if len(own) == paired:
            continue
        line = (
            f"UNPAIRED: {len(own) - paired:,} of {len(own):,} requests of {name}{at_load} have no partner in {partner} "
            "and count for nothing."
        )
        if _most_at_once(own) > 1:
            line += f" The throughput of {name} is without their tokens, although they were in flight beside others."
        lines.append(f"{line} Give both runs the same prompts, and equally many.")
    return lines


def _paired(
    first: Sequence[ImportedAnswer], second: Sequence[ImportedAnswer], label: str
) -> list[Request]:
    """Return the requests of both sides by prompt: the same prompt for the n-th time is a pair."""
    kinds = min(len(answer.prompts) for answer in (*first, *second))
    for kind in range(kinds):
        one = _numbered([answer.prompts[kind] for answer in first])
        other = _numbered([answer.prompts[kind] for answer in second])
        by_prompt = dict(zip(other, second, strict=True))
        requests: list[Request] = [
            (answer, by_prompt.get(key)) for key, answer in zip(one, first, strict=True)
        ]
        if any(partner is not None for _, partner in requests):
            keys = set(one)
            requests += [(None, answer) for key, answer in by_prompt.items() if key not in keys]
            _require_same_prompts(requests, label)
            return requests
    raise SkitError(f"{label}: no prompt is in both results")


def _numbered(prompts: Sequence[str]) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    keys = []
    for prompt in prompts:
        keys.append((prompt, counts[prompt]))
        counts[prompt] += 1
    return keys


def _require_same_prompts(requests: Sequence[Request], label: str) -> None:
    for number, (one, other) in enumerate(requests):
        lengths = [
            side.answer.prompt_tokens
            for side in (one, other)
            if side is not None and side.answer is not None
        ]
        if len(set(lengths) - {None}) > 1:
            raise SkitError(
                f"{label}: request {number} has {lengths[0]} prompt tokens in one result and {lengths[1]} in the "
                "other: give both runs the same prompts, with the same seed"
            )


def _records(names: Sequence[str], label: str, pairs: Sequence[Pair]) -> list[AnswerRecord]:
    """Return the records of a load, whose turns are as many requests as were in flight at once."""
    sides = list(zip(*pairs, strict=True))
    at_once = max(map(_most_at_once, sides))
    begins = [min(answer.sent_s for answer in side) for side in sides]
    order = sorted(range(len(pairs)), key=lambda number: pairs[number][0].sent_s)
    turns = {number: place // at_once for place, number in enumerate(order)}
    records = []
    for number, pair in enumerate(pairs):
        for name, answer, begin_s in zip(names, pair, begins, strict=True):
            key = AnswerKey(label, name, f"request {number}", 0)
            records.append(
                AnswerRecord(
                    key, turns[number], answer.sent_s - begin_s, answer.answer, answer.error
                )
            )
    return records


def _most_at_once(answers: Sequence[ImportedAnswer]) -> int:
    """Return the largest number of requests that were in flight at the same time."""
    changes = [(answer.sent_s, 1) for answer in answers]
    changes += [
        (request.sent_s + request.answer.e2e_s, -1)
        for request in answers
        if request.answer is not None
    ]
    now = most = 0
    for _, step in sorted(changes):
        now += step
        most = max(most, now)
    return max(1, most)
