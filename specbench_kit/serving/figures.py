"""What serving summaries hold: the figures of simulations, of one or over seeds, and the axes of
their grids.

The figures of one simulation are numbers (`Figures`), those over seeds intervals (`SeedFigures`).
Imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypedDict, TypeVar

from msgspec import Meta, Struct

from specbench_kit.metrics.vocabulary import Percentiles

N = TypeVar("N")
"""A number of one simulation, or its interval over seeds."""


class Interval(Struct, frozen=True):
    """A mean over seeds with its 95% interval, which neither a single seed nor a figure derived
    from others has.
    """

    mean: Annotated[float, Meta(description="mean over seeds, or the figure itself")]
    low: Annotated[
        float | None,
        Meta(
            description="lower end of the 95% interval; null for a single seed, and for a figure derived from "
            "others"
        ),
    ] = None
    high: Annotated[
        float | None,
        Meta(
            description="upper end of the 95% interval; null for a single seed, and for a figure derived from "
            "others"
        ),
    ] = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return both ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def is_higher(higher: Interval, lower: Interval) -> bool:
    """Return whether the intervals show a difference."""
    return higher.low is not None and lower.high is not None and higher.low > lower.high


class ResponseLatencies(Struct, Generic[N], kw_only=True):
    """What the users of one group of devices wait for, in seconds."""

    ttft_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds from a response's arrival to its first tokens, over finished responses; null "
            "without any"
        ),
    ]
    tpot_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds per output token after the first, over finished responses of several tokens; "
            "null without any"
        ),
    ]
    icl_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="inter-chunk latency, as AIPerf calls it and vLLM counts its inter-token latency: "
            "seconds between two arrivals of a response, where the tokens of a round arrive "
            "together and count as one; null without any"
        ),
    ]
    itl_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="inter-token latency: seconds between two tokens of a response, where the tokens of a "
            "round share the gap before them equally; null without any, and of earlier versions"
        ),
    ] = None
    response_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds from a response's arrival to its last token, over finished responses; null "
            "without any"
        ),
    ]


class GroupFigures(ResponseLatencies[N], Generic[N]):
    """The figures of one group of devices after the warm-up."""

    responses: Annotated[
        N, Meta(description="responses that fell due after the warm-up, finished or not")
    ]
    violation_rate: Annotated[
        N | None,
        Meta(
            description="share of the responses that fell due that broke their SLO, each counted once; null "
            "if none fell due"
        ),
    ]
    starved_rate: Annotated[
        N | None,
        Meta(
            description="the same, where a response that is not there after k times its allowed time counts k "
            "times; null if none fell due"
        ),
    ]
    rounds: Annotated[N, Meta(description="rounds whose deadline lay before the end")]
    deadline_miss_rate: Annotated[
        N | None,
        Meta(
            description="share of these rounds that were verified after their deadline; null without such "
            "rounds"
        ),
    ]
    slow_round_rate: Annotated[
        N | None,
        Meta(
            description="share of these rounds whose accepted tokens and the token after them, over the time "
            "from the beginning of drafting to the answer, are slower than promised; null without "
            "such rounds"
        ),
    ]
    throughput: Annotated[N, Meta(description="committed tokens per second")]
    goodput: Annotated[
        N,
        Meta(
            description="committed tokens per second, times the share of committed tokens that is of "
            "responses that kept their SLO, among those that fell due"
        ),
    ]
    acceptance_length: Annotated[
        N | None,
        Meta(description="mean committed tokens per verified round; null without such rounds"),
    ]
    submitted_per_verify: Annotated[
        N | None,
        Meta(
            description="mean drafted tokens that a verified round submits; null without such rounds"
        ),
    ]
    speed: Annotated[
        Percentiles[N] | None,
        Meta(
            description="tokens per second of finished responses, each over its whole time; null without any"
        ),
    ]
    queue_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds from the arrival of a round at the server to the beginning of its "
            "verification; null without any"
        ),
    ]
    verify_s: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds that the verification of a round took, in its batch; null without any"
        ),
    ]
    interference: Annotated[
        Percentiles[N] | None,
        Meta(
            description="seconds of a verification in its batch / seconds of the same alone; null without any"
        ),
    ]


class ClassFigures(GroupFigures[N], Generic[N]):
    """The figures of the devices of one SLO class."""

    promised_speed: Annotated[N, Meta(description="tokens per second that the class is promised")]


class MissCauses(Struct, Generic[N]):
    """Verified rounds that missed their deadline, by cause: their own batch, or the queue."""

    window: Annotated[
        N,
        Meta(
            description="number of batches in the moving mean of batch times that a batch is held against"
        ),
    ]
    compute_dominant: Annotated[
        N, Meta(description="rounds whose batch took more than 1.5 times that moving mean")
    ]
    queue_dominant: Annotated[N, Meta(description="all other rounds that missed their deadline")]


class ServerLoad(Struct, Generic[N]):
    """Load, batches, evictions and idle time of all servers together."""

    utilisation: Annotated[
        N, Meta(description="share of the time after the warm-up in which servers verify, 0 to 1")
    ]
    batches: Annotated[N, Meta(description="batches that began after the warm-up")]
    batch_size: Annotated[
        Percentiles[N] | None, Meta(description="requests in a batch; null without batches")
    ]
    left_waiting: Annotated[
        Percentiles[N] | None,
        Meta(description="requests left waiting when a batch began; null without batches"),
    ]
    estimate_over_true: Annotated[
        N | None,
        Meta(
            description="mean of the scheduler's estimate of a batch's time / its time; null without batches"
        ),
    ]
    refusals: Annotated[
        N,
        Meta(
            description="decisions of an idle server to verify nothing while requests waited, in the whole "
            "simulation"
        ),
    ]
    idle_while_waiting_s: Annotated[
        N, Meta(description="seconds that servers stood idle so, in the whole simulation")
    ]
    evictions: Annotated[
        N, Meta(description="sessions whose KV was evicted, in the whole simulation")
    ]
    evictions_per_response: Annotated[
        N, Meta(description="evictions per response that ended, in the whole simulation")
    ]
    peak_kv_tokens: Annotated[
        N, Meta(description="most tokens whose KV a server held at once, in the whole simulation")
    ]


class ServerShare(Struct, Generic[N]):
    """What one server of a pool does."""

    utilisation: Annotated[
        N,
        Meta(
            description="share of the time after the warm-up in which the server verifies, 0 to 1"
        ),
    ]
    rounds_share: Annotated[
        N | None,
        Meta(
            description="its share of all rounds that are verified after the warm-up; null without any"
        ),
    ]
    tokens_share: Annotated[
        N | None,
        Meta(description="its share of the tokens that these rounds commit; null without any"),
    ]
    batches: Annotated[N, Meta(description="its batches that began after the warm-up")]
    batch_size: Annotated[
        N | None, Meta(description="mean requests in its batches; null without batches")
    ]
    away_s: Annotated[N, Meta(description="seconds after the warm-up in which the server was away")]
    moved: Annotated[
        N,
        Meta(
            description="sessions that left it by the router's choice, with KV that had to be computed again "
            "elsewhere, in the whole simulation"
        ),
    ]
    lost: Annotated[
        N,
        Meta(
            description="sessions that left it because it failed, with KV that had to be computed again "
            "elsewhere, in the whole simulation"
        ),
    ]


class SteadyState(Struct, Generic[N]):
    """Whether the server was in a steady state after the warm-up."""

    drift: Annotated[
        N | None,
        Meta(
            description="relative growth of throughput from the first to the second half of the time after "
            "the warm-up; null if the first half commits nothing"
        ),
    ]
    steady: Annotated[bool, Meta(description="whether the drift is at most 5% in either direction")]
    warm_up_left_s: Annotated[
        N,
        Meta(
            description="seconds of warm-up, by the marginal standard error rule (MSER), that are counted in "
            "the figures"
        ),
    ]


class TimeSeries(Struct):
    """The course of a simulation: one value for each of equal spans of time."""

    at_s: Annotated[
        list[float | None], Meta(description="middle of each span, in seconds since the start")
    ]
    draft_length: Annotated[
        list[float | None],
        Meta(
            description="mean tokens submitted to a verification that began in the span; null if none did"
        ),
    ]
    batch_size: Annotated[
        list[float | None],
        Meta(description="mean requests in a batch that began in the span; null if none did"),
    ]
    left_waiting: Annotated[
        list[float | None],
        Meta(
            description="mean requests left waiting when a batch began in the span; null if none did"
        ),
    ]
    load: Annotated[
        list[float | None], Meta(description="share of the span in which servers are busy, 0 to 1")
    ]
    tokens_per_s: Annotated[list[float | None], Meta(description="committed tokens per second")]


class ServingCost(Struct, Generic[N], kw_only=True):
    """Prices and energy after the warm-up.

    Energy is that of working at full power.
    """

    energy_j: Annotated[
        N | None,
        Meta(
            description="joules of servers while they verify and of devices while they draft; null where a "
            "power is not known"
        ),
    ]
    joules_per_token: Annotated[
        N | None,
        Meta(
            description="joules per committed token; null where no energy is known, and without tokens"
        ),
    ]
    server_joules_per_token: Annotated[
        N | None,
        Meta(
            description="joules of the servers per committed token; null where a server's power is not known, "
            "and without tokens"
        ),
    ] = None
    device_joules_per_token: Annotated[
        N | None,
        Meta(
            description="joules of the devices per committed token, 0 where they draft nothing; null where a "
            "device's power is not known, and without tokens"
        ),
    ] = None
    joules_per_device_hour: Annotated[
        N | None,
        Meta(
            description="mean joules of a device per hour, 0 where they draft nothing; null where a device's "
            "power is not known"
        ),
    ] = None
    edge_busy_s: Annotated[N, Meta(description="seconds of drafting, summed over rounds")]
    price: Annotated[
        N,
        Meta(description="dollars for the servers all the time and for devices while they draft"),
    ]
    tokens_per_price: Annotated[
        N | None, Meta(description="committed tokens per dollar of 'price'; null if that is 0")
    ]
    rented_price: Annotated[
        N,
        Meta(
            description="dollars for the servers and, where devices draft, for the devices all the time"
        ),
    ]
    tokens_per_rented_price: Annotated[
        N | None,
        Meta(description="committed tokens per dollar of 'rented_price'; null if that is 0"),
    ]


class ServingFigures(Struct, Generic[N], omit_defaults=True):
    """All figures of a simulation after its warm-up."""

    overall: Annotated[GroupFigures[N], Meta(description="figures of all devices")]
    classes: Annotated[
        dict[str, ClassFigures[N]],
        Meta(description="figures of the devices of each SLO class, by its name"),
    ]
    kinds: Annotated[
        dict[str, GroupFigures[N]],
        Meta(description="figures of each kind of device, by its name, if there are several"),
    ]
    violations: Annotated[
        MissCauses[N], Meta(description="rounds that missed their deadline, by cause")
    ]
    server: Annotated[ServerLoad[N], Meta(description="load of all servers together")]
    steady: Annotated[SteadyState[N], Meta(description="whether the server was in a steady state")]
    over_time: Annotated[TimeSeries, Meta(description="the course of the simulation")]
    cost: Annotated[ServingCost[N], Meta(description="prices and energy")]
    pool: Annotated[
        dict[str, ServerShare[N]],
        Meta(description="figures of each server by name, if there are several"),
    ] = {}
    device_wait_share: Annotated[
        N | None,
        Meta(
            description="share of the time of responses for which they waited for a device that was still "
            "busy; null where requests arrive only after earlier ones are answered"
        ),
    ] = None


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


class PointFields(TypedDict):
    """A series at one point of the grid, whatever its load, by the names of the fields."""

    series: str
    slo: str
    slo_scale: float
    estimator_factor: float
    estimator_noise: float
    guard_s: float | None


class ServingPoint(Struct, kw_only=True, omit_defaults=True):
    """A series at one point of the grid."""

    series: Annotated[str, Meta(description="label of the series")]
    devices: Annotated[
        int | None,
        Meta(description="number of devices; null in a search for capacity"),
    ] = None
    slo: Annotated[
        str, Meta(description="promised tokens per second, a class, or a mix of them with shares")
    ]
    slo_scale: Annotated[float, Meta(description="factor on the promised time per token")]
    estimator_factor: Annotated[
        float,
        Meta(description="bias of the scheduler's estimator: predicted / true time of a batch"),
    ]
    estimator_noise: Annotated[
        float,
        Meta(
            description="standard deviation of the log-normal noise on the estimate of each request's time"
        ),
    ]
    guard_s: Annotated[
        float | None,
        Meta(
            description="guard time of the scheduler in seconds; null for schedulers without one, and if none "
            "that was tried is enough"
        ),
    ]

    def at(self, axis: str) -> AxisValue:
        """Return the value on one of `AXES`."""
        value: AxisValue = getattr(self, axis)
        return value

    @property
    def without_load(self) -> PointFields:
        """The fields that name the point, but for its load."""
        return {
            "series": self.series,
            "slo": self.slo,
            "slo_scale": self.slo_scale,
            "estimator_factor": self.estimator_factor,
            "estimator_noise": self.estimator_noise,
            "guard_s": self.guard_s,
        }

    @property
    def place(self) -> tuple[AxisValue, ...]:
        """The values on all axes, without the series."""
        return tuple(self.at(axis) for axis in AXES)


class SimulatedRow(ServingPoint, kw_only=True):
    """The figures of a simulated point over the seeds."""

    figures: Annotated[SeedFigures, Meta(description="the figures over seeds")]


class TriedLoad(Struct, frozen=True):
    """One load of a search for capacity, and what it showed when the run was stopped."""

    load: Annotated[
        Real,
        Meta(
            description="the load: devices, or requests per second where requests arrive whether or not "
            "others are done"
        ),
    ]
    rate: Annotated[
        float, Meta(description="share of the responses that fell due that broke their SLO")
    ]
    low: Annotated[float, Meta(description="lower end of the interval of that share")]
    high: Annotated[float, Meta(description="upper end of the interval of that share")]
    responses: Annotated[int, Meta(description="responses that fell due after the warm-up")]
    simulated_s: Annotated[float, Meta(description="simulated seconds, warm-up included")]
    settled: Annotated[
        bool,
        Meta(
            description="whether the interval lay on one side of epsilon; if it never does, the rate itself "
            "decides"
        ),
    ]
    holds: Annotated[
        bool,
        Meta(
            description="whether the load counts as served: the rate is at most epsilon, and the run is "
            "steady"
        ),
    ]
    steady: Annotated[
        bool,
        Meta(
            description="false for a run that still drifts at its end, which is asked where the rate is at "
            "most epsilon"
        ),
    ] = True
    latencies: Annotated[
        dict[str, ResponseLatencies[Real]],
        Meta(
            description="latencies of all responses together ('all') and, where several speeds are promised, "
            "by class; empty in files of earlier versions"
        ),
    ] = {}
    pool: Annotated[
        dict[str, ServerShare[Real]],
        Meta(
            description="what each server does, by name, if there are several; empty in files of earlier "
            "versions"
        ),
    ] = {}


class SeedSearch(Struct, frozen=True):
    """The capacity that was found with one seed."""

    load: Annotated[
        Real,
        Meta(description="highest load that was served, in the unit of the row; 0 if none was"),
    ]
    trials: Annotated[
        list[TriedLoad], Meta(description="the loads that were tried, in their order")
    ]
    bounded: Annotated[bool, Meta(description="whether even the highest load was served")] = False

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
    """The capacity of a series over the seeds, or why nothing can be served."""

    capacity: Annotated[Interval, Meta(description="highest load that is served, over seeds")]
    unit: Annotated[
        str,
        Meta(
            description="unit of the capacity: devices, or requests/s where requests arrive whether or not "
            "others are done"
        ),
    ]
    response_s: Annotated[
        Percentiles[Interval] | None,
        Meta(description="seconds of whole responses at the capacity; null if nothing is served"),
    ] = None
    latencies: Annotated[
        dict[str, ResponseLatencies[Interval]] | None,
        Meta(
            description="latencies at the capacity, of all responses together ('all') and, where several "
            "speeds are promised, by class; null if nothing is served"
        ),
    ] = None
    pool: Annotated[
        dict[str, ServerShare[Interval]],
        Meta(description="what each server does at the capacity, by name, if there are several"),
    ] = {}
    monotone: Annotated[
        bool | None,
        Meta(
            description="whether every load that was tried is served up to the first that is not, with all "
            "seeds; null if refused"
        ),
    ] = None
    steady: Annotated[
        float | None,
        Meta(description="share of the tried loads whose run was steady; null if refused"),
    ] = None
    bounded: Annotated[
        bool | None,
        Meta(description="whether even the highest load was served with a seed; null if refused"),
    ] = None
    settled: Annotated[
        float | None,
        Meta(description="share of the tried loads that were settled; null if refused"),
    ] = None
    simulated_s: Annotated[
        float | None, Meta(description="simulated seconds of all tried loads; null if refused")
    ] = None
    refused: Annotated[
        str, Meta(description="why nothing can be served; empty if the search was made")
    ] = ""
    seeds: Annotated[list[SeedSearch], Meta(description="the search with each seed")]


class SeriesDifference(ServingPoint, kw_only=True):
    """A series compared with the first one at the same point, seed by seed."""

    against: Annotated[str, Meta(description="label of the first series")]
    throughput_ratio: Annotated[
        Interval | None,
        Meta(
            description="throughput of this series / of the first one; null if the first commits nothing"
        ),
    ]
    violation_difference: Annotated[
        Interval | None,
        Meta(
            description="violation rate of this series - of the first one; null if either has none"
        ),
    ]


class FigureEnd(Struct):
    """Figures of a point at one end of what derived times may be."""

    throughput: Annotated[
        float,
        Meta(
            description="committed tokens per second with the first seed; 0 if the promise cannot be kept at "
            "this end"
        ),
    ]
    violation_rate: Annotated[
        float | None,
        Meta(
            description="share of the responses that fell due that broke their SLO; 1 if the promise cannot "
            "be kept at this end; null if none fell due"
        ),
    ]


class FigureRange(ServingPoint, kw_only=True):
    """The figures of a point at the ends of derived times."""

    ends: Annotated[dict[str, FigureEnd], Meta(description="figures at each end, by its name")]
    throughput: Annotated[
        tuple[float, float] | None,
        Meta(
            description="least and most committed tokens per second: at the ends, and the mean that is "
            "shown; null if none is known"
        ),
    ]
    violation_rate: Annotated[
        tuple[float, float] | None,
        Meta(
            description="least and most violation rate: at the ends, and the mean that is shown; null if none "
            "is known"
        ),
    ]
    against: Annotated[
        str | None,
        Meta(description="label of the first series at the same point; null without a ratio to it"),
    ]
    throughput_ratio: Annotated[
        tuple[float, float] | None,
        Meta(
            description="least and most ratio of throughput to that of 'against'; null for the first series, "
            "and if that commits nothing"
        ),
    ]


class CapacityRange(ServingPoint, kw_only=True):
    """The capacity of a series at the ends of derived times."""

    unit: Annotated[str, Meta(description="unit of the capacity: devices, or requests/s")]
    mean: Annotated[float, Meta(description="mean capacity over seeds")]
    ends: Annotated[dict[str, float], Meta(description="capacity at each end, by its name")]
    capacity: Annotated[
        tuple[float, float],
        Meta(description="least and most capacity: at the ends, and the mean over seeds"),
    ]
    against: Annotated[
        str | None,
        Meta(
            description="label of the series with the highest capacity in the same setting; null without a "
            "ratio to it"
        ),
    ]
    capacity_ratio: Annotated[
        tuple[float, float] | None,
        Meta(
            description="least and most ratio of capacity to that of 'against'; null for that series, and if "
            "it serves nothing"
        ),
    ]


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


def mean_of(row: object, path: str) -> float | None:
    """Return the mean of the estimate at `path`."""
    mean: float | None = look_up(row, f"{path}.mean")
    return mean
