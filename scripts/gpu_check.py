"""Check the kit on a GPU, in the first minutes on a new card: python scripts/gpu_check.py [--out build/gpu-check].

It uses no network and ends within nine minutes. Every section runs in a process of its own, and so does every
condition under which methods are judged, so that a fault that leaves a card unusable, or a kernel that hangs, costs one
of them alone. The folder OUT then holds at most nine small files:

| file | content |
| --- | --- |
| `report.md` | what each section found, and how it ended |
| `environment.json` | the card and the versions |
| `lossless.csv` | the verdict on every method's outputs, alone and in batches of eight, greedy, sampled, invariant |
| `counts.csv` | calls of the CUDA runtime per round, and graphs, by method |
| `curves.csv` | verification and draft times of models with random weights, beside measured kernels and the limit |
| `memory.json` | memory predicted and used by those models, and whether decoding survives a full card |
| `executors.csv` | each executor beside transformers' own generation and assisted generation |
| `kernels.csv` | fused kernels beside torch's operations, in turns: how far logits differ, and both times |
| `errors.txt` | what failed, if anything did |

`--section NAME` runs one section alone, such as one that the time was up for, and says what it found: lines that its
table in OUT holds already are kept, and only the others are measured, so that the options have to be the same.
`--again` does so with all sections. `--here` runs all sections in this process, as the tests do on an emulated card.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  # the kit of this checkout comes before one that is installed

from specbench_kit.api import bench  # noqa: E402
from specbench_kit.core.errors import MethodError, SkitError  # noqa: E402
from specbench_kit.decoding.card_clock import measuring_clock  # noqa: E402
from specbench_kit.decoding.kernel_latency import KernelModel  # noqa: E402
from specbench_kit.decoding.latency import Row  # noqa: E402
from specbench_kit.models.executors.card_decoder import sizes_of  # noqa: E402
from specbench_kit.models.executors.cuda_graph import CudaGraphExecutor  # noqa: E402
from specbench_kit.models.executors.kernels.choice import (  # noqa: E402
    ROUNDINGS,
    describes_alike,
    largest_difference,
)
from specbench_kit.models.executors.kernels.choice import missing as missing_for_kernels  # noqa: E402
from specbench_kit.models.executors.kernels.operators import describe_fused  # noqa: E402
from specbench_kit.models.memory import free_bytes  # noqa: E402
from specbench_kit.models.pair import LoadedModel, resolve_device  # noqa: E402
from specbench_kit.models.runner import Append, Runner  # noqa: E402
from specbench_kit.profilers.devices import BYTES, device_reported_as  # noqa: E402
from specbench_kit.profilers.measurement import out_of_memory  # noqa: E402
from specbench_kit.profilers.roofline import Roofline  # noqa: E402
from specbench_kit.profilers.silicon import find_kernels  # noqa: E402
from specbench_kit.profilers.subject import Subject, find_subject  # noqa: E402
from specbench_kit.runs import provenance  # noqa: E402

INVARIANT = "cuda-invariant+auto"
"""The executors with which greedy outputs are to be plain decoding's bit by bit."""
CONDITIONS = (
    ("auto", 1, 0.0),
    ("auto", 8, 0.0),
    ("auto", 1, 0.7),
    ("auto", 8, 0.7),
    (INVARIANT, 1, 0.0),
    (INVARIANT, 8, 0.0),
)
"""Executors, batch sizes and temperatures with which every method decodes."""
COUNTED = ("fixed-k:k=4", "threshold", "specinfer")
"""A method of fixed length, one that stops by confidence, and one that drafts trees."""
PIPELINED = "specpipe:stages=2,width=8"
REPLAYS = "graph replays"
NEW_TOKENS = (1, 2, 3, 5, 9, 17)
"""New tokens of each request in a verification."""
CHAIN, TREE = "chain", "tree"
COMPARED = (*((count, CHAIN) for count in NEW_TOKENS), (17, TREE))
"""The new tokens of each request by which kernels are compared: chains, and trees of two children a node."""
STEPS = (1, 2, 4, 8)
"""Tokens that a draft model drafts in a row."""
WARM_UPS, REPEATS = 2, 7
BY_TORCH, FUSED = "cuda-graph-torch", "cuda-graph"
"""The executors whose kernels are compared."""
MOST_DIFFERENCE = 0.05
"""How far logits of both may be apart, as the root of the mean square over that of the logits: one rounding to bf16 is
0.004, and a model rounds in every layer."""
DTYPE = "bfloat16"


@dataclass(frozen=True)
class Scene:
    """What is checked: the pair that decodes, the shapes that are timed, and how large it all is."""

    device: str
    target: str
    draft: str
    methods: Sequence[str]
    shapes: Sequence[str]
    batch_sizes: Sequence[int]
    context: int
    prompts: int
    tokens: int
    apart: bool
    """True if sections may start processes; an emulated card lives in one."""


Found = list[str]
"""Lines of the report."""


def check_environment(scene: Scene, out: Path, _seconds: float) -> Found:
    """Say which card this is, and with which software."""
    device = resolve_device(scene.device)
    card = torch.cuda.get_device_properties(device)
    known = device_reported_as(card.name)
    facts = {
        "card": card.name,
        "card_in_kit": known.name if known else None,
        "memory_gb": round(card.total_memory / 1e9, 1),
        "compute_capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
        **provenance.collect([]),
    }
    (out / "environment.json").write_text(json.dumps(facts, indent=2, default=str) + "\n")
    unknown = "" if known else "; the kit has no data sheet of it, so that curves stand alone"
    return [
        f"{card.name}, {facts['memory_gb']} GB, torch {torch.__version__}, CUDA {torch.version.cuda}{unknown}"
    ]


def check_lossless(scene: Scene, out: Path, seconds: float) -> Found:
    """Decode with every method under all conditions, side by side, and judge the outputs as a benchmark does."""
    columns = ("executor", "batch_size", "temperature")
    table = Table(out / "lossless.csv", columns)
    missing = [condition for condition in CONDITIONS if not table.has(*condition)]
    if scene.apart:
        pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in missing]
        decoding = [
            pool.submit(decode_under, scene, condition, seconds).result
            for pool, condition in zip(pools, missing, strict=True)
        ]
    else:
        decoding = [
            partial(decode_under, scene, condition, seconds / len(CONDITIONS))
            for condition in missing
        ]
    found = [_tally(condition, table.rows) for condition in CONDITIONS if condition not in missing]
    failed = []
    for condition, verdicts_of in zip(missing, decoding, strict=True):
        try:
            verdicts, problem = verdicts_of()
        except Exception as error:  # the other conditions are still worth their time
            failed.append(f"{_named(condition)}: {error!r}")
            continue
        failed += [f"{_named(condition)}: {problem}"] if problem else []
        given = dict(zip(columns, condition, strict=True))
        table.add(*(verdict | given for verdict in verdicts))
        found.append(_tally(condition, table.rows))
    if failed:
        raise RuntimeError("\n".join([*found, *failed]))
    return found


def _named(condition: tuple[str, int, float]) -> str:
    executor, batch_size, temperature = condition
    return f"executor {executor}, batch {batch_size}, temperature {temperature:g}"


def _tally(condition: tuple[str, int, float], rows: Sequence[Mapping[str, object]]) -> str:
    """Return a sentence on the verdicts under one condition."""
    verdicts = [
        row
        for row in rows
        if (row["executor"], str(row["batch_size"]), str(row["temperature"]))
        == (condition[0], str(condition[1]), str(condition[2]))
    ]
    tally = Counter(str(verdict["verdict"]) for verdict in verdicts)
    ties = sum(int(str(verdict["ties"] or 0)) for verdict in verdicts)
    wrong = ", ".join(
        str(verdict["method"]) for verdict in verdicts if verdict["verdict"] == "WRONG"
    )
    counts = ", ".join(f"{count} {name}" for name, count in sorted(tally.items()))
    wrongly = f"; wrong: {wrong}" if wrong else ""
    return f"{_named(condition)}: {counts}, {ties} outputs tie{wrongly}"


def decode_under(
    scene: Scene, condition: tuple[str, int, float], seconds: float
) -> tuple[list[dict[str, object]], str]:
    """Decode with every method under one condition, for as long as is planned.

    Return the verdicts, and what was wrong with methods whose policies failed.
    """
    executor, batch_size, temperature = condition
    if scene.apart:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(CONDITIONS)))
    problem = ""
    with TemporaryDirectory() as folder:
        try:
            bench(
                scene.methods,
                target=scene.target,
                draft=scene.draft,
                device=scene.device,
                executor=executor,
                batch_size=batch_size,
                temperature=temperature,
                limit=scene.prompts,
                max_new_tokens=scene.tokens,
                minutes=seconds / 60,
                out=folder,
            )
        except MethodError as error:
            problem = str(error)
        runs = sorted(file.parent for file in Path(folder).glob("*/requests.jsonl"))
        return [_verdict(run) for run in runs], problem


def _verdict(run: Path) -> dict[str, object]:
    """Return the verdict on a run's outputs, with the counts that it follows from."""
    summary = json.loads((run / "summary.json").read_text())
    method = json.loads((run / "run.json").read_text())["method"]
    checks = summary.get("lossless") or summary.get("sampling") or {}
    if "errors" in checks:
        verdict = "WRONG" if checks["errors"] else "unjudged" if checks["unjudged"] else "lossless"
    else:  # drafts that were drawn are tested against the target's distribution
        consistent = checks.get("consistent")
        verdict = "undecided" if consistent is None else "consistent" if consistent else "WRONG"
    names = ("compared", "identical", "ties", "errors", "unjudged")
    return {"method": method, "verdict": verdict, **{name: checks.get(name, "") for name in names}}


def check_pipeline(scene: Scene, _out: Path, _seconds: float) -> Found:
    """Decode with a target in two stages, each a process of its own, and judge the outputs."""
    if not scene.apart:
        return ["left out, since an emulated card lives in one process"]
    with TemporaryDirectory() as folder:
        result = bench(
            PIPELINED,
            target=scene.target,
            draft=scene.draft,
            device=scene.device,
            launch="processes",
            limit=scene.prompts,
            max_new_tokens=scene.tokens,
            out=folder,
        )
        verdicts = [_verdict(run) for run in result.folders]
    return [
        f"{verdict['method']}: {verdict['verdict']}, {verdict['ties']} outputs tie"
        for verdict in verdicts
    ]


def check_counts(scene: Scene, out: Path, _seconds: float) -> Found:
    """Count what the host asks of the CUDA runtime in each round, as the profiler sees it, and the graphs."""
    from benchmarks.common import Setting

    setting = Setting(
        scene.target, scene.draft, scene.prompts, 1, scene.tokens, device=scene.device
    )
    runners = setting.runners("cuda-graph")
    table = Table(out / "counts.csv", ("method",))
    found = []
    for method in COUNTED:
        if table.has(method):
            found.append(f"{method}: counted before")
            continue
        setting.decode(runners, method, setting.requests)  # captures all shapes
        with _runtime_calls() as calls:
            records, _ = setting.decode(runners, method, setting.requests)
        rounds = sum(len(record.rounds) for record in records)
        table.add(
            *(
                {
                    "method": method,
                    "call": name,
                    "calls": count,
                    "calls_per_round": round(count / rounds, 2),
                }
                for name, count in calls.most_common()
            )
        )
        replays = calls[REPLAYS] / rounds
        launches = (
            f" and {calls['cudaLaunchKernel'] / rounds:.1f} launches outside of graphs"
            if len(calls) > 1
            else ""
        )
        found.append(f"{method}: {replays:.1f} graph replays{launches} per round")
    return found


@contextmanager
def _runtime_calls() -> Iterator[Counter[str]]:
    """Yield counts that hold, at the end, how often graphs were replayed and functions of the CUDA runtime called.

    An emulated card has no runtime, so that only graphs are counted there.
    """
    calls: Counter[str] = Counter()
    replay = torch.cuda.CUDAGraph.replay
    cuda = torch.profiler.ProfilerActivity.CUDA

    def counted(graph: Any) -> None:
        calls[REPLAYS] += 1
        replay(graph)

    with patch.object(torch.cuda.CUDAGraph, "replay", counted):
        if cuda not in torch.profiler.supported_activities():
            yield calls
            return
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, cuda]) as seen:
            yield calls
    calls.update(
        {event.key: event.count for event in seen.key_averages() if event.key.startswith("cuda")}
    )


def check_executors(scene: Scene, out: Path, _seconds: float) -> Found:
    """Time every executor beside transformers' own generation, in turns."""
    from benchmarks import against_transformers
    from benchmarks.common import Setting

    setting = Setting(
        scene.target, scene.draft, min(4, scene.prompts), 2, scene.tokens, device=scene.device
    )
    figures = against_transformers.run(setting).figures
    rows = [
        {"figure": figure.label, "value": f"{figure.value:.4g}", "unit": figure.unit}
        for figure in figures
    ]
    _write_table(out / "executors.csv", rows)
    return [
        f"{figure.label}: {figure.value:.3g} {figure.unit}"
        for figure in figures
        if figure.unit in ("x", "%")
    ]


def check_kernels(scene: Scene, out: Path, seconds: float) -> Found:
    """Compare the fused kernels with torch's operations in this process, in turns: what they compute, and how fast.

    Raise RuntimeError if logits differ by more than rounding, or if the card cannot run the fused kernels.
    """
    end_s = perf_counter() + seconds
    device = resolve_device(scene.device)
    table = Table(out / "kernels.csv", ("model", "requests", "tokens", "kind", "context"))
    found: Found = []
    wrong: list[str] = []
    for name in scene.shapes:
        subject = find_subject(name, "target")
        shapes = [
            (batch_size, *compared, scene.context)
            for batch_size in scene.batch_sizes
            for compared in COMPARED
        ]
        if all(table.has(subject.name, *shape) for shape in shapes):
            wrong += _judge_kernels(subject.name, table, found)
            continue
        if reason := _left_out(subject, device, end_s):
            found.append(reason)
            continue
        loaded = subject.load(device, DTYPE)
        runners = {
            executor: loaded.runner(max(scene.batch_sizes), scene.context + 64, None, executor)
            for executor in (BY_TORCH, FUSED)
        }
        kernels = runners[FUSED].executor.kernels
        if lack := missing_for_kernels():
            return [f"left out: {lack}"]
        if kernels != "triton":
            raise RuntimeError(f"{subject.name} has no fused kernels: {kernels}")
        roundings = _roundings_apart(runners[FUSED])
        if not roundings <= ROUNDINGS:
            wrong.append(f"{subject.name}: a kernel's results are {roundings:.3g} roundings apart")
        if not describes_alike(describe_fused, device, getattr(torch, DTYPE)):
            wrong.append(f"{subject.name}: kernels say something else of logits than torch does")
        for row in _in_turns(loaded, runners, scene, end_s, partial(table.has, subject.name)):
            table.add({"model": subject.name, **row})
        found.append(
            f"{subject.name}: results of a kernel are {roundings:.2f} roundings apart at most"
        )
        wrong += _judge_kernels(subject.name, table, found)
        del loaded, runners
        torch.cuda.empty_cache()
    if wrong:
        lines = [f"OUTPUTS DIFFER: {line}" for line in wrong]
        raise RuntimeError("\n".join([*found, *lines]))
    return found


def _judge_kernels(model: str, table: "Table", found: Found) -> list[str]:
    """Say in `found` how a model's kernels compare, and return where their logits differ by more than rounding."""
    compared = [row for row in table.rows if row["model"] == model]
    ratios = [float(str(row["triton_ms"])) / float(str(row["torch_ms"])) for row in compared]
    if ratios:
        most = max(float(str(row["difference"])) for row in compared)
        found.append(
            f"{model}: fused kernels take {min(ratios):.2f} to {max(ratios):.2f} of the time of torch's operations, "
            f"and logits differ by {most:.4f} of their size at most"
        )
    # A number that is none is not within the bound either.
    return [
        _where_apart(row)
        for row in compared
        if not float(str(row["difference"])) <= MOST_DIFFERENCE
    ]


def _roundings_apart(runner: Runner) -> float:
    """Return how far results of a runner's kernels are from those of torch's operations, see `largest_difference`."""
    executor = runner.executor
    assert isinstance(executor, CudaGraphExecutor)
    assert executor.choice is not None
    sizes = sizes_of(executor.model)
    return largest_difference(
        executor.choice.kernels, executor.device, getattr(torch, DTYPE), sizes
    )


def _in_turns(
    loaded: LoadedModel,
    runners: Mapping[str, Runner],
    scene: Scene,
    end_s: float,
    is_finished: Callable[[int, int, str, int], bool],
) -> Iterator[dict[str, object]]:
    """Yield lines of the table of kernels: a verification of each shape by all runners, one after the other.

    Shapes (requests, tokens, kind, context) that are finished are left out.
    """
    clock = measuring_clock(runners[FUSED].device)
    random = Random(0)
    vocabulary = int(loaded.text_config.vocab_size)

    def tokens(count: int) -> list[int]:
        return random.choices(range(vocabulary), k=count)

    with clock.running():
        slots: list[int] = []
        for batch_size in scene.batch_sizes:
            while len(slots) < batch_size:
                prompt = tokens(scene.context)
                (slot,) = {runner.acquire() for runner in runners.values()}
                slots.append(slot)
                for runner in runners.values():
                    runner.forward([Append(slot, prompt)])
                    runner.commit(slot, range(scene.context))
            for count, kind in COMPARED:
                if is_finished(batch_size, count, kind, scene.context):
                    continue
                if perf_counter() > end_s:
                    return
                parents = [(node - 1) // 2 for node in range(count)] if kind == TREE else None
                rows = [Append(slot, tokens(count), parents, keep=count) for slot in slots]
                times: dict[str, list[float]] = {executor: [] for executor in runners}
                logits = {}
                for number in range(WARM_UPS + REPEATS):
                    # What is first in one turn is second in the next one.
                    for executor in list(runners)[:: (-1) ** number]:
                        runner = runners[executor]
                        clock.take()
                        with clock.phase("verify"):
                            forward = runner.forward(rows)
                            forward.argmax()
                        times[executor].append(clock.take()["verify"])
                        logits[executor] = forward.logits.float()
                        for slot in slots:
                            runner.commit(slot, ())
                yield {
                    "requests": batch_size,
                    "tokens": count,
                    "kind": kind,
                    "context": scene.context,
                    "torch_ms": f"{1000 * median(times[BY_TORCH][WARM_UPS:]):.4f}",
                    "triton_ms": f"{1000 * median(times[FUSED][WARM_UPS:]):.4f}",
                    **_difference(logits[BY_TORCH], logits[FUSED], count),
                }


def _difference(expected: torch.Tensor, computed: torch.Tensor, count: int) -> dict[str, object]:
    """Return by how much logits [requests x count, vocabulary] are apart beside their size, and where most of all.

    `tokens_beyond` is the number of tokens whose logits differ by more than the bound, and `same_tokens` the share of
    tokens after which the same token is the most likely.
    """
    size = expected.square().mean().sqrt()
    apart = (computed - expected).abs()
    by_token = apart.square().mean(-1).sqrt() / size
    agree = (computed.argmax(-1) == expected.argmax(-1)).float().mean()
    place, entry = divmod(int(apart.argmax()), apart.shape[-1])  # the first NaN if there is any
    request, token = divmod(place, count)
    return {
        "difference": f"{float(by_token.square().mean().sqrt()):.6f}",
        "same_tokens": f"{float(agree):.4f}",
        "tokens_beyond": int((~(by_token <= MOST_DIFFERENCE)).sum()),
        "largest": f"{float(apart[place, entry] / size):.6f}",
        "at_request": request,
        "at_token": token,
        "at_entry": entry,
        "logit_by_torch": f"{float(expected[place, entry]):.6g}",
        "logit_by_triton": f"{float(computed[place, entry]):.6g}",
    }


def _where_apart(row: Mapping[str, object]) -> str:
    """Return by how much, and where, the logits of a line of the table of kernels differ."""
    count = int(str(row["requests"])) * int(str(row["tokens"]))
    return (
        f"{row['model']}, {row['requests']} requests of {row['tokens']} tokens ({row['kind']}): logits differ by "
        f"{row['difference']} "
        f"of their size, where {MOST_DIFFERENCE} is allowed, and after {row['tokens_beyond']} of {count} tokens by "
        f"more than that; most of all in request {row['at_request']}, token {row['at_token']}, entry "
        f"{row['at_entry']}: "
        f"{row['logit_by_triton']} in place of {row['logit_by_torch']}; the most likely token is the same after "
        f"{100 * float(str(row['same_tokens'])):.0f}% of tokens"
    )


def _left_out(subject: Subject, device: torch.device, end_s: float) -> str:
    """Return why a model is not timed: it does not fit, or the time is up; empty if it is."""
    assert subject.architecture is not None
    needed = subject.architecture.parameters * BYTES[DTYPE]
    if needed * 1.1 > free_bytes(device):
        return f"{subject.name}: left out, since its weights take {needed / 1e9:.1f} GB"
    if perf_counter() > end_s:
        return f"{subject.name}: left out, since the time was up"
    return ""


def check_curves(scene: Scene, out: Path, seconds: float) -> Found:
    """Time models with random weights, the smallest first, as far as they fit into memory and into the time."""
    end_s = perf_counter() + seconds
    device = resolve_device(scene.device)
    table = Table(out / "curves.csv", ("model", "kind", "requests", "tokens", "context"))
    noted = out / "memory.json"
    memory: dict[str, object] = json.loads(noted.read_text()) if noted.exists() else {}
    found = []
    for name in scene.shapes:
        subject = find_subject(name, "target")
        assert subject.architecture is not None
        needed = subject.architecture.parameters * BYTES[DTYPE]
        shapes = [
            (kind, batch_size, count, scene.context)
            for kind, counts in (("verify", NEW_TOKENS), ("draft", STEPS), ("invariant", (1,)))
            for batch_size in scene.batch_sizes
            for count in counts
        ]
        finished = {shape for shape in shapes if table.has(subject.name, *shape)}
        invariant = {
            ("verify", batch_size, count, context)
            for kind, batch_size, count, context in finished
            if kind == "invariant"
        }
        if subject.name in memory and len(finished) == len(shapes):
            found.append(_curve_line(subject.name, table.rows))
            continue
        if reason := _left_out(subject, device, end_s):
            found.append(reason)
            continue
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        loaded = subject.load(device, DTYPE)
        runner = loaded.runner(max(scene.batch_sizes), scene.context + 64, None)
        kv_bytes = runner.executor.kv_bytes(max(scene.batch_sizes), scene.context + 64)
        for measured in _times(loaded, runner, scene, end_s, finished):
            table.add(_beside(subject, *measured))
        memory[subject.name] = {
            "weights_predicted_bytes": needed,
            "kv_predicted_bytes": kv_bytes,
            "peak_used_bytes": torch.cuda.max_memory_allocated(device) - before,
        }
        if name == scene.shapes[0]:
            memory["out_of_memory_survived"] = survived = _survives_full_memory(
                loaded, runner, device
            )
            found.append(
                "a full card: "
                + ("decoding went on after it" if survived else "decoding did NOT go on")
            )
        del runner
        torch.cuda.empty_cache()
        for batch_size in scene.batch_sizes:
            # It computes all of its slots in every forward, so that it gets one for each request.
            if kv_bytes * 1.1 < free_bytes(device) and perf_counter() < end_s:
                runner = loaded.runner(
                    batch_size, scene.context + 64, None, INVARIANT.partition("+")[0]
                )
                alone = replace(scene, batch_sizes=[batch_size])
                for _, shape, measured_s in _times(
                    loaded, runner, alone, end_s, invariant, counts=(1,), steps=()
                ):
                    table.add(_beside(subject, "invariant", shape, measured_s))
                del runner
                torch.cuda.empty_cache()
        found.append(_curve_line(subject.name, table.rows))
        del loaded
        torch.cuda.empty_cache()
        noted.write_text(json.dumps(memory, indent=2) + "\n")
    return found


def _times(
    loaded: LoadedModel,
    runner: Runner,
    scene: Scene,
    end_s: float,
    finished: Collection[tuple[str, int, int, int]],
    counts: Sequence[int] = NEW_TOKENS,
    steps: Sequence[int] = STEPS,
) -> Iterator[tuple[str, tuple[int, int, int], float]]:
    """Yield what was timed: `verify` or `draft`; requests, new or drafted tokens of each, and context; seconds.

    What is `finished` is left out.
    """
    clock = measuring_clock(runner.device)
    random = Random(0)
    vocabulary = int(loaded.text_config.vocab_size)

    def tokens(count: int) -> list[int]:
        return random.choices(range(vocabulary), k=count)

    def timed(work: Callable[[], object]) -> float:
        seconds = []
        for number in range(WARM_UPS + REPEATS):
            clock.take()
            with clock.phase("verify"):
                work()
            for slot in slots:
                runner.commit(slot, ())
            if number >= WARM_UPS:
                seconds.append(clock.take()["verify"])
        return median(seconds)

    with clock.running():
        slots: list[int] = []
        for batch_size in scene.batch_sizes:
            while len(slots) < batch_size:
                slots.append(runner.acquire())
                runner.forward([Append(slots[-1], tokens(scene.context))])
                runner.commit(slots[-1], range(scene.context))
            for count in counts:
                shape = (batch_size, count, scene.context)
                rows = [Append(slot, tokens(count), keep=count) for slot in slots]
                if ("verify", *shape) not in finished and perf_counter() < end_s:
                    yield "verify", shape, timed(partial(_verify, runner, rows))
            for count in steps:
                shape = (batch_size, count, scene.context)
                if ("draft", *shape) not in finished and perf_counter() < end_s:
                    yield "draft", shape, timed(partial(_draft, runner, slots, count))
        for slot in slots:
            runner.release(slot)


def _verify(runner: Runner, rows: Sequence[Append]) -> object:
    return runner.forward(rows).argmax()


def _draft(runner: Runner, slots: Sequence[int], count: int) -> None:
    """Draft some tokens in a row, of which each is read from the forward before it."""
    following: Sequence[Any] = [0] * len(slots)
    for _ in range(count):
        forward = runner.forward(
            [Append(slot, [token]) for slot, token in zip(slots, following, strict=True)]
        )
        following = forward.next_tokens()
    for token in following:
        int(token)


def _beside(
    subject: Subject, kind: str, shape: tuple[int, int, int], measured_s: float
) -> dict[str, object]:
    """Return a line of the table: what was measured, what measured kernels say, and the physical limit."""
    requests, count, context = shape
    batches: list[list[Row]] = [[(count, context)] * requests]
    if kind == "draft":
        batches = [[(1, context + step)] * requests for step in range(count)]
    known = _known_times(subject)
    line: dict[str, object] = {
        "model": subject.name,
        "kind": kind,
        "requests": requests,
        "tokens": count,
    }
    line |= {"context": context, "measured_ms": f"{1000 * measured_s:.4f}"}
    for column in ("kernels", "limit"):
        seconds_of = known.get(column)
        line[f"{column}_ms"] = f"{1000 * sum(map(seconds_of, batches)):.4f}" if seconds_of else ""
    return line


def _known_times(subject: Subject) -> Mapping[str, Callable[[Sequence[Row]], float]]:
    """Return functions from a batch to its seconds on this card; none if the kit has no data sheet of it."""
    device = device_reported_as(torch.cuda.get_device_name())
    if device is None or subject.architecture is None:
        return {}
    seconds_of: dict[str, Callable[[Sequence[Row]], float]] = {
        "limit": Roofline(device, subject.architecture, DTYPE).floor_s
    }
    if kernels := find_kernels(subject.name, device.name, "vllm"):
        seconds_of["kernels"] = KernelModel(kernels.kernels).seconds
    return seconds_of


def _curve_line(name: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Return a sentence on what a verification and an invariant step take beside a plain step, at every batch size."""
    times = {
        (row["kind"], row["requests"], row["tokens"]): float(str(row["measured_ms"]))
        for row in rows
        if row["model"] == name
    }
    parts = []
    for kind, requests, tokens in times:
        if (kind, tokens) == ("verify", 5):
            step_ms = times["verify", requests, 1]
            part = f"batch {requests}: {step_ms:.2f} ms a step, 5 tokens {times[kind, requests, 5] / step_ms:.2f}x"
            invariant_ms = times.get(("invariant", requests, 1))
            parts.append(
                part + (f", invariant {invariant_ms / step_ms:.2f}x" if invariant_ms else "")
            )
    return f"{name}: " + ("; ".join(parts) or "nothing was timed")


def _survives_full_memory(loaded: LoadedModel, runner: Runner, device: torch.device) -> bool:
    """Ask for twice the memory that is free, and return whether the model then computes what it computed before."""

    def best() -> list[list[int]]:
        slot = runner.acquire()
        following = runner.forward([Append(slot, [1, 2, 3], keep=3)]).argmax()
        runner.commit(slot, ())
        runner.release(slot)
        return following

    before = best()
    room = runner.executor.kv_bytes(1, runner.capacity)
    try:
        loaded.runner(int(2 * free_bytes(device) / room) + 1, runner.capacity, None)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    else:
        return False  # there was room for more than is there, so nothing was tried
    torch.cuda.empty_cache()
    return best() == before


def _write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["nothing"])
        writer.writeheader()
        writer.writerows(rows)


class Table:
    """A table whose lines are written as they are measured; those that an earlier start of its section has written are
    there already.

    The columns `key` tell lines apart.
    """

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self._path = path
        self._key = key
        self.rows: list[Mapping[str, object]] = []
        if path.exists():
            with path.open(newline="") as file:
                self.rows += csv.DictReader(file)
        self._finished = {self._name(row) for row in self.rows}

    def has(self, *values: object) -> bool:
        """Return whether the line with these values of the key is there."""
        return tuple(map(str, values)) in self._finished

    def add(self, *rows: Mapping[str, object]) -> None:
        """Add lines, and write the table."""
        self.rows += rows
        self._finished |= {self._name(row) for row in rows}
        _write_table(self._path, self.rows)

    def _name(self, row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(str(row[column]) for column in self._key)


Check = Callable[[Scene, Path, float], Found]
SECTIONS: Mapping[str, tuple[Check, float]] = {
    "environment": (check_environment, 25),
    "kernels": (check_kernels, 60),
    "lossless": (check_lossless, 150),
    "pipeline": (check_pipeline, 60),
    "curves": (check_curves, 120),
    "executors": (check_executors, 50),
    "counts": (check_counts, 40),
}
"""Each section with the seconds that it plans for; it is ended when it takes `PATIENCE_S` more."""
PATIENCE_S = 20
FOUND, ERRORS, REPORT = ".found.json", "errors.txt", "report.md"
TABLES = ("lossless.csv", "counts.csv", "curves.csv", "kernels.csv", "memory.json")
"""What sections write line by line, and go on with when they are started again."""


def run_section(name: str, scene: Scene, out: Path) -> None:
    """Run one section in this process, and leave what it found in a file."""
    check, seconds = SECTIONS[name]
    out.mkdir(parents=True, exist_ok=True)
    found = check(scene, out, seconds)
    print("\n".join(found))
    (out / FOUND).write_text(json.dumps(found))


def run_all(
    scene: Scene, out: Path, arguments: Sequence[str] | None, *, again: bool = False
) -> bool:
    """Run all sections, each in a process with `arguments` or, without any, in this one; return whether all ended.

    Lines of tables that are there already are kept if it runs `again`, and removed otherwise.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (FOUND, ERRORS, *(() if again else TABLES)):
        (out / name).unlink(missing_ok=True)
    lines, errors = ["# GPU check", ""], []
    for name, (_, seconds) in SECTIONS.items():
        started_s = perf_counter()
        error = (
            _run_here(name, scene, out)
            if arguments is None
            else _run_apart(name, arguments, seconds + PATIENCE_S)
        )
        found = json.loads((out / FOUND).read_text()) if (out / FOUND).exists() else []
        (out / FOUND).unlink(missing_ok=True)
        ended = "failed, see errors.txt" if error else "ended"
        lines += [
            f"## {name}: {ended} after {perf_counter() - started_s:.0f} s",
            "",
            *(f"- {line}" for line in found),
            "",
        ]
        errors += [f"## {name}\n{error}\n"] if error else []
        (out / REPORT).write_text("\n".join(lines))
        print("\n".join(lines[-len(found) - 3 :]), flush=True)
    if errors:
        (out / ERRORS).write_text("\n".join(errors))
    return not errors


def _run_here(name: str, scene: Scene, out: Path) -> str:
    """Return what went wrong; nothing if all went well."""
    try:
        run_section(name, scene, out)
    except Exception:  # the sections after it are still worth their time
        return traceback.format_exc()
    return ""


def _run_apart(name: str, arguments: Sequence[str], limit_s: float) -> str:
    command = [sys.executable, __file__, *arguments, "--section", name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        said, _ = process.communicate()
        said += f"\nended after {limit_s:.0f} s, in which it had not come to an end"
    return "" if process.returncode == 0 else "\n".join(said.splitlines()[-40:])


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(map(str, arguments))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/gpu-check"), help="default %(default)s"
    )
    parser.add_argument("--device", default="cuda:0", help="default %(default)s")
    parser.add_argument("--target", default="bundled", help="as in skit bench")
    parser.add_argument("--draft", default="bundled", help="as in skit bench")
    parser.add_argument("--method", action="append", help="as in skit bench; default: all")
    parser.add_argument(
        "--shape", action="append", help="an architecture card; default: qwen3-0.6b, -8b and -32b"
    )
    parser.add_argument(
        "--batch-sizes", default="1,8,32", help="of the curves; default %(default)s"
    )
    parser.add_argument(
        "--context", type=int, default=512, help="cached tokens of the curves; default %(default)s"
    )
    parser.add_argument("--prompts", type=int, default=8, help="default %(default)s")
    parser.add_argument(
        "--tokens", type=int, default=24, help="new tokens of each answer; default %(default)s"
    )
    parser.add_argument("--here", action="store_true", help="run all sections in this process")
    parser.add_argument("--section", choices=list(SECTIONS), help="run this one alone")
    parser.add_argument(
        "--again",
        action="store_true",
        help="keep the lines that an earlier check with the same options has written to OUT",
    )
    given = parser.parse_args(arguments)
    scene = Scene(
        given.device,
        given.target,
        given.draft,
        given.method or ["all"],
        given.shape or ["qwen3-0.6b", "qwen3-8b", "qwen3-32b"],
        [int(size) for size in given.batch_sizes.split(",")],
        given.context,
        given.prompts,
        given.tokens,
        not given.here,
    )
    try:
        resolve_device(scene.device)
    except SkitError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    if given.section:
        run_section(given.section, scene, given.out)
        return 0
    return (
        0 if run_all(scene, given.out, None if given.here else arguments, again=given.again) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
