"""The figures of a simulation and of a search for capacity, drawn once for PNG, SVG and the HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.reports.serving.axes import PUBLISHED, bars, curves, frame, height, legend
from specbench_kit.reports.serving.lines import NAMES, Chart, chart
from specbench_kit.reports.serving.wording import unit_of
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.palette import BLACK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]

OVERALL = "figures.overall"


def pictures(run: Fields, summary: Fields) -> Iterator[Picture]:
    """Every figure that has something to show."""
    if run["command"] == "capacity":
        yield from _capacity_pictures(summary)
        return
    lines = chart(summary["rows"])
    if any(look_up(row, f"{OVERALL}.violation_rate") for row in summary["rows"]):
        yield _violations(lines, summary)
    yield _throughput(lines)
    yield _waiting(lines)
    yield _interference(lines)
    if any(_missed(row) for row in summary["rows"]):
        yield _attribution(lines)
    if any(len(_classes(line.rows[-1])) > 1 for line in lines.lines):
        yield _attainment(lines)


def _violations(lines: Chart, summary: Fields) -> Picture:
    def draw(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.violation_rate", 100)
        if lines.axis == "devices":
            _mark_knees(axes, lines, summary["knees"])
        frame(axes, lines, "responses that break their SLO (%)", top=103)

    note = "Means over seeds with 95% intervals; a ring marks the knee, where a line begins to rise."
    return Picture("violations", "Violation rate", note, height(lines), draw)


def _mark_knees(axes: "Axes", lines: Chart, knees: Sequence[Fields]) -> None:
    for line in lines.lines:
        for row in line.rows:
            if any(all(row.get(name) == value for name, value in one.items()) for one in knees):
                rate = 100 * look_up(row, f"{OVERALL}.violation_rate.mean")
                axes.scatter([row["devices"]], [rate], 110, facecolors="none", edgecolors=BLACK, zorder=4)


def _throughput(lines: Chart) -> Picture:
    def draw(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.throughput", 1)
        curves(axes, lines, f"{OVERALL}.goodput", 1, faint=True)
        frame(axes, lines, "tokens per second")

    note = "Full lines: all committed tokens; faint ones: goodput, tokens of responses that keep their SLO."
    return Picture("throughput", "Throughput and goodput", note, height(lines), draw)


def _waiting(lines: Chart) -> Picture:
    def draw(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.verify_s.mean", 1e3)
        curves(axes, lines, f"{OVERALL}.queue_s.mean", 1e3, faint=True)
        frame(axes, lines, "ms per round")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)

    note = "Full lines: mean time in verification; faint ones: mean time in the queue before it."
    return Picture("waiting", "Queue and verification", note, height(lines), draw)


def _interference(lines: Chart) -> Picture:
    def draw(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.interference.mean", 1)
        curves(axes, lines, f"{OVERALL}.interference.p95", 1, faint=True)
        frame(axes, lines, "batch time / time alone")

    note = "Full lines: mean; faint ones: 95th percentile of how much longer a round's batch takes than it would alone."
    return Picture("interference", "Interference", note, height(lines), draw)


def _missed(row: Fields) -> float:
    found = row["figures"]["violations"]
    total: float = found["compute_dominant"]["mean"] + found["queue_dominant"]["mean"]
    return total


def _attribution(lines: Chart) -> Picture:
    def draw(axes: "Axes") -> None:
        curves(axes, lines, _queue_share, 100)
        frame(axes, lines, "missed deadlines due to the queue (%)", top=103)

    note = "The rest is put down to the round's own batch, which took over 1.5 times the moving mean of 50 batches."
    return Picture("attribution", "What kept rounds that missed their deadline", note, height(lines), draw)


def _queue_share(row: Fields) -> Fields | None:
    """Of the means over seeds, so that there is no interval."""
    total = _missed(row)
    if not total:
        return None
    return {"mean": row["figures"]["violations"]["queue_dominant"]["mean"] / total, "low": None, "high": None}


def _classes(row: Fields) -> Mapping[str, Fields]:
    found: Mapping[str, Fields] = row["figures"]["classes"]
    return found


def _attainment(lines: Chart) -> Picture:
    """Bars by class for each line, at its last place on the axis."""
    last = {line.label: line.rows[-1] for line in lines.lines}
    names = list(_classes(next(iter(last.values()))))

    def draw(axes: "Axes") -> None:
        found = {label: [_kept(_classes(row).get(name)) for name in names] for label, row in last.items()}
        bars(axes, lines, found, names)
        axes.set(xlabel="SLO class", ylabel="responses that keep their SLO (%)")
        axes.set_ylim(0, 103)
        legend(axes, lines)

    where = "" if not lines.several else f" At the last place of the axis ({NAMES[lines.axis]})."
    note = f"Means over seeds with 95% intervals.{where}"
    return Picture("attainment", "SLO attainment by class", note, height(lines), draw)


def _kept(group: Fields | None) -> Fields | None:
    rate = None if group is None else group["violation_rate"]
    if rate is None:
        return None
    low, high = (None, None) if rate["low"] is None else (100 * (1 - rate["high"]), 100 * (1 - rate["low"]))
    return {"mean": 100 * (1 - rate["mean"]), "low": low, "high": high}


def _capacity_pictures(summary: Fields) -> Iterator[Picture]:
    lines = chart(summary["rows"])
    published = [pair for pair in summary.get("published", ()) if pair["metric"] == "capacity" and pair["value"]]
    unit = unit_of(summary)
    yield _capacity(lines, published, unit)
    yield _curve(lines, unit)


def _capacity(lines: Chart, published: Sequence[Fields], unit: str) -> Picture:
    names = list(dict.fromkeys(str(x) for line in lines.lines for x in lines.x(line)))

    def draw(axes: "Axes") -> None:
        if lines.numeric:
            curves(axes, lines, "capacity", 1)
        else:
            by_name = {line.label: {str(row["slo"]): row["capacity"] for row in line.rows} for line in lines.lines}
            heights = {label: [found.get(name) for name in names] for label, found in by_name.items()}
            places = bars(axes, lines, heights, names)
            _mark_published(axes, published, names, places)
        axes.set(xlabel=NAMES[lines.axis], ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        legend(axes, lines)

    marks = " Diamonds: published." if published else ""
    note = f"The highest load whose violation rate stays at or below epsilon; 95% intervals over seeds.{marks}"
    return Picture("capacity", "Capacity", note, height(lines), draw)


def _mark_published(
    axes: "Axes", published: Sequence[Fields], names: Sequence[str], places: Mapping[tuple[str, int], float]
) -> None:
    groups = {name: number for number, name in enumerate(names)}
    known = [((one["series"], groups.get(one["where"].get("slo", ""), -1)), one["value"]) for one in published]
    shown = [(places[key], value) for key, value in known if key in places]
    if shown:
        x, y = zip(*shown, strict=True)
        axes.scatter(x, y, 42, marker="D", facecolors="white", edgecolors=BLACK, zorder=4, label=PUBLISHED)


def _curve(lines: Chart, unit: str) -> Picture:
    """What the search saw."""

    def draw(axes: "Axes") -> None:
        for line in lines.lines:
            for row in line.rows:
                trials = [trial for seed in row["seeds"] for trial in seed["trials"]]
                points = sorted((trial["load"], 100 * trial["rate"]) for trial in trials)
                if points:
                    x, y = zip(*points, strict=True)
                    style: dict[str, Any] = {
                        "marker": line.style.marker,
                        "color": line.style.colour,
                        "markersize": 4,
                        "alpha": 0.7,
                    }
                    axes.plot(x, y, linestyle="none", label=line.label if row is line.rows[0] else None, **style)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=unit, ylabel="responses that break their SLO (%)")
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    note = "Every load that was tried, under every SLO; runs that were settled early were stopped early."
    return Picture("tried", "Violation rates on the way to the capacity", note, height(lines), draw)
