"""Experiments on predictors: families that learn from what a pair was recorded to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.datasets.loading import load, sample_of
from specbench_kit.predictors import scoring
from specbench_kit.predictors.base import Examples, families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import Budget, search
from specbench_kit.studies.bench.settings import RECORDED_TOGETHER, BenchSettings
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.reproduction.averages import averaged
from specbench_kit.studies.reproduction.serving import Rows
from specbench_kit.studies.training.description import correlations
from specbench_kit.studies.training.examples import Split, extract, split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.traces.trace import TraceFile

BALANCED = "balanced"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A pair's drafts on some prompts of a dataset's bundled sample, and families that learn from them by label.

    A series has a `family`, and a `threshold` that is a number or `balanced`: the highest balanced accuracy on the
    validation prompts.
    """

    target: str
    draft: str
    series: Mapping[str, Mapping[str, Any]]
    dataset: str = "gsm8k"
    limit: int = 40
    output_tokens: int = 64
    max_draft: int = 8
    trials: int = 1
    seed: int = 0

    def rows(self, told: CountCallback) -> Rows:
        """Of the examples, and of every series; latencies are measured on this machine."""
        found: Rows = [{"series": "examples", **averaged([self._examples()])}]
        for label, one in self.series.items():
            told(len(found) - 1, len(self.series))
            found.append({"series": label, **averaged([self._judged(**one)])})
        for row in found[1:]:
            seconds, first = (one["latency"]["median"]["mean"] for one in (row, found[1]))
            row["latency"]["over_first"] = {"mean": seconds / first}
        told(len(self.series), len(self.series))
        return found

    @cached_property
    def parts(self) -> Mapping[str, Examples]:
        """Of different prompts, to train on, to choose by and to judge on."""
        return {name: extract(part) for name, part in self._split().parts.items()}

    def _split(self) -> Split:
        settings = BenchSettings(
            methods=("autoregressive",),
            target=self.target,
            draft=self.draft,
            max_new_tokens=self.output_tokens,
            limit=self.limit,
            seed=self.seed,
            batch_size=RECORDED_TOGETHER,
        )
        prompts = load(sample_of(self.dataset), data_dir=None, allow_sample=False, limit=self.limit, seed=self.seed)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.parquet"
            record(settings, prompts, path, self.max_draft, lambda *_: None)
            return split_by_prompt(read_offsets(TraceFile(path)), self.seed)

    def _examples(self) -> dict[str, Any]:
        """How many there are, how many were accepted, and how each feature goes with that."""
        parts = self.parts.values()
        tokens, accepted = sum(map(len, parts)), sum(int(part.labels.sum()) for part in parts)
        found = correlations(self.parts["training"])
        return {
            "tokens": tokens,
            "accepted": accepted,
            "accepted_share": accepted / tokens,
            "correlation": dict(zip(found["names"], found["matrix"][-1], strict=True)),
        }

    def _judged(self, family: str, threshold: float | str = 0.5) -> dict[str, Any]:
        train, valid, test = (self.parts[name] for name in ("training", "validation", "test"))
        scorer = search(families.get(family)(), train, valid, Budget(self.trials), self.seed).scorer
        if threshold == BALANCED:
            threshold = scoring.by_balanced_accuracy(valid.labels, scorer.score_many(valid.features))
        judged = scoring.summarise(test.labels, scorer.score_many(test.features), float(threshold))
        return {**judged, "latency": time_scores(scorer, test.features[:1000].tolist())}


def train(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """What `options` say of `Learned`."""
    return Learned(**options).rows(told)
