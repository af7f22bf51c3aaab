"""Tabulate how often a trace's drafts are right, by task and by position in the draft.

    python scripts/trace_acceptance.py qwen2.5-coder --out results/reference/pair/acceptance.md

Counted at every place of every answer: how often the i-th drafted token is right where all before it were.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbench_kit.reports.render_markdown import table
from specbench_kit.traces.chain_replay import correct_tokens
from specbench_kit.traces.trace import RequestTrace, TraceFile

POSITIONS = (1, 2, 3, 4, 6, 8, 12)
ALL = "all"


def accepted(request: RequestTrace) -> NDArray[np.int64]:
    """Return how many drafted tokens are right at every place, one behind the other."""
    lengths: NDArray[np.int64] = correct_tokens(request).cumprod(axis=1).sum(axis=1)
    return lengths


def lines(requests: Iterable[RequestTrace]) -> list[list[str]]:
    """Return a line for every task and one for all, with the number of places and the rates by position."""
    by_task: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    for request in requests:
        by_task[request.category].append(accepted(request))
    joined = {task: np.concatenate(lengths) for task, lengths in sorted(by_task.items())}
    joined[ALL] = np.concatenate(list(joined.values()))
    return [
        [
            task,
            str(len(by_task[task]) or sum(map(len, by_task.values()))),
            str(len(lengths)),
            *rates(lengths),
        ]
        for task, lengths in joined.items()
    ]


def rates(lengths: NDArray[np.int64]) -> Sequence[str]:
    """Return the mean number of right tokens, and the rates at some positions."""
    shown = [f"{lengths.mean():.2f}"]
    for position in POSITIONS:
        reached = (lengths >= position - 1).sum()
        shown.append(f"{(lengths >= position).sum() / reached:.2f}" if reached else "–")
    return shown


def main() -> None:
    """Read the command line and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    trace = TraceFile(options.trace)
    columns = ["task", "answers", "places", f"right tokens of {trace.header.max_draft}"]
    columns += [f"token {position}" for position in POSITIONS]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(table(columns, lines(trace)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
