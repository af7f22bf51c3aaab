"""What a simulation and a search for capacity find and say of themselves, as reports and their
figures read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct, field

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.papers.experiment import Assumed
from specbench_kit.reports.writing.palette import LINES, MARKERS, OF_METHODS, Style
from specbench_kit.runs.document import RunConfig, RunDescription
from specbench_kit.serving.figures import (
    AxisValue,
    CapacityRange,
    FigureRange,
    SearchedRow,
    SeriesDifference,
    ServingPoint,
    SimulatedRow,
    varied,
)
from specbench_kit.serving.options import CapacityRule


class SimulationSummary(Struct, kw_only=True, omit_defaults=True):
    """The content of `summary.json` of a simulation; `published` are the numbers of a preset's
    paper.
    """

    axes: dict[str, list[AxisValue]]
    rows: list[SimulatedRow]
    against_first: list[SeriesDifference]
    knees: list[ServingPoint]
    guards: list[ServingPoint]
    ranges: list[FigureRange]
    published: list[ComparedNumber] = []


class CapacitySummary(Struct, kw_only=True, omit_defaults=True):
    """The content of `summary.json` of a search for capacity."""

    rule: CapacityRule
    axes: dict[str, list[AxisValue]]
    rows: list[SearchedRow]
    guards: list[ServingPoint]
    ranges: list[CapacityRange]
    published: list[ComparedNumber] = []

    @property
    def unit(self) -> str:
        """The unit of capacities: devices, or a rate of arrivals."""
        return self.rows[0].unit


ServingSummary = SimulationSummary | CapacitySummary


class ServingConfig(RunConfig, kw_only=True):
    """The settings of a simulation that its report names."""

    seeds: int
    duration_s: float
    warmup_s: float
    slo: list[str]
    objective: str
    arrivals: str
    arrivals_scale: float = 1.0
    prompt_tokens: str | int | None = None
    output_tokens: str | int | None = None
    link_trace: str | None = None
    shared_up_bytes_per_s: float | None = None
    frame_s: float = 0.0
    outage: list[str] = field(default_factory=list)
    max_batch: int
    estimator_profile: str | None = None


class TypicalDrafts(Struct):
    """Averages of a series' rounds, and the longest draft."""

    submitted: float
    acceptance: float
    committed: float
    longest: int


class KvDescription(Struct):
    """The KV memory of a server in tokens, its context, and where both come from."""

    tokens: float | None
    context: float | None
    origin: str


class SeriesDescription(Struct, kw_only=True):
    """One system of a simulation; `recorded` says whose recorded acceptance it has, if it has one.

    `target` is the model that the deployment's verifier runs, empty where its profile names none.
    """

    label: str
    system: str
    summary: str
    scheduler: str
    method: str
    acceptance: str | None
    typical: TypicalDrafts
    deployment: str
    drafting: str = ""
    target: str = ""
    servers: str = "1"
    router: str = ""
    recorded: JsonObject | None = None
    uses: JsonObject = field(default_factory=dict)
    seen_prompts: int | None = None
    colocated_ratio: float | None = None
    kv: KvDescription


class PresetDescription(Struct):
    """The published experiment that was repeated."""

    name: str
    summary: str
    source: str
    against: str
    reading: str
    assumed: list[Assumed]


class ServingDescription(RunDescription, kw_only=True):
    """What `run.json` says of a simulation or of a search for capacity."""

    config: ServingConfig
    series: list[SeriesDescription]
    preset: PresetDescription | None = None


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


def axis_values(values: Mapping[str, object]) -> str:
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
