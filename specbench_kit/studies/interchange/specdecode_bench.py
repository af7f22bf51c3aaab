"""SpecDecode-Bench's simulator: how many tokens a round would commit that begins at any position of
an answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import shown
from specbench_kit.datasets.base import Row
from specbench_kit.datasets.rows import read_rows
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats


class RecordedRequest(NamedTuple):
    """One request: its tokens, and the accepted tokens at each offset of its answer.

    `beyond` counts accepted lengths behind the end of the answer, and `unrecorded` tokens behind the last length.
    """

    request_id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    accepted: Sequence[int]
    beyond: int
    unrecorded: int


PREFIX = "acc_"
LENGTHS = "acc_len"


@formats.register("specdecode-bench")
class SpecDecodeBench(Format):
    """The `data` of the simulator of Liu et al. 2025 (arXiv 2601.11580).

    A drafter's `acc_len` counts, at every offset, the accepted tokens and the bonus token.
    """

    summary = "accepted lengths at every offset, JSONL with one request per line, for traces"
    tool = "SpecDecode-Bench"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        from specbench_kit.traces.outcome_traces import trace_of_lengths

        rows = list(read_rows(path))
        if not rows:
            raise SkitError(f"{path} holds no request: give a file of SpecDecode-Bench's simulator")
        name = _drafter(path, rows[0][1], draft)
        recorded = [_recorded_request(line, row, name) for line, row in rows]
        max_draft = max(1, *(length for request in recorded for length in request.accepted))
        requests = [
            trace_of_lengths(
                request.request_id,
                path.stem,
                request.prompt_ids,
                request.output_ids,
                request.accepted,
                max_draft,
            )
            for request in recorded
        ]
        return ForeignTrace(requests, max_draft, draft=name, notes=_notes(recorded))


def _drafter(path: Path, row: Row, draft: str | None) -> str:
    names = [key.removeprefix(PREFIX) for key in row if key.startswith(PREFIX)]
    if draft in names or (draft is None and len(names) == 1):
        return draft or names[0]
    content = f"it holds {', '.join(names)}" if names else "it holds none"
    raise SkitError(f"{path}: name one of its drafters with --draft: {content}")


def _recorded_request(line: str, row: Row, name: str) -> RecordedRequest:
    """Return a request up to the first end of its answer and of its accepted lengths.

    The published files of EAGLE have lengths beyond the end of the answer, where nothing is
    verified any more.
    """
    try:
        lengths = row[PREFIX + name]
        lengths = lengths[LENGTHS] if isinstance(lengths, dict) else lengths
        _require_counts(LENGTHS, lengths, 1)
        for key in ("prompt_token_ids", "generated_token_ids"):
            _require_counts(key, row[key], 0)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SkitError(f"{line}: not a request of SpecDecode-Bench ({reason})") from error
    answer = row["generated_token_ids"]
    offsets = min(len(lengths), len(answer))
    return RecordedRequest(
        str(row.get("id", line)),
        row["prompt_token_ids"],
        answer[:offsets],
        [length - 1 for length in lengths[:offsets]],
        max(0, len(lengths) - len(answer)),
        max(0, len(answer) - len(lengths)),
    )


def _notes(requests: Sequence[RecordedRequest]) -> list[str]:
    """Return how many positions were cut off, and of how many requests."""
    lines = {
        "have accepted lengths beyond the end of their answer, which are cut off": [
            r.beyond for r in requests
        ],
        "have an answer beyond their last accepted length, which is cut off": [
            r.unrecorded for r in requests
        ],
    }
    return [
        f"{sum(map(bool, cut))} of {len(requests)} requests {words}: {sum(cut)} positions"
        for words, cut in lines.items()
        if any(cut)
    ]


def _require_counts(name: str, values: object, least: int) -> None:
    if not (
        isinstance(values, list)
        and values
        and all(type(v) is int and least <= v < 2**31 for v in values)
    ):
        raise ValueError(
            f"{name} must be a list of whole numbers from {least} up, not {shown(values)}"
        )
