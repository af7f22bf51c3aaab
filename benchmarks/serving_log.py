"""Replay the log of a real server: how far are the simulated times from the measured ones, by each source of times?"""

import json
import os
from pathlib import Path

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.loading import find
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.silicon import find_kernels
from specbench_kit.profilers.software import KERNELS, find_software
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.studies.calibration.logs import read_log
from specbench_kit.studies.calibration.run import EngineSettings, ServedLog, agreement

LOG = Path("serving_logs/vllm-rtx4090-llama3.1-8b.jsonl")
DEPLOYMENT = "vllm-rtx4090"
DEVICE, MODEL = "rtx4090", "llama3.1-8b"
NEAREST = "l40s"
"""The card of the same generation whose kernels were measured; the log's own card has none."""
FITTED_ON = 100
"""Number of requests that the calibrated speed of the software card was fitted to."""
MEANS, TAILS = Bound(0.97, 1.03), Bound(0.90, 1.10)
PARTS = {
    f"first {FITTED_ON} requests": slice(FITTED_ON),
    f"other {300 - FITTED_ON}": slice(FITTED_ON, None),
}


def run(_setting: Setting) -> Outcome:
    """Compare simulated with measured times by the law, by measured kernels and by the calibrated speed."""
    path = Path(os.environ.get("SKIT_DATA_DIR", "")) / LOG
    if not path.is_file():
        raise Skipped(f"no {LOG} below SKIT_DATA_DIR")
    settings = json.loads(path.with_suffix(".settings.json").read_text())
    engine = settings["engine_kwargs"]
    memory = KvCapacity(settings["kv_cache"]["num_kv_tokens"], engine["max_model_len"])
    log = ServedLog(
        read_log(path).requests,
        EngineSettings(engine["max_num_seqs"], engine["max_num_batched_tokens"], memory),
    )
    figures = []
    for name, latency in _sources().items():
        simulated = log.simulated(latency)
        for part, rows in PARTS.items():
            bounded = name == "calibrated"
            for metric in agreement(simulated, log.measured, rows):
                label = f"{name}, {part}"
                figures += [
                    Figure(
                        f"{label}: mean {metric.metric}",
                        metric.mean,
                        "x",
                        MEANS if bounded else None,
                    )
                ]
                figures += [
                    Figure(
                        f"{label}: P95 {metric.metric}",
                        metric.tail,
                        "x",
                        TAILS if bounded else None,
                    )
                ]
    title = f"{settings['model']} by vLLM {settings['vllm_version']} on one RTX 4090: simulated over measured"
    notes = [
        f"{len(log.requests)} requests of {LOG.name}; {name}: {values.mean():.4g} s on average"
        for name, values in log.measured.items()
    ]
    return Outcome(title, figures, notes)


def _sources() -> dict[str, LatencyModel]:
    """Return the latency models by the source of their times."""
    kernels = find_kernels(MODEL, NEAREST, "vllm")
    assert kernels is not None
    roofline = Roofline(find_device(DEVICE), bundled_architectures()[MODEL], "bfloat16")
    return {
        "law": roofline.estimate(find_software(KERNELS)),
        f"silicon of the {NEAREST}": KernelModel(kernels.kernels),
        "calibrated": find(DEPLOYMENT).build().verifier.latency,
    }
