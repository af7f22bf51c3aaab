"""What was measured at a server, and how far the simulator is from it, as Markdown."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.reports.render_markdown import blocks as markdown_of
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import count, seconds, share, significant
from specbench_kit.reports.writing.markup import code, document, table, warning
from specbench_kit.reports.writing.provenance import provenance

Fields = Mapping[str, Any]
Values = Mapping[str, float | None]


class Compared(NamedTuple):
    """A figure of a row, how it is shown, and how far a simulation may be from it; a share is taken in points."""

    path: str
    shown: Any
    reach: float | None = None
    points: bool = False


COLUMNS = {
    "throughput (tokens/s)": Compared("figures.overall.throughput", significant, 0.10),
    "round p50": Compared("round_s.p50", seconds, 0.10),
    "round p95": Compared("round_s.p95", seconds, 0.15),
    "round p99": Compared("round_s.p99", seconds),
    "violations": Compared("figures.overall.violation_rate", share, 0.03, points=True),
    "batch size": Compared("figures.server.batch_size.mean", significant),
    "queue": Compared("figures.overall.queue_s.mean", seconds),
    "verify": Compared("figures.overall.verify_s.mean", seconds),
    "estimated / true": Compared("figures.server.estimate_over_true", significant),
    "busy": Compared("figures.server.utilisation", share),
}


SIMULATED = {"simulated": "simulated, by the profile", "as_fast": "simulated, as fast as its batches were"}
REACH = "throughput and median within 10 %, P95 within 15 %, violations within 3 points"


def values_of(row: Fields) -> Values:
    """The figures of a row by their columns."""
    return {name: look_up(row, one.path) for name, one in COLUMNS.items()}


def mean_of(rows: Sequence[Fields]) -> Values:
    """The same of several rows, averaged; None where it is missing in one."""
    columns = [[look_up(row, one.path) for row in rows] for one in COLUMNS.values()]
    means = [None if None in values else fmean(values) for values in columns]
    return dict(zip(COLUMNS, means, strict=True))


def apart(measured: Values, simulated: Values) -> dict[str, Any]:
    """By figure how far the simulation is off, as a share of what was measured or in points, and if within reach."""
    found: dict[str, Any] = {}
    for name, one in COLUMNS.items():
        real, modelled = measured[name], simulated[name]
        if real is None or modelled is None or not (real or one.points):
            found[name] = {"off": None, "within": None}
            continue
        off = modelled - real if one.points else modelled / real - 1
        found[name] = {"off": off, "within": None if one.reach is None else abs(off) <= one.reach}
    return found


def of_load(run: Fields, summary: Fields) -> str:
    """The report of `skit load`."""
    late = [
        f"LATE DRAFTS at {count(devices)} devices: the load's own machine was too slow." for devices in summary["late"]
    ]
    header = ["devices", *COLUMNS, "drafts left late by (p50, p99)"]
    rows = [
        [count(row["devices"]), *_cells(values_of(row)), " and ".join(map(seconds, row["late_s"]))]
        for row in summary["rows"]
    ]
    return document(
        [
            _title("Load on", run),
            warning([*machine.warnings(run), *setting_cautions(dict(run)), *late]),
            table(header, rows),
            _about(run),
        ]
    )


def of_validation(run: Fields, found: Fields) -> str:
    """The simulation beside it."""
    rows = []
    for row in found["rows"]:
        rows.append([count(row["devices"]), "measured", *_cells(values_of(row["measured"]))])
        for name, words in SIMULATED.items():
            rows.append(["", words, *_cells(row[name])])
            rows.append(["", "apart", *(_apart(row[f"{name}_apart"][figure], one) for figure, one in COLUMNS.items())])
    told = "; ".join(f"{words}: {_reached(found['rows'], name)}" for name, words in SIMULATED.items())
    header = ["devices", "", *COLUMNS]
    said = f"Within reach ({REACH}): {told}. Simulated figures are means over {found['seeds']} seeds."
    return document(
        [_title("Validation of", run), warning(machine.warnings(run)), said, table(header, rows), _about(run)]
    )


def _reached(rows: Sequence[Fields], name: str) -> str:
    reached = [one["within"] for row in rows for one in row[f"{name}_apart"].values() if one["within"] is not None]
    return f"{sum(reached)} of {len(reached)} figures"


def _title(what: str, run: Fields) -> str:
    return f"# {what} {code(run['config']['scheduler'])}"


def _about(run: Fields) -> str:
    config = run["config"]
    lines = [
        ("drafting", code(config["method"])),
        ("SLO", ", ".join(config["slo"])),
        ("largest batch", count(config["max_batch"])),
        ("measured", f"{config['duration_s']:g} s, of which {config['warmup_s']:g} s do not count"),
        ("server", f"{run['server']['kind']} on {run['server']['device']}"),
        ("expected of its time", run["deployment"]["verifier"]["origin"]),
        ("time of the devices", run["deployment"]["drafter"]["origin"]),
    ]
    return "## What was run\n\n" + table(["", ""], lines) + "\n\n" + markdown_of(provenance(run))


def _cells(values: Values) -> list[str]:
    return [one.shown(values[name]) for name, one in COLUMNS.items()]


def _apart(found: Fields, one: Compared) -> str:
    if found["off"] is None:
        return "–"
    text = f"{100 * found['off']:+.1f} {'points' if one.points else '%'}"
    return text if found["within"] in (None, True) else f"**{text}**"
