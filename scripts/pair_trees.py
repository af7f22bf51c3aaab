"""Add the candidates of trees to the first requests of a recorded trace, whose answers are cut to some tokens.

    python scripts/pair_trees.py --trace qwen2.5-coder --requests 45 --tokens 48 --out build/pair/trees.parquet

The answers and chains are the trace's own; only the draft model runs, with the executor that recorded it. An
interrupted call goes on where it was; one that `--minutes` ends early writes the requests that it has.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from msgspec import structs

from specbench_kit.deployments.loading import load
from specbench_kit.models.pair import load_pair
from specbench_kit.studies.recording.trace import TreeMethods
from specbench_kit.traces.trace import RequestTrace, TraceFile
from specbench_kit.traces.tree_recording import PROVISIONAL, TREE_TOKENS, TreeRecorder
from specbench_kit.traces.writing import TraceWriter, UnfinishedTrace

DEPLOYMENTS = ("specedge", "wan", "wisp-roofline")
TREES = (
    *("opt-tree", "eagle2-tree", "specinfer", "sequoia", "server-tree:depth=16"),
    *(f"specedge:depth={depth}" for depth in (1, 2, 3, 5, 7)),
)
"""The bundled tree methods with the depths that they take on these deployments, and the depth of the first round."""


def _cut(trace: RequestTrace, tokens: int) -> RequestTrace:
    """Return a request whose answer ends after so many tokens; what follows them is the target's text behind it."""
    output = trace.output_ids[:tokens]
    behind = [*trace.output_ids[tokens:], *trace.continuation][:TREE_TOKENS]
    return replace(
        trace,
        output_ids=output,
        continuation=behind,
        finish_reason="length" if len(output) < len(trace.output_ids) else trace.finish_reason,
        drafted=trace.drafted[:tokens],
        statistics=trace.statistics[:tokens],
    )


def _prompts(requests: Sequence[RequestTrace]) -> int:
    """Return how many prompts the requests answer: the turns of a dialogue, which follow each other, are one."""
    ids = [request.request_id for request in requests]
    turns = [id.rpartition("/") for id in ids]
    later = [
        turn[0] == before[0]
        and turn[2].isdecimal()
        and before[2].isdecimal()
        and int(turn[2]) == int(before[2]) + 1
        for before, turn in pairwise(turns)
    ]
    return len(ids) - sum(later)


def main() -> None:
    """Read the command line and write the trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--trace", type=Path, required=True, help="a trace of chains, or the name of a bundled one"
    )
    parser.add_argument(
        "--requests", type=int, required=True, help="how many of its requests, from the first on"
    )
    parser.add_argument("--tokens", type=int, required=True, help="tokens of every answer")
    parser.add_argument("--executor", default="native", help="the executor that recorded the trace")
    parser.add_argument(
        "--minutes", type=float, default=None, help="begin no further request after so long"
    )
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    arguments = parser.parse_args()
    file = TraceFile(arguments.trace)
    requests = [_cut(trace, arguments.tokens) for trace in islice(file, arguments.requests)]
    config = {**file.header.run["config"], "max_new_tokens": arguments.tokens}
    prompts = _prompts(requests)
    dataset = {**file.header.run["dataset"], "count": prompts, "chat": prompts}
    run = {**file.header.run, "config": config, "dataset": dataset}
    header = structs.replace(file.header, trees=TREES, run=run)
    unfinished = UnfinishedTrace(arguments.out, [trace.request_id for trace in requests])
    unfinished.begin(resume=True)
    recorded = {trace.request_id for trace in unfinished.traces()}
    pair = load_pair(str(header.run["models"]["target"]["name"]), executor=arguments.executor)
    longest = max(len(trace.prompt_ids) for trace in requests) + arguments.tokens + TREE_TOKENS
    draft = pair.needed_draft.runner(1, longest + PROVISIONAL, pair.vocabulary)
    draft.masked = pair.masked
    methods = TreeMethods(TREES, [load(name) for name in DEPLOYMENTS]).prepared(header)
    recorder = TreeRecorder(draft, methods, header, requests[0].prompt_ids)
    started = time.monotonic()
    with unfinished.one_writer():
        for trace in requests:
            if (
                arguments.minutes is not None
                and time.monotonic() - started > 60 * arguments.minutes
            ):
                break
            if trace.request_id in recorded:
                continue
            began, candidates = time.monotonic(), recorder.columns(trace)
            unfinished.append(header, replace(trace, candidates=candidates))
            seconds = time.monotonic() - began
            print(
                f"{trace.request_id}: {len(candidates.counts)} nodes, {seconds:.0f} s", flush=True
            )
    with TraceWriter(arguments.out, header) as writer:
        for trace in unfinished.traces():
            writer.append(trace)
    if len(TraceFile(arguments.out)) == len(requests):
        unfinished.remove()


if __name__ == "__main__":
    main()
