"""Choose the thresholds of a bundled predictor again for deployments whose times have changed.

`python scripts/tune_predictors.py FOLDER TRACE`, where the trace holds the drafts that the predictor learned from. What
it learned stays; so do thresholds for deployments whose times are as they were, which are chosen again as a check: if
most of them differ, the trace is another one.
"""

import sys
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from specbench_kit.deployments.loading import find
from specbench_kit.deployments.placing import deployment_key
from specbench_kit.predictors import artefact
from specbench_kit.predictors.search import SearchResult, SearchTrial
from specbench_kit.predictors.thresholds import LOCAL, TunedThreshold
from specbench_kit.studies.training.contenders import (
    ContenderTuner,
    DeploymentTuning,
    TrainedFamily,
)
from specbench_kit.studies.training.evaluation import FASTEST
from specbench_kit.studies.training.examples import split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.studies.training.timing import Timing
from specbench_kit.traces.trace import TraceFile

SEED = 0
"""The seed of the split into training, validation and test prompts of every bundled predictor."""


def main() -> None:
    """Write the predictor with its thresholds in its folder."""
    folder, trace = Path(sys.argv[1]), TraceFile(Path(sys.argv[2]))
    predictor = artefact.load(folder)
    offsets = read_offsets(trace)
    validation = split_by_prompt(offsets, SEED).validation
    context = round(float(offsets.context.mean()))
    latency: dict[str, float] = dict(predictor.training["latency"])  # type: ignore[call-overload]
    search = SearchResult(predictor.scorer, SearchTrial({}, 0.0), ())
    trained = TrainedFamily(predictor.family, search, predictor.features, latency)
    tuned: list[TunedThreshold] = []
    same = changed = 0
    for name in dict.fromkeys(point.deployment for point in predictor.tuned):
        kept = [point for point in predictor.tuned if point.deployment == name]
        if name == LOCAL:
            tuned += kept
            continue
        deployment = find(name).build()
        timing = Timing.of(trace.header, deployment, context)
        if timing.adds_scores:
            # The machine that recorded the first trace told how long a decision takes; it is not this one.
            timing = structs.replace(
                timing, statistics_s=max(0.0, predictor.decision_s - latency["median"])
            )
        tuning = DeploymentTuning(
            deployment_key(deployment),
            ContenderTuner(validation, FASTEST, timing),
            {predictor.family: trained},
        )
        chosen = list(tuning.thresholds(predictor.family))
        if kept[0].digest == tuning.key.digest:
            agree = sum(a == b for a, b in zip(kept, chosen, strict=True))
            same, changed, chosen = same + agree, changed + len(kept) - agree, kept
        else:
            print(f"{name}: {_words(kept)} -> {_words(chosen)}")
        tuned += chosen
    print(
        f"of {same + changed} thresholds for deployments that are as they were, {same} are chosen again"
    )
    artefact.save(folder, replace(predictor, tuned=tuple(tuned)))


def _words(points: list[TunedThreshold]) -> str:
    return ", ".join(f"{point.threshold:.3g}/{point.max_draft}" for point in points)


if __name__ == "__main__":
    main()
