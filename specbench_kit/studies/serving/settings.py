"""What a simulation is asked to do, as the command line or a preset gives it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import LOCAL
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.serving_rows import AXES
from specbench_kit.serving.acceptance_spec import parse_rates
from specbench_kit.serving.options import OWN, RECORD, SimulationOptions
from specbench_kit.serving.schedulers.base import parse_scheduler, schedulers
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import ServingSystem, systems
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.sweep.axes import with_options

MOST_POINTS = 2000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServingSeries:
    """One system as it is served, beside others; an acceptance of None is the trace that is recorded first."""

    label: str
    system: str
    scheduler: str
    method: str
    acceptance: str | None
    deployment: str

    @property
    def serves(self) -> ServingSystem:
        """The system."""
        return systems.get(self.system)

    def has_guard(self) -> bool:
        """Whether its scheduler keeps a guard time."""
        options = fields(schedulers.get(self.scheduler.partition(":")[0]))
        return any(option.name == "guard_s" for option in options)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One series at one place of the grid."""

    series: ServingSeries
    devices: int
    slo: str
    slo_scale: float = 1.0
    estimator_factor: float = 1.0
    estimator_noise: float = 0.0
    guard_s: float | None = None

    @property
    def scheduler(self) -> str:
        """Its scheduler with the guard time of this place."""
        spec = self.series.scheduler
        if self.guard_s is None:
            return spec
        return with_options(spec, {f"{spec.partition(':')[0]}.guard_s": self.guard_s})

    def values(self) -> dict[str, Any]:
        """Its place on every axis."""
        return {axis: getattr(self, axis) for axis in AXES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(SimulationOptions):
    """Checked when made; `recording` says how the trace is made where one has to be recorded first."""

    recording: BenchSettings
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise SkitError(f"--seeds must be at least 1, not {self.seeds}")
        if self.jobs == 0:
            raise SkitError("--jobs must be a number of processes, or -1 for one on every core")
        for axis in AXES:
            values = getattr(self, axis)
            if len(set(values)) < len(values):
                raise SkitError(f"{axis}: a value is given twice")
        for slo in self.slo:
            parse_slo(slo)
        for value in self.slo_scale:
            if value <= 0:
                raise SkitError(f"--slo-scale must be above 0, not {value:g}")

    @property
    def records(self) -> bool:
        """Whether a trace has to be recorded first."""
        return any(one.acceptance is None for one in self.series())

    def series(self) -> list[ServingSeries]:
        """Every row of the comparison, checked."""
        names = ("system", "scheduler", "method", "acceptance", "deployment")
        count = max(len(getattr(self, name)) for name in names)
        columns = [_spread(name, getattr(self, name), count) for name in names]
        rows = [_resolve(*row) for row in zip(*columns, strict=True)]
        labels = self.label or _labels([dict(zip(names, row, strict=True)) for row in rows])
        if len(labels) != len(rows) or len(set(labels)) < len(labels):
            raise SkitError(f"{len(rows)} systems need as many different labels: give --label once for each")
        return [ServingSeries(label, *row) for label, row in zip(labels, rows, strict=True)]

    def points(self) -> list[GridPoint]:
        """The whole grid, series by series."""
        found = [point for series in self.series() for point in self._points(series)]
        if len(found) > MOST_POINTS:
            raise SkitError(f"{len(found)} simulations for every seed are more than {MOST_POINTS}: vary less at once")
        return found

    def described(self) -> dict[str, Any]:
        """What decides the outcome, besides models and data."""
        left_out = {"recording", "out", "argv", "jobs", "backend"}
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def _points(self, series: ServingSeries) -> Iterator[GridPoint]:
        guards: Sequence[float | None] = self.guard_s if self.guard_s and series.has_guard() else (None,)
        for slo, scale, factor, noise, guard_s, devices in product(
            self.slo, self.slo_scale, self.estimator_factor, self.estimator_noise, guards, self.devices
        ):
            point = GridPoint(series, devices, slo, scale, factor, noise, guard_s)
            parse_scheduler(point.scheduler)
            yield point


def _spread(name: str, values: tuple[T, ...], count: int) -> tuple[T, ...]:
    if len(values) not in (1, count):
        raise SkitError(
            f"--{name} is given {len(values)} times for {count} systems: give it once, or once for each of them"
        )
    return values * (count // len(values))


def _resolve(system: str, scheduler: str, method: str, acceptance: str, deployment: str) -> tuple[Any, ...]:
    served = systems.get(system)
    if deployment == LOCAL:
        raise SkitError("a simulation needs latency models: choose a --deployment from skit list deployments")
    spec = served.scheduler if scheduler == OWN else scheduler
    way = served.method if method == OWN else method
    parse_scheduler(spec)
    parse_method(way)
    if acceptance != RECORD:
        parse_rates(acceptance)
    return system, spec, way, None if acceptance == RECORD else acceptance, deployment


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The system, and whatever else sets rows of one system apart."""
    several = [name for name in rows[0] if name != "system" and len({row[name] for row in rows}) > 1]
    needed = len({row["system"] for row in rows}) < len(rows)
    return [", ".join([row["system"], *(row[name] or RECORD for name in several if needed)]) for row in rows]
