"""SpecDecode-Bench's simulator: how many tokens a round would commit that begins at any position of an answer."""

from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, shown
from specbench_kit.datasets.rows import read_rows
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats

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
        accepted = [_accepted_lengths(line, row, name) for line, row in rows]
        max_draft = max(1, *(length for lengths in accepted for length in lengths))
        requests = []
        for (line, row), lengths in zip(rows, accepted, strict=True):
            request_id = str(row.get("id", line))
            output_ids = row["generated_token_ids"][: len(lengths)]
            sides = row["prompt_token_ids"], output_ids
            requests.append(trace_of_lengths(request_id, path.stem, *sides, lengths, max_draft))
        return ForeignTrace(requests, max_draft, draft=name)


def _drafter(path: Path, row: JsonObject, draft: str | None) -> str:
    names = [key.removeprefix(PREFIX) for key in row if key.startswith(PREFIX)]
    if draft in names or (draft is None and len(names) == 1):
        return draft or names[0]
    content = f"it holds {', '.join(names)}" if names else "it holds none"
    raise SkitError(f"{path}: name one of its drafters with --draft: {content}")


def _accepted_lengths(line: str, row: JsonObject, name: str) -> list[int]:
    """Return the number of accepted tokens at each offset."""
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
        raise SkitError(f"{line}: not a request of SpecDecode-Bench ({reason})") from error


def _require_counts(name: str, values: object, least: int) -> None:
    if not (isinstance(values, list) and values and all(type(v) is int and least <= v < 2**31 for v in values)):
        raise ValueError(f"{name} must be a list of whole numbers from {least} up, not {shown(values)}")
