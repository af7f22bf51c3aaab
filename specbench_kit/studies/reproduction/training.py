"""Experiments of the command `train`: predictor families that learn from the recorded drafts of a
pair.

For WISP's Table 11 a family's own library is timed as well, which the kit's scorers do without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues, select_fields
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.loading import load, sample_of
from specbench_kit.papers.experiment import series_of
from specbench_kit.papers.figure_row import FigureRow, Figures
from specbench_kit.predictors import scoring
from specbench_kit.predictors.base import Examples, families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import Budget, search
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.reproduction.averages import Rows, averaged
from specbench_kit.studies.reproduction.inputs import PredictorOptions
from specbench_kit.studies.training.examples import correlations, extract, split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.traces.trace import TraceFile

BALANCED = "balanced"


class PredictorSeries(Struct, frozen=True, forbid_unknown_fields=True):
    """A predictor family, the threshold that it decides by, and whether its own library is timed."""

    family: str
    threshold: float | str = 0.5
    library: bool = False


@dataclass(frozen=True, kw_only=True)
class PredictorExperiment(PredictorOptions):
    """The drafts of a pair on prompts of a dataset's bundled sample, and predictor families by
    label.

    Each series has a `family` and a `threshold`: a number, or `balanced` for the threshold with the
    highest balanced accuracy on the validation prompts. With `library = true` the family's own
    library is trained and timed instead, of which only the latency is a result.
    """

    series: Mapping[str, PredictorSeries]

    def rows(self, report: CountCallback) -> Rows:
        """Return a row about the examples and one per series; latencies are measured on this
        machine.
        """
        rows: Rows = [FigureRow("examples", {}, averaged([self._describe_examples()]))]
        for done, (label, entry) in enumerate(self.series.items()):
            report(done, len(self.series))
            rows.append(FigureRow(label, {}, averaged([self._evaluate(entry)])))
        by_library = [entry.library for entry in self.series.values()]
        for library in (False, True):
            # What a library's call takes is compared with that of another library, a scorer of the
            # kit with its own.
            group = [row for row, own in zip(rows[1:], by_library, strict=True) if own == library]
            for row in group:
                own_s, first_s = (
                    compared.figure("latency.median.mean") for compared in (row, group[0])
                )
                row.figures["latency"]["over_first"] = {"mean": own_s / first_s}
        report(len(self.series), len(self.series))
        return rows

    @cached_property
    def parts(self) -> Mapping[str, Examples]:
        """The examples for training, validation and test, which come from different prompts."""
        settings = RecordingSettings(
            target=self.target,
            draft=self.draft,
            max_new_tokens=self.output_tokens,
            limit=self.limit,
            seed=self.seed,
        )
        prompts = load(
            sample_of(self.dataset),
            data_dir=None,
            allow_sample=False,
            limit=self.limit,
            seed=self.seed,
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.parquet"
            record(settings, prompts, path, self.max_draft, lambda *_: None)
            split = split_by_prompt(read_offsets(TraceFile(path)), self.seed)
        return {name: extract(part) for name, part in split.parts.items()}

    def _describe_examples(self) -> Figures:
        """Return the number of tokens, how many were accepted, and each feature's correlation with
        acceptance.
        """
        parts = self.parts.values()
        tokens = sum(map(len, parts))
        accepted = sum(int(part.labels.sum()) for part in parts)
        table = correlations(self.parts["training"])
        return {
            "tokens": tokens,
            "accepted": accepted,
            "accepted_share": accepted / tokens,
            "correlation": dict(zip(table.names, table.matrix[-1], strict=True)),
        }

    def _evaluate(self, entry: PredictorSeries) -> Figures:
        """Return the test metrics and the latency of a family that was trained at its best
        hyper-parameters.
        """
        train, valid, test = (self.parts[name] for name in ("training", "validation", "test"))
        family, threshold = entry.family, entry.threshold
        if entry.library:
            return {"latency": time_library(family, train, test, self.timed_scores)}
        scorer = search(families.get(family)(), train, valid, Budget(self.trials), self.seed).scorer
        if threshold == BALANCED:
            threshold = scoring.by_balanced_accuracy(
                valid.labels, scorer.score_many(valid.features)
            )
        metrics = scoring.summarise(test.labels, scorer.score_many(test.features), float(threshold))
        return {
            **to_builtins(metrics),
            "latency": time_scores(scorer, test.features[:1000].tolist(), self.timed_scores),
        }


def train(options: OptionValues, report: CountCallback) -> Rows:
    """Return the rows of a training experiment with these options."""
    series = {label: convert(PredictorSeries, entry) for label, entry in series_of(options).items()}
    return PredictorExperiment(series=series, **select_fields(PredictorOptions, options)).rows(
        report
    )


HIDDEN = (512, 128, 64)
"""Widths of the MLP's layers in WISP's search space (Table 9)."""
FIXED = {"n_jobs": 1, "random_state": 0}


class LibraryScorer:
    """A classifier with scikit-learn's interface that scores one sample at a time, as a drafting
    loop asks for it.
    """

    def __init__(self, classifier: Any) -> None:
        self._classifier = classifier

    def score(self, features: Sequence[float], /) -> float:
        """Return the probability that a token is accepted."""
        return float(self._classifier.predict_proba(np.array([features], np.float32))[0, 1])


def time_library(family: str, train: Examples, test: Examples, trials: int) -> dict[str, float]:
    """Return statistics of the seconds of one score by the family's library, trained with that
    library's defaults.
    """
    if family not in CLASSIFIERS:
        raise SkitError(
            f"no library of the family '{family}' is timed; known: {', '.join(CLASSIFIERS)}"
        )
    classifier = CLASSIFIERS[family]()
    classifier.fit(train.features, train.labels)
    return time_scores(LibraryScorer(classifier), test.features[:1000].tolist(), trials)


def _mlp() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(HIDDEN, early_stopping=True, random_state=0)


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(**FIXED)


def _xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(**FIXED)


def _lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(**FIXED, verbosity=-1)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "mlp": _mlp,
    "random_forest": _forest,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
}
