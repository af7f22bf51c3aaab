"""What serving summaries hold: the figures of simulations, of one or over seeds, and the axes of
their grids.

The figures of one simulation are numbers (`Figures`), those over seeds intervals (`SeedFigures`).
Imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.vocabulary import Percentiles

N = TypeVar("N")
"""A number of one simulation, or its interval over seeds."""


class Interval(Struct, frozen=True):
    """A mean over seeds with its 95% interval, which neither a single seed nor a figure derived
    from others has.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return both ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class ResponseLatencies(Struct, Generic[N]):
    """What the users of one group of devices wait for; None where nothing of the kind arrived.

    `icl_s` is the inter-chunk latency, as AIPerf calls it and vLLM counts its inter-token latency: the time between two
    arrivals of a response, where the tokens of a round arrive together and count as one.
    """

    ttft_s: Percentiles[N] | None
    tpot_s: Percentiles[N] | None
    icl_s: Percentiles[N] | None
    response_s: Percentiles[N] | None


class GroupFigures(ResponseLatencies[N], Generic[N]):
    """The figures of one group of devices; rates are None where there is nothing to count."""

    responses: N
    violation_rate: N | None
    starved_rate: N | None
    rounds: N
    deadline_miss_rate: N | None
    slow_round_rate: N | None
    throughput: N
    goodput: N
    acceptance_length: N | None
    submitted_per_verify: N | None
    speed: Percentiles[N] | None
    queue_s: Percentiles[N] | None
    verify_s: Percentiles[N] | None
    interference: Percentiles[N] | None


class ClassFigures(GroupFigures[N], Generic[N]):
    """The figures of the devices of one SLO class."""

    promised_speed: N


class MissCauses(Struct, Generic[N]):
    """Rounds that missed their deadline because of their own batch, and because of the queue.

    A batch is to blame if it took long beside the moving mean of a `window` of batches.
    """

    window: N
    compute_dominant: N
    queue_dominant: N


class ServerLoad(Struct, Generic[N]):
    """Load, batches, evictions and idle time of the server."""

    utilisation: N
    batches: N
    batch_size: Percentiles[N] | None
    left_waiting: Percentiles[N] | None
    estimate_over_true: N | None
    refusals: N
    idle_while_waiting_s: N
    evictions: N
    evictions_per_response: N
    peak_kv_tokens: N


class ServerShare(Struct, Generic[N]):
    """What one server of a pool does: how busy it is, and its shares of all verified rounds and
    committed tokens.

    In the whole simulation, `moved` sessions left it by the router's choice, and `lost` ones
    because it failed, with KV that had to be computed again elsewhere.
    """

    utilisation: N
    rounds_share: N | None
    tokens_share: N | None
    batches: N
    batch_size: N | None
    away_s: N
    moved: N
    lost: N


class SteadyState(Struct, Generic[N]):
    """The growth of throughput after the warm-up, if that is steady, and warm-up that was
    counted.
    """

    drift: N | None
    steady: bool
    warm_up_left_s: N


class TimeSeries(Struct):
    """One value per span and quantity, None if nothing began in it; `at_s` is the middle of each
    span.

    The quantities are tokens submitted to a verification, requests in a batch, requests left
    waiting behind it, the share of time in which the server is busy, and committed tokens per
    second.
    """

    at_s: list[float | None]
    draft_length: list[float | None]
    batch_size: list[float | None]
    left_waiting: list[float | None]
    load: list[float | None]
    tokens_per_s: list[float | None]


class ServingCost(Struct, Generic[N], kw_only=True):
    """Prices and energy after the warm-up; None where no power or no price is known.

    `price` counts the servers all the time and devices while they draft; `rented_price` counts devices all the time.
    Energy is that of working at full power. The parts of servers and of devices are known each by itself; the devices'
    is 0 where they draft nothing, and `joules_per_device_hour` is its mean over all devices.
    """

    energy_j: N | None
    joules_per_token: N | None
    server_joules_per_token: N | None = None
    device_joules_per_token: N | None = None
    joules_per_device_hour: N | None = None
    edge_busy_s: N
    price: N
    tokens_per_price: N | None
    rented_price: N
    tokens_per_rented_price: N | None


class ServingFigures(Struct, Generic[N], omit_defaults=True):
    """All figures of a simulation after its warm-up; `pool` has those of each server if there are
    several.

    Where requests arrive whether or not earlier ones are answered, `device_wait_share` is the share
    of the time of responses for which they waited for a device that was still busy.
    """

    overall: GroupFigures[N]
    classes: dict[str, ClassFigures[N]]
    kinds: dict[str, GroupFigures[N]]
    violations: MissCauses[N]
    server: ServerLoad[N]
    steady: SteadyState[N]
    over_time: TimeSeries
    cost: ServingCost[N]
    pool: dict[str, ServerShare[N]] = {}
    device_wait_share: N | None = None


Real = int | float
Figures = ServingFigures[Real]
SeedFigures = ServingFigures[Interval]

AXES = ("devices", "slo", "slo_scale", "estimator_factor", "estimator_noise", "guard_s")
"""Settings besides the series that may take several values; a search for capacity has no
devices.
"""

AxisValue = str | int | float | None

FEWEST_SEEDS = 5
"""Seeds below which no verdict between systems is given."""


class ServingPoint(Struct, kw_only=True, omit_defaults=True):
    """A series at one point of the grid."""

    series: str
    devices: int | None = None
    slo: str
    slo_scale: float
    estimator_factor: float
    estimator_noise: float
    guard_s: float | None

    def at(self, axis: str) -> AxisValue:
        """Return the value on one of `AXES`."""
        value: AxisValue = getattr(self, axis)
        return value

    @property
    def place(self) -> tuple[AxisValue, ...]:
        """The values on all axes, without the series."""
        return tuple(self.at(axis) for axis in AXES)


class SimulatedRow(ServingPoint, kw_only=True):
    """The figures of a simulated point over the seeds."""

    figures: SeedFigures


class TriedLoad(Struct, frozen=True):
    """One load of a search: its violation rate with the interval when the run was stopped after
    `simulated_s`.

    It `settled` if the interval lay on one side of epsilon; if it never does, the rate itself
    decides. A run that still drifts at its end is not `steady`, and its load does not count as
    served (`holds`). `latencies` are those of all responses together and, where several speeds are
    promised, by class; `pool` is what each server does, if there are several. Files of earlier
    versions have neither.
    """

    load: Real
    rate: float
    low: float
    high: float
    responses: int
    simulated_s: float
    settled: bool
    holds: bool
    steady: bool = True
    latencies: dict[str, ResponseLatencies[Real]] = {}
    pool: dict[str, ServerShare[Real]] = {}


class SeedSearch(Struct, frozen=True):
    """The capacity that was found with one seed, and the loads tried; `bounded` if even the highest
    was served.
    """

    load: Real
    trials: list[TriedLoad]
    bounded: bool = False

    @property
    def monotone(self) -> bool:
        """True if every load that was tried is served up to the first that is not."""
        served = [trial.holds for trial in sorted(self.trials, key=lambda trial: trial.load)]
        return served == sorted(served, reverse=True)

    @property
    def at_capacity(self) -> TriedLoad | None:
        """The trial of the capacity; None if nothing is served."""
        return next(
            (trial for trial in self.trials if trial.load == self.load and trial.holds), None
        )


class SearchedRow(ServingPoint, kw_only=True):
    """The capacity of a series over the seeds, with the latencies at it by class; or why nothing
    can be served.

    `pool` is what each server does at the capacity if there are several.

    `monotone`: every load up to the first that was not served is served. `bounded`: even the highest load was served.
    `steady` and `settled` are shares of the trials.
    """

    capacity: Interval
    unit: str
    response_s: Percentiles[Interval] | None = None
    latencies: dict[str, ResponseLatencies[Interval]] | None = None
    pool: dict[str, ServerShare[Interval]] = {}
    monotone: bool | None = None
    steady: float | None = None
    bounded: bool | None = None
    settled: float | None = None
    simulated_s: float | None = None
    refused: str = ""
    seeds: list[SeedSearch]


class SeriesDifference(ServingPoint, kw_only=True):
    """A series compared with the first one at the same point, seed by seed."""

    against: str
    throughput_ratio: Interval | None
    violation_difference: Interval | None


class FigureEnd(Struct):
    """Figures of a point at one end of what derived times may be."""

    throughput: float
    violation_rate: float | None


class FigureRange(ServingPoint, kw_only=True):
    """The figures of a point at the ends of derived times, and the ratio of its throughput to that
    of `against`.
    """

    ends: dict[str, FigureEnd]
    throughput: tuple[float, float] | None
    violation_rate: tuple[float, float] | None
    against: str | None
    throughput_ratio: tuple[float, float] | None


class CapacityRange(ServingPoint, kw_only=True):
    """The capacity of a series at the ends of derived times, and its ratio to that of the series
    `against`.
    """

    unit: str
    mean: float
    ends: dict[str, float]
    capacity: tuple[float, float]
    against: str | None
    capacity_ratio: tuple[float, float] | None


def varied(rows: Sequence[ServingPoint]) -> list[str]:
    """Return the axes that take several values."""
    axes = []
    for axis in AXES:
        values = {row.at(axis) for row in rows}
        if len(values - {None}) > 1:
            axes.append(axis)
    return axes


def look_up(row: object, path: str) -> Any:
    """Return the value at `a.b.c`, a path that a published experiment names; None if a part of it
    is missing.
    """
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def mean_of(row: JsonObject, path: str) -> float | None:
    """Return the mean of the estimate at `path`."""
    mean: float | None = look_up(row, f"{path}.mean")
    return mean
