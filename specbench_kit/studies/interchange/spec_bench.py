"""Spec-Bench's answer files: per question its turns, tokens, steps, wall time and accept lengths."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import shown
from specbench_kit.datasets.rows import read_rows
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.interchange.base import UNKNOWN, ForeignRun, Format, formats
from specbench_kit.studies.interchange.dialogues import dialogues

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

Fields = Mapping[str, Any]

LATEST = 2**33
"""Seconds since 1970 from which on a time stamp is none."""
FAILED = "ERROR"
"""What Spec-Bench writes for the answer of a turn that raised."""


@formats.register("spec-bench")
class SpecBenchAnswers(Format):
    """Spec-Bench (Xia et al. 2024), `evaluation/eval.py`.

    A round is one entry of `accept_lengths`: its accepted tokens and one more. The prompt's forward counts as the first
    round where an engine takes a token from it that no entry counts.
    """

    summary = "answer files of Spec-Bench, JSONL with one question per line"
    tool = "Spec-Bench"
    dataset = "spec-bench"

    def read(self, path: Path) -> ForeignRun:
        rows = list(read_rows(path))
        if not rows:
            raise SkitError(f"{path} holds no answer: give an answer file of Spec-Bench")
        names = dict.fromkeys(str(row.get("model_id", "unnamed")) for _, row in rows)
        if len(names) > 1:
            raise SkitError(f"{path} holds answers of several models: {', '.join(names)}; import one file for each")
        records = [record for place, row in rows for record in _records(place, row)]
        if not records:
            raise SkitError(f"{path} holds no answer: every question's choices are empty")
        _place_in_time(records)
        stamps = [
            stamp for _, row in rows if isinstance(stamp := row.get("tstamp"), int | float) and 0 < stamp < LATEST
        ]
        started_at = datetime.fromtimestamp(min(stamps), UTC).isoformat(timespec="seconds") if stamps else None
        return ForeignRun(next(iter(names)), records, started_at, {"batch_size": 1}, _notes(records))

    def write(self, run: "RunDirectory") -> str:
        records = run.records()
        repeats = sorted({record.repeat for record in records})
        by_repeat = [dialogues([one for one in records if one.repeat == repeat]) for repeat in repeats]
        names = dict.fromkeys(name for found in by_repeat for name in found)
        rows = (_row(name, [found.get(name, []) for found in by_repeat], run) for name in names)
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _records(place: str, row: Fields) -> Iterator[RequestRecord]:
    """One per turn of every choice; a choice is a repeat."""
    try:
        for choice in row["choices"]:
            turns = choice["turns"]
            if not isinstance(turns, list):
                raise ValueError(f"turns must be a list, not {shown(turns)}")
            for turn, text in enumerate(turns):
                name = str(row["question_id"])
                identity = name if len(turns) == 1 else f"{name}/{turn + 1}"
                yield _record(identity, str(row.get("category", SpecBenchAnswers.dataset)), text, choice, turn)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SkitError(f"{place}: not an answer of Spec-Bench ({reason})") from error


def _record(identity: str, category: str, text: str, choice: Fields, turn: int) -> RequestRecord:
    tokens, wall_s = int(choice["new_tokens"][turn]), float(choice["wall_time"][turn])
    if not 0 <= wall_s < inf:
        raise ValueError(f"wall_time must be seconds, not {wall_s}")
    return RequestRecord.from_document(
        {
            "request_id": identity,
            "category": category,
            "prompt_ids": [],
            "output_ids": [None] * tokens,
            "text": text,
            "finish_reason": "error" if text == FAILED else "length",
            "error": "Spec-Bench records an error" if text == FAILED else None,
            "e2e_s": wall_s,
            "repeat": int(choice["index"]),
            "rounds": _rounds(_accept_lengths(choice)[turn], tokens),
        }
    )


def _accept_lengths(choice: Fields) -> list[list[int]]:
    """Those of each turn, which the file holds one after the other.

    A turn ends where its steps do, which some engines count from 0, or else where its tokens do.
    """
    lengths, turns = [int(length) for length in choice["accept_lengths"]], len(choice["turns"])
    steps = [int(count) for count in choice.get("decoding_steps", choice.get("idxs", ()))]
    for counts in (steps, [count + 1 for count in steps]):
        if len(counts) == turns and sum(counts) == len(lengths):
            return _cut(lengths, counts)
    return _cut_by_tokens(lengths, [int(count) for count in choice["new_tokens"]])


def _cut(lengths: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    ends = list(accumulate(counts))
    return [list(lengths[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _cut_by_tokens(lengths: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in tokens]
    turn = 0
    for length in lengths:
        while turn < len(tokens) - 1 and sum(found[turn]) >= tokens[turn]:
            turn += 1
        found[turn].append(length)
    return found


def _rounds(lengths: Sequence[int], tokens: int) -> list[dict[str, Any]]:
    """Rounds that commit `tokens`: what the end cuts off, the last of them lack."""
    first = max(0, tokens - sum(lengths))
    rounds = [{**UNKNOWN, "accepted": 0, "committed": first}] if first else []
    left = tokens - first
    for length in lengths:
        rounds.append({**UNKNOWN, "accepted": max(0, length - 1), "committed": min(length, left)})
        left -= min(length, left)
    return rounds


def _place_in_time(records: Sequence[RequestRecord]) -> None:
    """One request after the other: Spec-Bench decodes no two at once."""
    for record, end_s in zip(records, accumulate(record.e2e_s or 0.0 for record in records), strict=True):
        record.finished_s = end_s


def _notes(records: Sequence[RequestRecord]) -> list[str]:
    """Where the two counts of tokens that a file holds do not agree."""
    more = sum(bool(one.rounds) and one.rounds[0].committed > one.rounds[0].accepted + 1 for one in records)
    return [f"more new_tokens than accept_lengths in {more} of {len(records)} requests"] if more else []


def _row(name: str, repeats: Sequence[Sequence[RequestRecord]], run: "RunDirectory") -> dict[str, Any]:
    first = next(turns[0] for turns in repeats if turns)
    started_at = run.run.get("started_at")
    return {
        "question_id": int(name) if name.isdigit() else name,
        "category": first.category,
        "answer_id": f"{run.path.resolve().name}/{name}",
        "model_id": run.run["method"],
        "choices": [_choice(index, turns) for index, turns in enumerate(repeats) if turns],
        "tstamp": datetime.fromisoformat(started_at).timestamp() if started_at else None,
    }


def _choice(index: int, turns: Sequence[RequestRecord]) -> dict[str, Any]:
    return {
        "index": index,
        "turns": [FAILED if one.finish_reason == "error" else one.text for one in turns],
        "decoding_steps": [len(one.rounds) for one in turns],
        "new_tokens": [len(one.output_ids) for one in turns],
        "wall_time": [one.e2e_s or 0.0 for one in turns],
        "accept_lengths": [one.accepted + 1 for record in turns for one in record.rounds],
    }
