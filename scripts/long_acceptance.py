"""Tabulate how often a trace's drafts are right along long answers: by how far they have got, and by their parts.

    python scripts/long_acceptance.py qwen2.5-coder-long --target qwen2.5-coder --out results/reference/pair/long.md

Counted at every place of every answer: how often the i-th drafted token is right where all before it were. The thinking
part of an answer ends with </think>, or with the answer where it is never closed. What a greedy answer repeats at its
end, as those of small models do, is told apart: drafts are right there that would not be elsewhere.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from trace_acceptance import POSITIONS, accepted, rates
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench_kit.models.catalogue import from_pretrained, locate_tokenizer
from specbench_kit.reports.render_markdown import table
from specbench_kit.traces.trace import RequestTrace, TraceFile

STRETCHES = (0, 128, 256, 512, 1024, 2048)
"""Places of an answer between which acceptance is told."""
OPENING, CLOSING = "<think>", "</think>"
WINDOW = 128
FEW_TOKENS = 32
"""Different tokens that a window of an answer holds at most once it repeats itself; other text has twice as many."""


def repetition_start(tokens: Sequence[int]) -> int:
    """Return the place from which an answer only repeats itself, with or without small changes; its length if never."""
    starts = range(len(tokens) - WINDOW, -1, -1)
    first = len(tokens)
    for start in starts:
        if len(set(tokens[start : start + WINDOW])) > FEW_TOKENS:
            break
        first = start
    return first


def thinking_end(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the place at which the thinking part of an answer ends; 0 of an answer without one."""
    if OPENING not in tokenizer.decode(list(tokens)):
        return 0
    # The fewest tokens whose text has the mark.
    low, high = 0, len(tokens)
    if CLOSING not in tokenizer.decode(list(tokens)):
        return high
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if CLOSING in tokenizer.decode(list(tokens[:middle]))
            else (middle + 1, high)
        )
    return low


def parts(
    request: RequestTrace, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the places of an answer by stretch and by part, and its repetitions, each with its right tokens."""
    lengths = accepted(request)
    own_end = repetition_start(request.output_ids)
    own = lengths[:own_end]
    for start, end in itertools.pairwise(STRETCHES):
        if len(own) > start:
            yield f"tokens {start + 1:,} to {end:,}", own[start:end]
    end = thinking_end(request.output_ids, tokenizer)
    yield "thinking", own[:end]
    yield "answer", own[end:]
    yield "all but repetitions", own
    yield "repetitions", lengths[own_end:]


def lines(trace: TraceFile, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """Return a line for every part of answers: how many answers have it, its places and the rates by position."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for request in trace:
        for name, lengths in parts(request, tokenizer):
            found.setdefault(name, []).append(lengths)
    names = [name for name in found if name.startswith("tokens")]
    names += [name for name in found if name not in names]
    rows = []
    for name in names:
        lengths = np.concatenate(found[name])
        if len(lengths):
            rows.append(
                [
                    name,
                    str(sum(map(bool, map(len, found[name])))),
                    f"{len(lengths):,}",
                    *rates(lengths),
                ]
            )
    return rows


def main() -> None:
    """Read the command line and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--target", required=True, help="model whose tokenizer reads the answers")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    trace = TraceFile(options.trace)
    tokenizer = from_pretrained(AutoTokenizer, locate_tokenizer(options.target))
    columns = [
        "part of the answer",
        "answers",
        "places",
        f"right tokens of {trace.header.max_draft}",
    ]
    columns += [f"token {position}" for position in POSITIONS]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(table(columns, lines(trace, tokenizer)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
