"""What a stop rule costs per drafted token: the draft statistics, and a predictor's score where there is one."""

from random import Random
from typing import Any

from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.steps import measure_statistics

SAMPLES = 64


def measure_policy(vocabulary: int, device: str, pair: PairHashes | None) -> dict[str, Any]:
    """Seconds per token; `predictor` and its time are missing where none was trained for the pair."""
    found: dict[str, Any] = {"statistics_s": measure_statistics(vocabulary, device)}
    folders = library.find(pair) if pair is not None else []
    if folders:
        predictor = artefact.load(folders[0], pair=pair)
        random = Random(0)
        rows = [[random.random() for _ in predictor.features] for _ in range(SAMPLES)]
        found |= {"predictor": predictor.family, "predictor_s": time_scores(predictor.scorer, rows)["median"]}
    return {**found, "per_token_s": found["statistics_s"] + found.get("predictor_s", 0.0)}
