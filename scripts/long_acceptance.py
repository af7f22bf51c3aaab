"""Tabulate how often a trace's drafts are right along long answers: by how far they have got, and by their parts.

    python scripts/long_acceptance.py qwen2.5-coder-long --target qwen2.5-coder --out results/reference/pair/long.md

Counted at every place of every answer: how often the i-th drafted token is right where all before it were. The thinking
part of an answer ends with </think>, or with the answer where it is never closed; a loop is what an answer repeats at
its end without a change.
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
LEAST_REPEATED = 64
LONGEST_PERIOD = 128
"""Tokens at the end of an answer that a loop repeats at least, and the longest part that is repeated."""


def loop_start(tokens: Sequence[int]) -> int:
    """Return the place from which an answer repeats itself to its end; its length if it does not."""
    ids = np.asarray(tokens)
    for period in range(1, min(LONGEST_PERIOD, len(ids) // 2) + 1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        start = int(differs[-1]) + 1 + period if len(differs) else period
        if len(ids) - start >= max(LEAST_REPEATED, 2 * period):
            return start
    return len(ids)


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
        low, high = (low, middle) if CLOSING in tokenizer.decode(list(tokens[:middle])) else (middle + 1, high)
    return low


def parts(request: RequestTrace, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the places of an answer by stretch, by part, and those of a loop, each with its right tokens."""
    lengths = accepted(request)
    loop = loop_start(request.output_ids)
    own = lengths[:loop]
    for start, end in itertools.pairwise(STRETCHES):
        if len(own) > start:
            yield f"tokens {start + 1:,} to {end:,}", own[start:end]
    end = thinking_end(request.output_ids, tokenizer)
    yield "thinking", own[:end]
    yield "answer", own[end:]
    yield "all but loops", own
    yield "loops", lengths[loop:]


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
            rows.append([name, str(sum(map(bool, map(len, found[name])))), f"{len(lengths):,}", *rates(lengths)])
    return rows


def main() -> None:
    """Read the command line and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--target", required=True, help="model whose tokenizer reads the answers")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    trace = TraceFile(options.trace)
    tokenizer = from_pretrained(AutoTokenizer, locate_tokenizer(options.target))
    columns = ["part of the answer", "answers", "places", f"right tokens of {trace.header.max_draft}"]
    columns += [f"token {position}" for position in POSITIONS]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(table(columns, lines(trace, tokenizer)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
