"""Rank-wise acceptance of a pair: how often the target's token is the draft model's likeliest,
second likeliest, ...
"""

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from msgspec import Struct, structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode
from specbench_kit.core.user_data import user_folder
from specbench_kit.predictors.library import BUNDLED, PairHashes

SCHEMA = 1
RANKS = 32
"""Number of ranks that are counted separately."""
DIGITS = 6
"""Decimal places of stored shares."""
ROUNDING = 10**-DIGITS
"""More than any rounding adds to a share."""
MEASURE_AGAIN = "run skit measure-ranks with the same --target and --draft"


class RankTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The shares of the target's tokens by their rank in the draft model's distribution.

    `shares[b]` of the tokens were the draft model's (b+1)-th likeliest ones. `by_depth[d]` are the shares of the tokens
    that follow d tokens of rank 1; a tree that multiplies shares assumes that these are equal. `count` tokens were
    counted, drawn from the target at `temperature`. `run` is the provenance in the form of `run.json`.
    """

    pair: PairHashes
    temperature: float
    shares: tuple[float, ...]
    by_depth: tuple[tuple[float, ...], ...]
    count: int
    run: dict[str, object] = {}
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        rows = (self.shares, *self.by_depth)
        in_bounds = all(isfinite(share) and 0 <= share <= 1 for row in rows for share in row)
        # Every share is rounded when it is stored, so that their sum may exceed 1 slightly.
        if not self.shares or not in_bounds or sum(self.shares) > 1 + RANKS * ROUNDING:
            raise ValueError("its shares are not probabilities of ranks")
        if self.schema != SCHEMA:
            raise ValueError("it has another schema")


def count_ranks(
    requests: Sequence[Sequence[int]], depths: int
) -> tuple[list[float], list[list[float]]]:
    """Return the shares of ranks of all tokens, and of those after 0, 1, ... tokens of rank 0 in a
    row.

    `requests` holds, for each request, the rank of each of its tokens, 0 for the likeliest; `depths` limits the rows.
    """
    counts = [[0] * RANKS for _ in range(depths)]
    overall = [0] * RANKS
    totals = [0] * depths
    for ranks in requests:
        for start in range(len(ranks)):
            # Every token may begin a path; the path ends with the first token of another rank than
            # 0.
            for depth, rank in enumerate(ranks[start : start + depths]):
                totals[depth] += 1
                if rank < RANKS:
                    counts[depth][rank] += 1
                if rank:
                    break
        for rank in ranks:
            if rank < RANKS:
                overall[rank] += 1
    by_depth = [_shares(row, total) for row, total in zip(counts, totals, strict=True) if total]
    return _shares(overall, sum(map(len, requests))), by_depth


def _shares(counts: Sequence[int], total: int) -> list[float]:
    return [count / total for count in counts]


def save(table: RankTable, folder: Path | None = None) -> Path:
    """Write a table to a folder, by default that of the user's tables, and return its path."""
    folder = folder or data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.pair.short}-t{table.temperature:g}.json"
    fields = structs.asdict(table)
    document = {"schema": fields.pop("schema"), **fields}
    path.write_text(json.dumps(document, indent=1, default=to_builtins) + "\n", encoding="utf-8")
    return path


def find(pair: PairHashes, temperature: float) -> RankTable | None:
    """Return the table of a pair at a temperature, the user's own before the bundled one; None if
    there is none.
    """
    name = f"{pair.short}-t{temperature:g}.json"
    paths = [path for folder in (data_folder(), BUNDLED) if (path := folder / name).is_file()]
    return load(paths[0]) if paths else None


def load(path: Path) -> RankTable:
    """Return the table of a file that `save` wrote; raise SkitError if it is missing or damaged."""
    try:
        return decode(RankTable, path.read_bytes())
    except OSError as error:
        raise SkitError(
            f"ranks {path}: cannot be read ({error.strerror}); {MEASURE_AGAIN}"
        ) from error
    except ValueError as error:
        raise SkitError(
            f"ranks {path}: not a table of this kit ({error}); {MEASURE_AGAIN}"
        ) from error


def data_folder() -> Path:
    """Return the folder of the user's tables."""
    return user_folder("ranks")
