"""SpecDecode-Bench's simulator: how many tokens a round would commit that begins at any place of an answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import shown
from specbench_kit.datasets.rows import read_rows
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats

if TYPE_CHECKING:
    from specbench_kit.traces.trace import RequestTrace

Fields = Mapping[str, Any]

PREFIX = "acc_"
LENGTHS = "acc_len"


@formats.register("specdecode-bench")
class SpecDecodeBench(Format):
    """Liu et al. 2025 (arXiv 2601.11580), the `data` of their simulator.

    A drafter's `acc_len` counts, at every offset, the accepted tokens and one more.
    """

    summary = "accepted lengths at every offset, JSONL with one request per line, for traces"
    tool = "SpecDecode-Bench"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        rows = list(read_rows(path))
        if not rows:
            raise SkitError(f"{path} holds no request: give a file of SpecDecode-Bench's simulator")
        name = _drafter(path, rows[0][1], draft)
        found = [(place, row, _lengths(place, row, name)) for place, row in rows]
        max_draft = max(1, *(length for _, _, lengths in found for length in lengths))
        requests = [_request(place, row, lengths, max_draft, path.stem) for place, row, lengths in found]
        return ForeignTrace(requests, max_draft, draft=name)


def _drafter(path: Path, row: Fields, wanted: str | None) -> str:
    names = [key.removeprefix(PREFIX) for key in row if key.startswith(PREFIX)]
    if wanted in names or (wanted is None and len(names) == 1):
        return wanted or names[0]
    known = f"it holds {', '.join(names)}" if names else "it holds none"
    raise SkitError(f"{path}: name one of its drafters with --draft: {known}")


def _lengths(place: str, row: Fields, name: str) -> list[int]:
    """Of accepted tokens at each offset."""
    try:
        lengths = row[PREFIX + name]
        lengths = lengths[LENGTHS] if isinstance(lengths, dict) else lengths
        _require_counts(LENGTHS, lengths, 1)
        for key, least in (("prompt_token_ids", 1), ("generated_token_ids", len(lengths))):
            _require_counts(key, row[key], 0)
            if len(row[key]) < least:
                raise ValueError(f"{key} has {len(row[key])} tokens, fewer than {least}")
        return [length - 1 for length in lengths]
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SkitError(f"{place}: not a request of SpecDecode-Bench ({reason})") from error


def _require_counts(name: str, values: Any, least: int) -> None:
    whole = isinstance(values, list) and values and all(type(one) is int and least <= one < 2**31 for one in values)
    if not whole:
        raise ValueError(f"{name} must be a list of whole numbers from {least} up, not {shown(values)}")


def _request(place: str, row: Fields, lengths: Sequence[int], max_draft: int, category: str) -> "RequestTrace":
    from specbench_kit.traces.outcome_traces import of_lengths

    said = row["generated_token_ids"][: len(lengths)]
    return of_lengths(str(row.get("id", place)), category, row["prompt_token_ids"], said, lengths, max_draft)
