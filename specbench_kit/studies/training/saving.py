"""TrainedFamily families as artefacts on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.artefact import Predictor
from specbench_kit.predictors.library import PairHashes
from specbench_kit.studies.training.contenders import TrainedFamily
from specbench_kit.studies.training.experiment import TrainingExperiment
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.traces.replay import recorded
from specbench_kit.traces.trace import TraceHeader

Fields = Mapping[str, Any]

KEPT = ("throughput", "acceptance_length", "acceptance_rate", "draft_efficiency", "gap_closed", "regret")
"""Of what a predictor does to decoding, what its artefact says."""


class Price(NamedTuple):
    """What judging a token takes less the score, 0 where the trace does not say, and how that is known."""

    statistics_s: float
    origin: str

    @classmethod
    def of(cls, header: TraceHeader) -> "Price":
        """On the machine that recorded the trace."""
        timed, cpu = recorded(header).predictor_origin, (header.run.get("hardware") or {}).get("cpu", "some machine")
        return cls(header.statistics_s, f"{timed} on {cpu}, and a score timed alone" if header.statistics_s else "")

    def decision_s(self, trained: TrainedFamily) -> float:
        """Of a classifier."""
        return self.statistics_s + trained.latency["median"] if self.statistics_s else 0.0


def make_predictors(
    experiment: TrainingExperiment, summary: Fields, pair: PairHashes, provenance: Fields, created: str, price: Price
) -> dict[str, Predictor]:
    """An artefact per family; `created` is common to all, `provenance` says where the examples came from."""
    judges = {one.name: one.judge for one in experiment.contenders if one.judge and one.kind == "classifier"}
    return {
        family: Predictor(
            family=family,
            scorer=trained.found.scorer,
            features=trained.names,
            threshold=judges[family].threshold,
            max_draft=judges[family].longest,
            operating_rule=summary["operating_point"],
            pair=pair,
            decision_s=price.decision_s(trained),
            decision_origin=price.origin,
            tuned=tuple(point for site in experiment.sites for point in site.points(family)),
            training={**provenance, "split": summary["split"], **summary["families"][family]},
            metrics=_metrics(summary, family),
            recommended=family == summary["recommended"],
            created=created,
        )
        for family, trained in experiment.trained.items()
    }


def _metrics(summary: Fields, family: str) -> dict[str, Any]:
    decoding = summary["decoding"][family]
    return {
        "on": "test prompts, replayed with modelled time",
        "classification": summary["classification"][family],
        "decoding": {name: decoding[name] for name in KEPT},
    }


def save_predictors(
    predictors: Mapping[str, Predictor], folder: Path, settings: PredictorTrainingSettings, *, elsewhere: bool = True
) -> dict[str, Path]:
    """Save all to the run's folder and, if `elsewhere`, to where the settings say; returns the latter."""
    for family, predictor in predictors.items():
        artefact.save(folder / "predictors" / family, predictor)
    if not elsewhere:
        return {}
    places = {
        family: place for family, predictor in predictors.items() if (place := _place(predictor, settings)) is not None
    }
    for family, place in places.items():
        artefact.save(place, predictors[family])
    return places


def _place(predictor: Predictor, settings: PredictorTrainingSettings) -> Path | None:
    if settings.save_to is not None:
        return settings.save_to if predictor.recommended else None
    if settings.name is not None:
        return library.data_folder() / f"{settings.name}-{predictor.family}"
    return library.default_folder(predictor.pair, predictor.family)
