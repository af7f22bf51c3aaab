"""What a simulation and a search for capacity find and say of themselves, as reports and their
figures read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct, field

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.models.description import ModelDescription
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.papers.experiment import Assumed
from specbench_kit.papers.figure_row import Point
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.palette import LINES, MARKERS, OF_METHODS, Style
from specbench_kit.runs.document import MethodInputs, RunConfig, RunDescription
from specbench_kit.serving.figures import (
    AxisValue,
    CapacityRange,
    FigureRange,
    Interval,
    ResponseLatencies,
    SearchedRow,
    SeriesDifference,
    ServingPoint,
    SimulatedRow,
    varied,
)
from specbench_kit.serving.options import CapacityRule


class SimulationSummary(Struct, kw_only=True, omit_defaults=True):
    """The content of `summary.json` of a simulation."""

    axes: Annotated[
        dict[str, list[AxisValue]], Meta(description="values of the settings that vary, by axis")
    ]
    rows: Annotated[list[SimulatedRow], Meta(description="figures of every series at every point")]
    against_first: Annotated[
        list[SeriesDifference], Meta(description="every other series compared with the first one")
    ]
    knees: Annotated[
        list[ServingPoint],
        Meta(
            description="the number of devices, of each line over devices, at which the violation rate begins "
            "to rise"
        ),
    ]
    guards: Annotated[
        list[ServingPoint],
        Meta(
            description="the smallest guard time with which a wrong estimator serves as well as the exact one"
        ),
    ]
    ranges: Annotated[
        list[FigureRange],
        Meta(description="figures at the ends of derived times; empty if there are none"),
    ]
    published: Annotated[
        list[ComparedNumber],
        Meta(description="the numbers of a preset's paper beside the simulated ones"),
    ] = []


class CapacitySummary(Struct, kw_only=True, omit_defaults=True):
    """The content of `summary.json` of a search for capacity."""

    rule: Annotated[CapacityRule, Meta(description="the rule by which a load counts as served")]
    axes: Annotated[
        dict[str, list[AxisValue]], Meta(description="values of the settings that vary, by axis")
    ]
    rows: Annotated[
        list[SearchedRow], Meta(description="capacity of every series under every setting")
    ]
    guards: Annotated[
        list[ServingPoint],
        Meta(
            description="the smallest guard time with which a wrong estimator serves as well as the exact one"
        ),
    ]
    ranges: Annotated[
        list[CapacityRange],
        Meta(description="capacities at the ends of derived times; empty if there are none"),
    ]
    published: Annotated[
        list[ComparedNumber],
        Meta(description="the numbers of a preset's paper beside the simulated ones"),
    ] = []

    @property
    def unit(self) -> str:
        """The unit of capacities: devices, or a rate of arrivals."""
        return self.rows[0].unit


ServingSummary = SimulationSummary | CapacitySummary


class ServingConfig(RunConfig, kw_only=True):
    """The settings of a simulation that its report names."""

    seeds: Annotated[int, Meta(description="simulations of each point, with consecutive seeds")]
    duration_s: Annotated[float, Meta(description="simulated seconds, warm-up included")]
    warmup_s: Annotated[float, Meta(description="seconds at the start that no figure includes")]
    slo: Annotated[
        list[str],
        Meta(description="promised tokens per second, classes, or mixes of them with shares"),
    ]
    objective: Annotated[
        str,
        Meta(
            description="what a promised speed is measured by: 'speed', tokens over the whole response, or "
            "'tpot', time per token after the first"
        ),
    ]
    arrivals: Annotated[
        str,
        Meta(
            description="arrivals of requests: closed, poisson, waves or levels with their options, or the "
            "file of a trace"
        ),
    ]
    arrivals_scale: Annotated[
        float, Meta(description="factor on the arrival rate of a trace file")
    ] = 1.0
    prompt_tokens: Annotated[
        str | int | None,
        Meta(
            description="tokens of prompts: a number or a distribution; null for those of the arrivals, or as "
            "recorded"
        ),
    ] = None
    output_tokens: Annotated[
        str | int | None,
        Meta(
            description="tokens of outputs: a number or a distribution; null for those of the arrivals, or as "
            "recorded"
        ),
    ] = None
    link_trace: Annotated[
        str | None,
        Meta(description="file of a recorded link that all links follow; null if there is none"),
    ] = None
    shared_up_bytes_per_s: Annotated[
        float | None,
        Meta(
            description="bytes per second of one link that carries all messages to the server; null is "
            "unlimited"
        ),
    ] = None
    frame_s: Annotated[
        float,
        Meta(
            description="seconds that the server takes for each message, one after the other in each "
            "direction"
        ),
    ] = 0.0
    outage: Annotated[
        list[str], Meta(description="servers that are away, as SERVER:FROM:TO in simulated seconds")
    ] = field(default_factory=list)
    max_batch: Annotated[int, Meta(description="largest number of requests in a batch")]
    estimator_profile: Annotated[
        str | None,
        Meta(
            description="latency profile that the scheduler estimates with; null for the deployment's"
        ),
    ] = None


class TypicalDrafts(Struct):
    """Averages of a series' rounds, and the longest draft."""

    submitted: Annotated[float, Meta(description="mean drafted tokens that a round submits")]
    acceptance: Annotated[float, Meta(description="share of the submitted tokens that is accepted")]
    committed: Annotated[
        float,
        Meta(description="acceptance length: mean accepted tokens of a round and the bonus token"),
    ]
    longest: Annotated[int, Meta(description="tokens of the longest draft")]


class KvDescription(Struct):
    """The KV memory of the server that has least."""

    tokens: Annotated[
        float | None,
        Meta(description="tokens whose KV the server holds at once; null is unlimited"),
    ]
    context: Annotated[
        float | None, Meta(description="most tokens of one session; null is unlimited")
    ]
    origin: Annotated[str, Meta(description="where both come from")]


class RecordedAcceptance(Struct):
    """Whose acceptance was recorded."""

    models: Annotated[
        dict[str, ModelDescription | None], Meta(description="target and draft model, by role")
    ] = field(default_factory=dict)
    dataset: Annotated[
        DatasetDescription | None,
        Meta(description="the prompts that were recorded; null if they are not known"),
    ] = None


class SeriesDescription(Struct, kw_only=True):
    """One system of a simulation."""

    label: Annotated[str, Meta(description="label of the series")]
    system: Annotated[str, Meta(description="name of the serving system")]
    summary: Annotated[str, Meta(description="the system in words")]
    scheduler: Annotated[str, Meta(description="scheduler with its options")]
    method: Annotated[str, Meta(description="spec of the drafting method")]
    acceptance: Annotated[
        str | None,
        Meta(
            description="source of acceptance; null for the trace that the command recorded or bundles"
        ),
    ]
    typical: Annotated[TypicalDrafts, Meta(description="averages of the series' rounds")]
    deployment: Annotated[str, Meta(description="name of the deployment")]
    drafting: Annotated[
        str, Meta(description="where drafts are made: on the edge, on the server, or nowhere")
    ] = ""
    target: Annotated[
        str,
        Meta(
            description="model that the deployment's verifier runs; empty where its profile names none"
        ),
    ] = ""
    servers: Annotated[
        str, Meta(description="verification servers: their number, or their deployments or cards")
    ] = "1"
    router: Annotated[
        str, Meta(description="router, which chooses the server of each response")
    ] = ""
    recorded: Annotated[
        RecordedAcceptance | None,
        Meta(description="models and data set of the recorded acceptance; null if rates state it"),
    ] = None
    uses: Annotated[
        MethodInputs,
        Meta(description="predictor, thresholds and profiles that the method was prepared with"),
    ] = field(default_factory=dict)
    seen_prompts: Annotated[
        int | None,
        Meta(
            description="prompts of the trace that the method's predictor was trained on; null if it has "
            "none, or if that is not known"
        ),
    ] = None
    colocated_ratio: Annotated[
        float | None,
        Meta(
            description="speed of one request alone / of the same with the draft model on the server; null if "
            "that is not known, or if devices do not draft"
        ),
    ] = None
    kv: Annotated[KvDescription, Meta(description="KV memory of the server")]


class PresetDescription(Struct):
    """The published experiment that was repeated."""

    name: Annotated[str, Meta(description="name of the experiment")]
    summary: Annotated[str, Meta(description="the experiment in words")]
    source: Annotated[str, Meta(description="where the paper shows it")]
    against: Annotated[str, Meta(description="series that others are compared with")]
    reading: Annotated[str, Meta(description="what the comparison tells")]
    assumed: Annotated[list[Assumed], Meta(description="inputs that the paper does not give")]


class ServingDescription(RunDescription, kw_only=True):
    """What `run.json` says of a simulation or of a search for capacity."""

    config: Annotated[ServingConfig, Meta(description="the settings")]
    series: Annotated[list[SeriesDescription], Meta(description="the systems")]
    preset: Annotated[
        PresetDescription | None,
        Meta(description="the published experiment; null if none was repeated"),
    ] = None


NAMES = {
    "devices": "devices",
    "slo_scale": "SLO scale (times the time per token)",
    "estimator_factor": "estimated over true time",
    "estimator_noise": "noise of the estimator (log-normal)",
    "guard_s": "guard time (s)",
    "slo": "promised speed",
}
"""The label of each axis; the first axis with several values becomes the horizontal one."""
SHORT = {
    "slo_scale": "SLO x",
    "estimator_factor": "estimate x",
    "estimator_noise": "noise ",
    "guard_s": "guard ",
}


R = TypeVar("R", bound=ServingPoint)


@dataclass(frozen=True, slots=True)
class ChartLine(Generic[R]):
    """One line: rows that differ only in the value of the chart's axis, in the order of that
    axis.
    """

    label: str
    style: Style
    rows: Sequence[R]


@dataclass(frozen=True, slots=True)
class Chart(Generic[R]):
    """All lines along one axis."""

    axis: str
    lines: Sequence[ChartLine[R]]

    @property
    def numeric(self) -> bool:
        """True if the values of the axis are numbers."""
        return self.axis != "slo"

    @property
    def has_lines(self) -> bool:
        """True if some line has several points; a chart without lines is drawn as bars."""
        return any(len(line.rows) > 1 for line in self.lines)

    def numbers(self, line: ChartLine[R]) -> list[float]:
        """Return the values of a numeric axis at a line's rows."""
        return [float(str(row.at(self.axis))) for row in line.rows]

    def names(self, line: ChartLine[R]) -> list[str]:
        """Return the promised speeds at a line's rows."""
        return [slo_in_words(row.slo) for row in line.rows]

    def x(self, line: ChartLine[R]) -> Sequence[float] | Sequence[str]:
        """Return the values of the axis at a line's rows; those of the SLO axis are names."""
        return self.numbers(line) if self.numeric else self.names(line)


def chart(rows: Sequence[R]) -> Chart[R]:
    """Return the rows as lines along the first axis that has several values."""
    changing = [name for name in NAMES if name in varied(rows)]
    axis = next(iter(changing), "slo" if rows and rows[0].devices is None else "devices")
    fixed = [name for name in changing if name != axis]
    groups: dict[tuple[AxisValue, ...], list[R]] = {}
    for row in rows:
        groups.setdefault((row.series, *(row.at(name) for name in fixed)), []).append(row)
    series = list(dict.fromkeys(members[0].series for members in groups.values()))
    lines_of_series = dict.fromkeys(series, 0)
    lines = []
    for members in groups.values():
        # Lines of one series share a colour and differ in dashes and markers.
        name = members[0].series
        hue = series.index(name)
        number = hue + lines_of_series[name]
        style = Style(
            OF_METHODS[hue % len(OF_METHODS)],
            LINES[number % len(LINES)],
            MARKERS[number % len(MARKERS)],
        )
        lines_of_series[name] += 1
        lines.append(
            ChartLine(
                ", ".join(filter(None, [name, point_in_words(members[0], fixed)])), style, members
            )
        )
    return Chart(axis, lines)


def point_in_words(row: ServingPoint, axes: Sequence[str]) -> str:
    """Return a row's values of some axes in words."""
    return axis_values({axis: row.at(axis) for axis in axes})


def axis_values(values: Point) -> str:
    """Return values of axes in words."""
    return ", ".join(
        _axis_value(axis, value) for axis, value in values.items() if value is not None
    )


def _axis_value(axis: str, value: object) -> str:
    if axis == "slo":
        return slo_in_words(str(value))
    if axis == "devices":
        return f"{value} devices"
    return f"{SHORT[axis]}{value:g}{' s' if axis == 'guard_s' else ''}"


Latencies = ResponseLatencies[Interval]


def latency_groups(row: SimulatedRow | SearchedRow) -> Mapping[str, Latencies]:
    """Return the latencies of a row of either command: of all responses and, if there are several,
    of each class.
    """
    if isinstance(row, SearchedRow):
        return row.latencies or {}
    classes = row.figures.classes if len(row.figures.classes) > 1 else {}
    return {"all": row.figures.overall, **classes}


def axis_cell(axis: str, value: object) -> str:
    """Return a row's value of an axis."""
    if axis == "slo":
        return slo_in_words(str(value))
    return ABSENT if value is None else f"{value:g}" if isinstance(value, float) else str(value)
