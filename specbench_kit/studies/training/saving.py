"""Trained families saved as predictors on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.artefact import Predictor
from specbench_kit.predictors.library import PairHashes
from specbench_kit.studies.training.contenders import TrainedFamily
from specbench_kit.studies.training.experiment import TrainingExperiment
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.traces.replay import recording_deployment
from specbench_kit.traces.trace import TraceHeader

DECODING_METRICS = ("throughput", "acceptance_length", "acceptance_rate", "draft_efficiency", "gap_closed", "regret")
"""Metrics of a predictor's decoding that are saved with it."""


class DecisionCost(NamedTuple):
    """The seconds per decision without the score, 0 if the trace does not state them, and where they come from."""

    statistics_s: float
    origin: str

    @classmethod
    def of(cls, header: TraceHeader) -> "DecisionCost":
        """Return the cost on the machine that recorded the trace."""
        if not header.statistics_s:
            return cls(0.0, "")
        timed, cpu = (
            recording_deployment(header).predictor_origin,
            (header.run.get("hardware") or {}).get("cpu", "some machine"),
        )
        return cls(header.statistics_s, f"{timed} on {cpu}, and a score timed alone")

    def decision_s(self, trained: TrainedFamily) -> float:
        """Return the cost of a classifier's decision with its score."""
        return self.statistics_s + trained.latency["median"] if self.statistics_s else 0.0


def make_predictors(
    experiment: TrainingExperiment,
    summary: Mapping[str, Any],
    pair: PairHashes,
    provenance: Mapping[str, object],
    created: str,
    cost: DecisionCost,
) -> dict[str, Predictor]:
    """Return a predictor per family; `provenance` describes the source of the examples, `created` is a date."""
    judges = {
        contender.name: contender.judge
        for contender in experiment.contenders
        if contender.judge and contender.kind == "classifier"
    }
    predictors = {}
    for family, trained in experiment.trained.items():
        decoding = summary["decoding"][family]
        predictors[family] = Predictor(
            family=family,
            scorer=trained.search.scorer,
            features=trained.names,
            threshold=judges[family].threshold,
            max_draft=judges[family].longest,
            operating_rule=summary["operating_point"],
            pair=pair,
            decision_s=cost.decision_s(trained),
            decision_origin=cost.origin,
            tuned=tuple(threshold for tuning in experiment.tunings for threshold in tuning.thresholds(family)),
            training={**provenance, "split": summary["split"], **summary["families"][family]},
            metrics={
                "on": "test prompts, replayed with modelled time",
                "classification": summary["classification"][family],
                "decoding": {name: decoding[name] for name in DECODING_METRICS},
            },
            recommended=family == summary["recommended"],
            created=created,
        )
    return predictors


def save_predictors(
    predictors: Mapping[str, Predictor], folder: Path, settings: PredictorTrainingSettings, suffix: str = ""
) -> dict[str, Path]:
    """Save all predictors to the run's folder and to the folders that the settings name.

    Return the latter folders by family; among the user's predictors their names end with `suffix`.
    """
    for family, predictor in predictors.items():
        artefact.save(folder / "predictors" / family, predictor)
    folders: dict[str, Path] = {}
    for family, predictor in predictors.items():
        if settings.save_to is not None:
            if not predictor.recommended:
                continue
            folders[family] = settings.save_to
        elif settings.name is not None:
            folders[family] = library.data_folder() / f"{settings.name}-{family}{suffix}"
        else:
            default = library.default_folder(predictor.pair, family)
            folders[family] = default.with_name(f"{default.name}{suffix}")
        artefact.save(folders[family], predictor)
    return folders
