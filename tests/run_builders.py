"""Run directories on disk, of any size, for the tests of comparisons and their reports."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from msgspec.structs import fields, replace
from report_builders import autoregressive_like, make_run, run_document, simulate_chain

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.runs.directory import RunDirectory

DRAFTS = {
    "fixed-k:k=3": (3, 0.7),
    "fixed-k:k=6": (6, 0.7),
    "threshold": (4, 0.75),
    "wisp": (4, 0.8),
}
"""Draft length and acceptance of the methods that are made up."""
SECONDS = [
    field.name
    for field in fields(RoundRecord)
    if field.name.endswith("_s") and field.name != "commits_s"
]


def write_run(
    out: Path,
    method: str,
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] = (),
    **changes: object,
) -> Path:
    """A finished run with these records; `changes` are made to its run.json."""
    run = make_run(method=method, requests=len(records), **changes)
    path = RunDirectory.create(out, run).path
    for name, side in (("requests", records), ("baseline", baseline)):
        if side or name == "requests":
            (path / f"{name}.jsonl").write_text(
                "".join(record.to_json() + "\n" for record in side), encoding="utf-8"
            )
    summary = {
        "method": method,
        "partial": False,
        "requests": {"planned": len(records), "finished": len(records), "failed": 0},
        **summarise_run(
            RequestGroup(records),
            RequestGroup(baseline) if baseline else None,
            run_document(run).deployment,
        ),
        "lossless": _lossless(len(records)) if baseline else None,
    }
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def _lossless(compared: int) -> JsonObject:
    counts = {"lossless": True, "compared": compared, "identical": compared, "ties": 0, "errors": 0}
    return counts | {"prompt_differs": 0, "not_compared": 0, "tie_margin": 1e-4, "divergences": []}


def answers(requests: int, tokens: int) -> dict[str, list[int]]:
    """Outputs that every method gives alike."""
    return {f"q{i}": [10 + (i * 31 + t) % 90 for t in range(tokens)] for i in range(requests)}


def records_of(
    draft: int,
    alpha: float,
    requests: int,
    tokens: int,
    seed: int = 0,
    repeat: int = 0,
    slower: float = 1.0,
) -> list[RequestRecord]:
    """Requests with one output whatever the method, cut to `tokens`; `slower` multiplies every time."""
    outputs = answers(requests, tokens)
    return [
        _cut(record, outputs[record.request_id], repeat, slower)
        for record in simulate_chain(requests, tokens, draft, alpha, seed=seed + 1000 * repeat)
    ]


def _cut(record: RequestRecord, output: list[int], repeat: int, slower: float) -> RequestRecord:
    rounds: list[RoundRecord] = []
    for step in record.rounds:
        tokens_left = len(output) - sum(done.committed for done in rounds)
        if tokens_left:
            times = {name: getattr(step, name) * slower for name in SECONDS}
            rounds.append(replace(step, committed=min(step.committed, tokens_left), **times))
    return _timed(replace(record, output_ids=output, rounds=rounds, repeat=repeat))


def _timed(record: RequestRecord) -> RequestRecord:
    first_s, last_s = record.rounds[0].end_s, record.rounds[-1].end_s
    tpot_s = (last_s - first_s) / max(1, len(record.output_ids) - 1)
    return replace(record, ttft_s=first_s, e2e_s=last_s, tpot_s=tpot_s)


def plain(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return the same outputs decoded one token per round."""
    return [
        replace(answer, output_ids=record.output_ids, repeat=record.repeat)
        for answer, record in zip(autoregressive_like(list(records)), records, strict=True)
    ]


def in_turn(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests that were asked one after the other."""
    finished = list(records)
    ends_s = accumulate(record.e2e_s or 0.0 for record in finished)
    return [
        replace(record, finished_s=end_s) for record, end_s in zip(finished, ends_s, strict=True)
    ]


def write_methods(
    out: Path,
    requests: int = 12,
    tokens: int = 24,
    repeats: int = 1,
    drafts: Mapping[str, tuple[int, float]] = DRAFTS,
    **changes: object,
) -> list[Path]:
    """One run per method, all with the same baseline."""
    paths = []
    for number, (method, (draft, alpha)) in enumerate(drafts.items()):
        sides = [
            records_of(draft, alpha, requests, tokens, 7 * number, repeat)
            for repeat in range(repeats)
        ]
        records = in_turn(record for side in sides for record in side)
        paths.append(write_run(out, method, records, in_turn(plain(records)), **changes))
    return paths
