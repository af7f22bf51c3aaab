"""Rank-wise acceptance of a pair: how often the target's token is the draft model's likeliest, second likeliest, ..."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.user_data import user_folder
from specbench_kit.predictors.library import BUNDLED, PairHashes

SCHEMA = 1
RANKS = 32
"""Ranks that are counted apart."""
AGAIN = "run skit measure-ranks with the same --target and --draft"


@dataclass(frozen=True)
class RankTable:
    """`shares[b]` of the target's tokens were the draft model's (b+1)-th likeliest ones.

    `by_depth[d]` are the shares of those that follow d tokens of rank 1: a tree that multiplies shares assumes that
    they are alike. `count` tokens were looked at, drawn from the target at `temperature`.
    """

    pair: PairHashes
    temperature: float
    shares: tuple[float, ...]
    by_depth: tuple[tuple[float, ...], ...]
    count: int
    run: Mapping[str, Any] = field(default_factory=dict)
    """Provenance in the form of `run.json`."""

    def __post_init__(self) -> None:
        rows = (self.shares, *self.by_depth)
        fine = all(isfinite(share) and 0 <= share <= 1 for row in rows for share in row)
        if not self.shares or not fine or sum(self.shares) > 1 + 1e-6:
            raise ValueError("its shares are not chances of ranks")


def count_ranks(requests: Sequence[Sequence[int]], depths: int) -> tuple[list[float], list[list[float]]]:
    """Shares of ranks: of all tokens, and of those after 0, 1, ... tokens of rank 0 in a row, from requests' ranks."""
    counts = [[0] * RANKS for _ in range(depths)]
    everything, totals = [0] * RANKS, [0] * depths
    for ranks in requests:
        for start in range(len(ranks)):
            for depth, rank in enumerate(ranks[start : start + depths]):
                totals[depth] += 1
                if rank < RANKS:
                    counts[depth][rank] += 1
                if rank:
                    break
        for rank in ranks:
            if rank < RANKS:
                everything[rank] += 1
    total = sum(map(len, requests))
    by_depth = [[n / whole for n in row] for row, whole in zip(counts, totals, strict=True) if whole]
    return [n / total for n in everything], by_depth


def save(table: RankTable, folder: Path | None = None) -> Path:
    """Keep a table among the user's own, or in a folder."""
    folder = folder or data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.pair.short}-t{table.temperature:g}.json"
    path.write_text(json.dumps({"schema": SCHEMA, **asdict(table)}, indent=1) + "\n")
    return path


def find(pair: PairHashes, temperature: float) -> RankTable | None:
    """The table for a pair and a temperature, the user's own before the bundled one."""
    name = f"{pair.short}-t{temperature:g}.json"
    found = [path for folder in (data_folder(), BUNDLED) if (path := folder / name).is_file()]
    return load(found[0]) if found else None


def load(path: Path) -> RankTable:
    """A table that `save` wrote."""
    try:
        read = json.loads(path.read_text())
        if read.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        read["pair"] = PairHashes(**read["pair"])
        read["shares"], read["by_depth"] = tuple(read["shares"]), tuple(map(tuple, read["by_depth"]))
        return RankTable(**read)
    except OSError as error:
        raise SkitError(f"ranks {path}: cannot be read ({error.strerror}); {AGAIN}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SkitError(f"ranks {path}: not a table of this kit ({error}); {AGAIN}") from error


def data_folder() -> Path:
    """The user's tables."""
    return user_folder("ranks")
