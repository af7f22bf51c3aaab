"""The settings of simulations, as the command line or a preset gives them, and the grid of points
that they span.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import product

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.slo_names import slo_of_option
from specbench_kit.deployments.loading import LOCAL
from specbench_kit.methods.spec import parse_method, with_options
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.serving.acceptance_spec import parse_rates
from specbench_kit.serving.arrival_spec import parse_arrivals
from specbench_kit.serving.arrivals import ArrivalProcess
from specbench_kit.serving.figures import AXES, AxisValue, PointFields
from specbench_kit.serving.options import DEFAULT_ROUTER, OWN, RECORD, SimulationOptions
from specbench_kit.serving.pool_spec import parse_outage, parse_servers
from specbench_kit.serving.routers.base import parse_router
from specbench_kit.serving.schedulers.base import parse_scheduler, schedulers
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import ServingSystem, systems
from specbench_kit.studies.recording.settings import RecordingSettings

MOST_POINTS = 2000
MOST_DEVICES = 50_000
CLOSED = "closed"
PLAIN = "centralized"
"""The system that decodes without drafts."""
SERIES_OPTIONS = ("system", "scheduler", "method", "acceptance", "deployment", "servers", "router")
"""Options that are given once for all series, or once for each."""


@dataclass(frozen=True, slots=True)
class ServingSeries:
    """One system of a comparison; an acceptance of None is the trace that is recorded first."""

    label: str
    system: str
    scheduler: str
    method: str
    acceptance: str | None
    deployment: str
    servers: str = "1"
    router: str = DEFAULT_ROUTER

    @property
    def serves(self) -> ServingSystem:
        """The system."""
        return systems.get(self.system)

    @property
    def decides_for_batch(self) -> bool:
        """True if its server drafts, and the method decides for the whole batch how far."""
        return self.serves.drafting == "server" and parse_method(self.method).batch_aware

    def has_guard(self) -> bool:
        """Return True if its scheduler has a guard time."""
        options = fields(schedulers.get(self.scheduler.partition(":")[0]))
        return any(option.name == "guard_s" for option in options)


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One series at one point of the grid."""

    series: ServingSeries
    devices: int
    slo: str
    slo_scale: float = 1.0
    estimator_factor: float = 1.0
    estimator_noise: float = 0.0
    guard_s: float | None = None

    @property
    def scheduler(self) -> str:
        """The series' scheduler with the guard time of this point."""
        spec = self.series.scheduler
        if self.guard_s is None:
            return spec
        return with_options(spec, {f"{spec.partition(':')[0]}.guard_s": self.guard_s})

    @property
    def without_load(self) -> PointFields:
        """The fields that name the point in a row, but for its load."""
        return {
            "series": self.series.label,
            "slo": self.slo,
            "slo_scale": self.slo_scale,
            "estimator_factor": self.estimator_factor,
            "estimator_noise": self.estimator_noise,
            "guard_s": self.guard_s,
        }

    def coordinates(self) -> dict[str, AxisValue]:
        """Return the point's value on every axis."""
        return {axis: getattr(self, axis) for axis in AXES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(SimulationOptions):
    """Checked settings; `recording` says how the trace is recorded if there has to be one first."""

    recording: RecordingSettings = field(default_factory=RecordingSettings)
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.seeds >= 1, f"--seeds must be at least 1, not {self.seeds}")
        require(self.jobs != 0, "--jobs must be a number of processes, or -1 for one on every core")
        for axis in (*AXES, "concurrency"):
            values = getattr(self, axis)
            require(len(set(values)) == len(values), f"{axis}: a value is given twice")
        for outage in self.outage:
            parse_outage(outage)
        for slo in self.promises:
            parse_slo(slo)
        require(len(set(self.promises)) == len(self.promises), "--slo: a speed is given twice")
        for scale in self.slo_scale:
            require(scale > 0, f"--slo-scale must be above 0, not {scale:g}")
        require(
            not self.concurrency or self.arrivals == CLOSED,
            f"--concurrency cannot go with --arrivals {self.arrivals}: it says how many requests are in flight; give "
            "--devices, or leave out one of them",
        )

    @property
    def records(self) -> bool:
        """True if a trace has to be recorded first."""
        return any(series.acceptance is None for series in self.series())

    @property
    def promises(self) -> tuple[str, ...]:
        """The promised speeds as results name them."""
        return tuple(map(slo_of_option, self.slo))

    @property
    def arrival_process(self) -> ArrivalProcess:
        """Arrivals of requests."""
        return parse_arrivals(self.arrivals, self.arrivals_scale)

    @property
    def loads(self) -> tuple[int, ...]:
        """The numbers of devices that are simulated: those that are given, or as many as the
        requests need.
        """
        given = self.devices or self.concurrency
        if given:
            return given
        needed = self.arrival_process.devices_for(self.duration_s)
        require(
            needed <= MOST_DEVICES,
            f"--arrivals {self.arrivals}: the requests of {self.duration_s:g} s are those of {needed:,} devices, and a "
            f"simulation has up to {MOST_DEVICES:,}: simulate for a shorter --duration, or give --devices",
        )
        return (needed,)

    @property
    def device_s(self) -> float:
        """Simulated seconds of all devices in all points with all seeds."""
        return self.seeds * self.duration_s * sum(point.devices for point in self.points())

    def series(self) -> list[ServingSeries]:
        """Return every series of the comparison, checked."""
        count = max(len(getattr(self, name)) for name in SERIES_OPTIONS)
        columns = []
        for name in SERIES_OPTIONS:
            values: tuple[str, ...] = getattr(self, name)
            require(
                len(values) in (1, count),
                f"--{name} is given {len(values)} times for {count} systems: give it once, or once for each of them",
            )
            columns.append(values * (count // len(values)))
        rows = [_resolve(*row) for row in self._without_drafts(zip(*columns, strict=True))]
        _require_drafting(self.method, rows)
        labels = self.label or _labels(rows)
        if len(labels) != len(rows) or len(set(labels)) < len(labels):
            raise SkitError(
                f"{len(rows)} systems need as many different labels: give --label once for each"
            )
        return [ServingSeries(label, *row) for label, row in zip(labels, rows, strict=True)]

    def _without_drafts(
        self, rows: Iterable[tuple[str, str, str, str, str, str, str]]
    ) -> Iterator[tuple[str, str, str, str, str, str, str]]:
        """Yield the series, autoregressive decoding beside other methods under the system that
        does not draft: one system was named for all of them, and it is what the others are held
        against.
        """
        for system, scheduler, method, *others in rows:
            acceptance, deployment, servers, router = others
            is_rival = method == BASELINE and len(self.method) > 1 and len(self.system) == 1
            drafts = systems.get(system).drafting != "none"
            served_by = PLAIN if is_rival and drafts else system
            yield served_by, scheduler, method, acceptance, deployment, servers, router

    def points(self) -> list[GridPoint]:
        """Return all points of the grid, series by series."""
        points = []
        require(
            not self.guard_s or any(series.has_guard() for series in self.series()),
            "--guard has no effect: none of the schedulers has a guard time; leave it out",
        )
        for series in self.series():
            guards: Sequence[float | None] = (
                self.guard_s if self.guard_s and series.has_guard() else (None,)
            )
            for slo, scale, factor, noise, guard_s, devices in product(
                self.promises,
                self.slo_scale,
                self.estimator_factor,
                self.estimator_noise,
                guards,
                self.loads,
            ):
                point = GridPoint(series, devices, slo, scale, factor, noise, guard_s)
                parse_scheduler(point.scheduler)
                points.append(point)
        if len(points) > MOST_POINTS:
            raise SkitError(
                f"{len(points)} simulations for every seed are more than {MOST_POINTS}: vary less at once"
            )
        return points

    def described(self) -> OptionValues:
        """Return all settings that the results depend on, besides models and data."""
        without_effect = {"recording", "out", "argv", "jobs", "backend", "resume"}
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in without_effect
        }
        values |= {"devices": self.loads, "slo": self.promises}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


Row = tuple[str, str, str, str | None, str, str, str]
"""Values of `SERIES_OPTIONS`."""


def _resolve(
    system: str,
    scheduler: str,
    method: str,
    acceptance: str,
    deployment: str,
    servers: str,
    router: str,
) -> Row:
    """Return the options of one series with the system's own scheduler and method filled in,
    checked.
    """
    serves = systems.get(system)
    if deployment == LOCAL:
        raise SkitError(
            "a simulation needs latency models: choose a --deployment from skit list deployments"
        )
    scheduler = serves.scheduler if scheduler == OWN else scheduler
    method = serves.method if method == OWN else method
    parse_scheduler(scheduler)
    parse_method(method)
    parse_servers(servers)
    parse_router(router)
    if acceptance == RECORD:
        return system, scheduler, method, None, deployment, servers, router
    parse_rates(acceptance)
    return system, scheduler, method, acceptance, deployment, servers, router


def _require_drafting(stated: Sequence[str], rows: Sequence[Row]) -> None:
    """Raise SkitError for a stated method that drafts, under systems none of which does."""
    given = [*stated] * len(rows) if len(stated) == 1 else stated
    named = [(system, method) for (system, *_), method in zip(rows, given, strict=True)]
    drafts = {method for system, method in named if systems.get(system).drafting != "none"}
    for system, method in named:
        require(
            method == OWN or method in drafts or not parse_method(method).uses_drafter,
            f"--method {method} changes nothing: system {system} does not draft; leave it out, or name a system that "
            "does, such as wisp or adaspec",
        )


def _labels(rows: Sequence[Row]) -> list[str]:
    """Return labels of the system, and of what sets several series of one system apart.

    Where a single system drafts by another method than its own, the label has the method, whose
    result it is.
    """
    if len(rows) == 1:
        system, _, method, *_ = rows[0]
        return [system if method == systems.get(system).method else f"{system}, {method}"]
    if len({row[0] for row in rows}) == len(rows):
        return [row[0] for row in rows]
    columns = list(zip(*rows, strict=True))
    varied = [index for index in range(1, len(SERIES_OPTIONS)) if len(set(columns[index])) > 1]
    return [_label(row, varied) for row in rows]


def _label(row: Row, varied: Sequence[int]) -> str:
    """Return the label of a series: its system, and the values of the options that vary."""
    return ", ".join([row[0], *(_in_label(index, row[index] or RECORD) for index in varied)])


def _in_label(index: int, value: str) -> str:
    """Return the value of a series' option as its label has it: a bare number of servers would say
    nothing.
    """
    if SERIES_OPTIONS[index] == "servers" and value.isdigit():
        return f"{value} {'server' if value == '1' else 'servers'}"
    return value
