"""Replay the log of a real server: how far are the simulated times from the measured ones?"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import find
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import FUSED, find_software
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.arrival_traces import read_arrivals
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

LOG = Path("serving_logs/vllm-rtx4090-llama3.1-8b.jsonl")
DEPLOYMENT = "vllm-rtx4090"
DEVICE, MODEL = "rtx4090", "llama3.1-8b"
FITTED_ON = 100
"""Number of requests to which the step time of the software card was fitted."""
MEANS, TAILS = Bound(0.95, 1.05), Bound(0.90, 1.10)
LONG_S = 600.0
PARTS = {
    "whole log": slice(None),
    f"first {FITTED_ON} requests": slice(FITTED_ON),
    f"other {300 - FITTED_ON}": slice(FITTED_ON, None),
}
Times = Mapping[str, Floats]


def run(_setting: Setting) -> Outcome:
    """Compare simulated with measured times, for the whole log, for the fitted part and for the other one."""
    log = Path(os.environ.get("SKIT_DATA_DIR", "")) / LOG
    if not log.is_file():
        raise Skipped(f"no {LOG} below SKIT_DATA_DIR")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    settings = json.loads(log.with_suffix(".settings.json").read_text())
    fitted = find(DEPLOYMENT).build()
    sheet = Roofline(find_device(DEVICE), bundled_architectures()[MODEL], "bfloat16").estimate(find_software(FUSED))
    plain = replace(fitted, verifier=replace(fitted.verifier, latency=sheet))
    measured = _measured(rows)
    figures = []
    for name, deployment in {"fitted step": fitted, "data sheet alone": plain}.items():
        figures += _figures(name, _simulated(deployment, log, settings), measured)
    title = f"{settings['model']} by vLLM {settings['vllm_version']} on one RTX 4090: simulated over measured"
    notes = [
        f"{len(rows)} requests of {LOG.name}; {name}: {values.mean():.4g} s on average"
        for name, values in measured.items()
    ]
    return Outcome(title, figures, notes)


def _figures(label: str, simulated: Times, measured: Times) -> list[Figure]:
    figures = []
    for part, rows in PARTS.items():
        for name, values in measured.items():
            mean = float(simulated[name][rows].mean() / values[rows].mean())
            tail = float(np.quantile(simulated[name][rows], 0.95) / np.quantile(values[rows], 0.95))
            figures += [Figure(f"{label}, {part}: mean {name}", mean, "x", MEANS)]
            figures += [Figure(f"{label}, {part}: P95 {name}", tail, "x", TAILS)]
    return figures


def _measured(rows: list[dict[str, Any]]) -> Times:
    names = ("queued_ts", "first_token_ts", "last_token_ts", "output_toks")
    arrived_s, first_s, last_s, tokens = (np.array([row[name] for row in rows], dtype=np.float64) for name in names)
    return _times(arrived_s, first_s, last_s, tokens)


def _simulated(deployment: Deployment, log: Path, settings: dict[str, Any]) -> Times:
    """Simulate with the engine's settings: batch size, tokens per step and memory for KV."""
    engine, arrivals = settings["engine_kwargs"], read_arrivals(log)
    scenario = Scenario(
        deployment,
        systems.get("centralized"),
        iid(0.8, 4),
        len(arrivals.requests),
        slo=parse_slo("0.1/s"),
        arrivals=arrivals,
        memory=KvCapacity(settings["kv_cache"]["num_kv_tokens"], engine["max_model_len"]),
        scheduler=f"chunked:tokens={engine['max_num_batched_tokens']}",
        max_batch=engine["max_num_seqs"],
        duration_s=LONG_S,
        warmup_s=0.0,
    )
    table = simulate(scenario).responses
    order = np.argsort(table["client"])
    return _times(*(table[name][order] for name in ("start_s", "first_s", "end_s", "tokens")))


def _times(arrived_s: Floats, first_s: Floats, last_s: Floats, tokens: Floats) -> Times:
    return {
        "TTFT": first_s - arrived_s,
        "TPOT": (last_s - first_s) / np.maximum(tokens - 1, 1),
        "latency": last_s - arrived_s,
    }
