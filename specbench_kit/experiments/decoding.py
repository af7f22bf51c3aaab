"""Experiments on one server's engine: a synthetic pair decoded by any method, in the time of a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench_kit.bench.synthetic import SyntheticPrompts
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import load
from specbench_kit.errors import SkitError
from specbench_kit.experiments.serving import Rows, Told
from specbench_kit.metrics.summary import summarise_run

BASELINE = "autoregressive"


@dataclass(frozen=True)
class Series:
    """One method on one deployment with one pair; `draft` is what follows `synthetic:`."""

    method: str
    deployment: str
    draft: str = ""
    replaced: tuple[str, ...] = ()

    def place(self) -> Deployment:
        """The deployment, whose time it takes."""
        found = load(self.deployment, self.replaced)
        if found is None:
            raise SkitError("an experiment needs latency models: choose a deployment other than local")
        return found


@dataclass(frozen=True, kw_only=True)
class Decoded(SyntheticPrompts):
    """Series by label, and what all of them are asked."""

    series: Mapping[str, Series]
    ratios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By label, `of` and `over`: figures of series, as in "specedge/throughput"."""

    def rows(self, told: Told) -> Rows:
        """The metrics of every series, beside plain decoding on the same deployment."""
        plain: dict[tuple[str, tuple[str, ...]], list[RequestRecord]] = {}
        rows: Rows = []
        for done, (label, one) in enumerate(self.series.items()):
            told(done, len(self.series))
            place, key = one.place(), (one.deployment, one.replaced)
            if key not in plain:
                plain[key] = self.decode(BASELINE, place, "")
            records = plain[key] if one.method == BASELINE else self.decode(one.method, place, one.draft)
            found = summarise_run(records, plain[key], describe(place), batch_size=self.batch_size)["overall"]
            rows.append({"series": label, **{name: {"mean": value} for name, value in _numbers(found)}})
        told(len(self.series), len(self.series))
        figures = {row["series"]: row for row in rows}
        ratios = {label: _ratio(figures, **one) for label, one in self.ratios.items()}
        return rows + [{"series": label, "ratio": {"mean": ratio}} for label, ratio in ratios.items()]


def bench(options: Mapping[str, Any], told: Told) -> Rows:
    """What `options` say of `Decoded`."""
    series = {
        label: Series(**{**one, "replaced": tuple(one.get("replaced", ()))}) for label, one in options["series"].items()
    }
    return Decoded(**{**options, "series": series}).rows(told)


def _ratio(figures: Mapping[str, Any], of: str, over: str, factor: float = 1.0) -> float:
    above, below = (figures[label][name]["mean"] for label, name in (one.split("/") for one in (of, over)))
    return float(factor * above / below)


def _numbers(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Also those one level down: `tpot_mean`."""
    flat = [(name, value) for name, value in found.items() if isinstance(value, int | float)]
    deep = {name: value for name, value in found.items() if isinstance(value, Mapping)}
    return flat + [(f"{a}_{b}", v) for a, inner in deep.items() for b, v in inner.items() if isinstance(v, int | float)]
