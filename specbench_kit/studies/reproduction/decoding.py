"""Experiments of the command `bench`: a synthetic pair, decoded by any method in the time of a deployment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.studies.reproduction.rows import Rows
from specbench_kit.studies.sweep.synthetic import SyntheticPrompts


@dataclass(frozen=True)
class DecodedSeries:
    """One method on one deployment with one pair; `draft` is the part of the pair's spec after `synthetic:`."""

    method: str
    deployment: str
    draft: str = ""
    replaced: tuple[str, ...] = ()

    def load_deployment(self) -> Deployment:
        """Return the deployment with its replaced fields; raise SkitError if it has no latency models."""
        deployment = load(self.deployment, self.replaced)
        if deployment is None:
            raise SkitError("an experiment needs latency models: choose a deployment other than local")
        return deployment


@dataclass(frozen=True, kw_only=True)
class DecodingExperiment(SyntheticPrompts):
    """Several series by label, all decoded on the same prompts."""

    series: Mapping[str, DecodedSeries]

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield the metrics of every series, with plain decoding on the same deployment as the baseline."""
        prompts = SyntheticPrompts(**{field.name: getattr(self, field.name) for field in fields(SyntheticPrompts)})
        for label, series in self.series.items():
            deployment = series.load_deployment()
            baseline = _decode_baseline(prompts, series.deployment, series.replaced)
            is_baseline = series.method == BASELINE
            records = baseline if is_baseline else self.decode(series.method, deployment, series.draft)
            summary = summarise_run(records, baseline, describe(deployment), batch_size=self.batch_size)
            yield {"series": label, **_estimates(summary["overall"])}


def bench(options: JsonObject, report: CountCallback) -> Rows:
    """Return the rows of a decoding experiment with these options."""
    series = {
        label: DecodedSeries(**{**entry, "replaced": tuple(entry.get("replaced", ()))})
        for label, entry in options["series"].items()
    }
    rows: Rows = []
    for row in DecodingExperiment(**{**options, "series": series}).rows():
        rows.append(row)
        report(len(rows), len(series))
    return rows


@lru_cache(maxsize=8)
def _decode_baseline(prompts: SyntheticPrompts, deployment: str, replaced: tuple[str, ...]) -> list[RequestRecord]:
    """Return the records of plain decoding, which most points of a grid share."""
    series = DecodedSeries(BASELINE, deployment, replaced=replaced)
    return prompts.decode(BASELINE, series.load_deployment(), series.draft)


def _estimates(overall: JsonObject) -> dict[str, dict[str, float]]:
    """Return all numbers as `{"mean": ...}`; those one level down get joint names, such as `tpot_mean`."""
    numbers = {name: value for name, value in overall.items() if isinstance(value, int | float)}
    for group, members in overall.items():
        if isinstance(members, Mapping):
            numbers |= {f"{group}_{name}": value for name, value in members.items() if isinstance(value, int | float)}
    return {name: {"mean": value} for name, value in numbers.items()}
