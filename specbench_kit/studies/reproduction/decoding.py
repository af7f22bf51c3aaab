"""Experiments on one server's engine: a synthetic pair decoded by any method, in the time of a deployment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.studies.reproduction.serving import Rows
from specbench_kit.studies.synthetic.prompts import SyntheticPrompts

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

    def rows(self) -> Iterator[dict[str, Any]]:
        """The metrics of every series, beside plain decoding on the same deployment."""
        prompts = SyntheticPrompts(**{one.name: getattr(self, one.name) for one in fields(SyntheticPrompts)})
        for label, one in self.series.items():
            place, plain = one.place(), _plain(prompts, one.deployment, one.replaced)
            records = plain if one.method == BASELINE else self.decode(one.method, place, one.draft)
            found = summarise_run(records, plain, describe(place), batch_size=self.batch_size)["overall"]
            yield {"series": label, **{name: {"mean": value} for name, value in _numbers(found)}}


def bench(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """What `options` say of `Decoded`."""
    series = {
        label: Series(**{**one, "replaced": tuple(one.get("replaced", ()))}) for label, one in options["series"].items()
    }
    rows: Rows = []
    for row in Decoded(**{**options, "series": series}).rows():
        rows.append(row)
        told(len(rows), len(series))
    return rows


@lru_cache(maxsize=8)
def _plain(prompts: SyntheticPrompts, deployment: str, replaced: tuple[str, ...]) -> list[RequestRecord]:
    """Plain decoding, which the places of a grid mostly share."""
    return prompts.decode(BASELINE, Series(BASELINE, deployment, "", replaced).place(), "")


def _numbers(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Also those one level down: `tpot_mean`."""
    flat = [(name, value) for name, value in found.items() if isinstance(value, int | float)]
    deep = {name: value for name, value in found.items() if isinstance(value, Mapping)}
    return flat + [(f"{a}_{b}", v) for a, inner in deep.items() for b, v in inner.items() if isinstance(v, int | float)]
