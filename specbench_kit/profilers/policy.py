"""The cost of a stop rule per drafted token: of the draft statistics, and of a predictor's score if there is one."""

from random import Random

from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.steps import measure_statistics

SAMPLES = 64


def measure_policy(vocabulary: int, device: str, pair: PairHashes | None) -> dict[str, object]:
    """Return the seconds per token; without `predictor` and its time if none was trained for the pair."""
    statistics_s = measure_statistics(vocabulary, device)
    folders = library.find(pair) if pair is not None else []
    if not folders:
        return {"statistics_s": statistics_s, "per_token_s": statistics_s}
    predictor = artefact.load(folders[0], pair=pair)
    random = Random(0)
    rows = [[random.random() for _ in predictor.features] for _ in range(SAMPLES)]
    predictor_s = time_scores(predictor.scorer, rows)["median"]
    return {
        "statistics_s": statistics_s,
        "predictor": predictor.family,
        "predictor_s": predictor_s,
        "per_token_s": statistics_s + predictor_s,
    }
