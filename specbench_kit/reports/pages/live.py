"""The reports on a load that was measured at a server, and on how far the simulator is off, as documents.

Also here: what a reader must know of a load before its times or their simulation are quoted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import Struct

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.profilers.base import LEAST_SERVED_R2
from specbench_kit.reports.document import (
    Blocks,
    Cell,
    Column,
    Document,
    Figure,
    Heading,
    Paragraph,
    Row,
    RunFile,
    Summary,
    Table,
    caution,
    code,
    facts,
    with_more_columns,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.profiles import score
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant
from specbench_kit.runs.document import RunDescription

Values = Mapping[str, float | None]
"""The figures of a row by the titles of their columns."""


@dataclass(frozen=True, slots=True)
class ComparedColumn(Column):
    """A figure by its path in a row; `tolerance` is how far a simulation may be off, as a share or in points."""

    path: str = ""
    tolerance: float | None = None
    in_points: bool = False


COLUMNS = (
    ComparedColumn("throughput (tokens/s)", "number", "figures.overall.throughput", 0.10),
    ComparedColumn("round p50", "seconds", "round_s.p50", 0.10),
    ComparedColumn("round p95", "seconds", "round_s.p95", 0.15),
    ComparedColumn("round p99", "seconds", "round_s.p99"),
    ComparedColumn("violations", "share", "figures.overall.violation_rate", 0.03, in_points=True),
    ComparedColumn("batch size", "number", "figures.server.batch_size.mean"),
    ComparedColumn("queue", "seconds", "figures.overall.queue_s.mean"),
    ComparedColumn("verify", "seconds", "figures.overall.verify_s.mean"),
    ComparedColumn("estimated / true", "number", "figures.server.estimate_over_true"),
    ComparedColumn("busy", "share", "figures.server.utilisation"),
)
POINT = ("devices", "arrivals")
"""Columns that name a load: the devices, and how many requests arrive."""
SIMULATED = {"simulated": "simulated, by the profile", "as_fast": "simulated, with the measured batch times"}
TOLERANCES = "throughput and median within 10 %, P95 within 15 %, violations within 3 points"


def values_of(row: Row) -> Values:
    """Return the figures of a row."""
    return {column.title: look_up(row, column.path) for column in COLUMNS}


def mean_of(rows: Sequence[Row]) -> Values:
    """Return the means of the figures of several rows; None if a row lacks the figure."""
    values_by_title = {column.title: [look_up(row, column.path) for row in rows] for column in COLUMNS}
    return {title: None if None in values else fmean(values) for title, values in values_by_title.items()}


class Deviation(Struct):
    """How far a simulated figure is off, as a share of the measured one or in points; whether that is tolerated."""

    off: float | None
    within: bool | None


class ValidatedLoad(Struct):
    """One measured load, and the figures of both simulations with how far they are apart from the measured ones."""

    devices: int
    rate: float | None
    measured: Row
    simulated: Values
    simulated_apart: dict[str, Deviation]
    as_fast: Values
    as_fast_apart: dict[str, Deviation]

    @property
    def variants(self) -> Mapping[str, tuple[Values, dict[str, Deviation]]]:
        """The figures and deviations of each simulation by its name in `SIMULATED`."""
        return {
            "simulated": (self.simulated, self.simulated_apart),
            "as_fast": (self.as_fast, self.as_fast_apart),
        }


class Validation(Struct):
    """The simulation of a load: how many seeds were averaged, and the loads."""

    seeds: int
    rows: list[ValidatedLoad]


def deviations(measured: Values, simulated: Values) -> dict[str, Deviation]:
    """Return by figure how far the simulation is off."""
    result: dict[str, Deviation] = {}
    for column in COLUMNS:
        real = measured[column.title]
        modelled = simulated[column.title]
        off = None
        if real is not None and modelled is not None and (real or column.in_points):
            off = modelled - real if column.in_points else modelled / real - 1
        within = None if off is None or column.tolerance is None else abs(off) <= column.tolerance
        result[column.title] = Deviation(off, within)
    return result


LOAD_COLUMNS = ("load", "throughput (tokens/s)", "round p50", "round p95", "violations", "batch size", "busy")
"""The columns of a load that a reader sees first."""


def load_report(run: RunFile, summary: Summary, figures: Sequence[Figure] = ()) -> Document:
    """Return the report of `skit load`."""
    rows = [
        [name_of(row), *values_of(row).values(), " and ".join(map(seconds, row["late_s"]))] for row in summary["rows"]
    ]
    table = Table(("load", *COLUMNS, "drafts sent late by (p50, p99)"), rows)
    return _document(
        "Load on",
        run,
        caution(machine.warnings(RunDescription.read(run)), severe=True),
        [Paragraph(f"**{load_headline(run, summary)}**")],
        caution(load_cautions(run, summary["rows"])),
        [*figures, *with_more_columns(table, LOAD_COLUMNS)],
        _answers(summary),
    )


def load_headline(run: RunFile, summary: Summary) -> str:
    """Return in a sentence what the server did under the load with the highest throughput."""
    rows = summary["rows"]
    values = {name_of(row): values_of(row) for row in rows}
    best = max(values, key=lambda name: values[name]["throughput (tokens/s)"] or 0.0)
    figures = values[best]
    first = f"Of {len(rows)} loads, {best} have the highest throughput" if len(rows) > 1 else f"{best} were served"
    promise = slo_in_words(run["config"]["slo"][0])
    # None if no response was due within the load.
    broken = figures["violations"]
    kept = (
        f"{share(broken)} of responses slower than the promised {promise}"
        if broken is not None
        else "no response was due in the time that counts"
    )
    return (
        f"{first}: {significant(figures['throughput (tokens/s)'])} tokens/s with {code(run['config']['scheduler'])}, "
        f"95% of rounds answered within {seconds(figures['round p95'])}, {kept} (one measurement, no interval)."
    )


def _answers(summary: Summary) -> Blocks:
    """Return the section on how the server's answers and its speed relate to trace and profile."""
    columns = (
        *POINT,
        Column("rounds answered", "count"),
        Column("not as in the trace", "share"),
        Column("responses that left the trace", "share"),
        Column("drafts not verified", "share"),
        Column("drafts sent again later", "count"),
        Column("verify / profile", "number"),
        Column("server's estimate / profile", "number"),
    )
    names = ("rounds", "differing", "left_trace", "degraded", "refusals")
    rows = []
    for row in summary["rows"]:
        answers = [row["answers"][name] for name in names]
        rows.append([*_point(row["devices"], row.get("rate")), *answers, row["slower"], row["estimate"]])
    return [Heading("The server's answers"), Table(columns, rows)]


@dataclass(frozen=True, slots=True)
class JudgedError:
    """How far one simulated figure is off under one load, as a share or in points, and the tolerance."""

    load: str
    column: ComparedColumn
    variant: str
    error: float
    within: bool

    @property
    def text(self) -> str:
        """The error with its unit."""
        return f"{100 * self.error:+.1f} {'points' if self.column.in_points else '%'}"


def judged_errors(result: Validation) -> list[JudgedError]:
    """Return the errors of all figures that have a tolerance, load by load, for each variant of the simulation."""
    judged = []
    for row in result.rows:
        for column in COLUMNS:
            for name, (_, errors) in row.variants.items():
                error = errors[column.title]
                if error.off is not None and error.within is not None:
                    load = label(row.devices, row.rate)
                    judged.append(JudgedError(load, column, name, error.off, error.within))
    return judged


def validation_report(run: RunFile, result: Validation, figures: Sequence[Figure] = ()) -> Document:
    """Return the report on the simulation of the same load."""
    rows: list[list[Cell]] = []
    for row in result.rows:
        rows.append([*_point(row.devices, row.rate), "measured", *values_of(row.measured).values()])
        for name, (values, errors) in row.variants.items():
            rows.append(["", "", SIMULATED[name], *(values[column.title] for column in COLUMNS)])
            rows.append(["", "", "error", *(_error(errors[column.title], column) for column in COLUMNS)])
    note = f"Tolerances: {TOLERANCES}; bold exceeds them. Simulated numbers are means over {result.seeds} seeds."
    return _document(
        "Validation of",
        run,
        caution(machine.warnings(RunDescription.read(run)), severe=True),
        [Paragraph(f"**{validation_headline(result)}**")],
        caution(load_cautions(run, [row.measured for row in result.rows])),
        [*figures, _judged_table(result), Paragraph(note)],
        [Heading("All metrics"), Table((*POINT, "", *COLUMNS), rows)],
    )


def validation_headline(result: Validation) -> str:
    """Return in a sentence how many simulated numbers lie within the tolerances, and which is farthest off."""
    errors = judged_errors(result)
    counts = []
    for name, words in SIMULATED.items():
        judged = [error.within for error in errors if error.variant == name]
        counts.append(f"{sum(judged)} of {len(judged)} numbers {words.removeprefix('simulated, ')}")
    beyond = [error for error in errors if not error.within]
    if not beyond:
        return f"The simulation is within the tolerances in {' and in '.join(counts)}."
    far = max(beyond, key=lambda error: abs(error.error) / (error.column.tolerance or 1.0))
    return (
        f"The simulation is within the tolerances in {' and in '.join(counts)}; farthest off is "
        f"{far.column.title} at {far.load}, {far.text} {SIMULATED[far.variant].removeprefix('simulated, ')}."
    )


def _judged_table(result: Validation) -> Table:
    """Return a row for each figure that has a tolerance under each load, measured beside both simulations."""
    rows: list[list[Cell]] = []
    for row in result.rows:
        measured = values_of(row.measured)
        for column in (column for column in COLUMNS if column.tolerance is not None):
            # A load of which no response was due has no violations to compare.
            if measured[column.title] is None:
                continue
            cells: list[Cell] = [column.text(measured[column.title])]
            for values, errors in row.variants.values():
                cells += [column.text(values[column.title]), _error(errors[column.title], column)]
            rows.append([label(row.devices, row.rate), column.title, *cells])
    numbers = ("measured", "by the profile", "error", "by measured batch times", "error")
    return Table(("load", "metric", *(Column(title, "number") for title in numbers)), rows)


def _point(devices: int, rate: float | None) -> list[Cell]:
    """Return the cells of `POINT`; a closed loop has no rate."""
    return [count(devices), "closed loop" if rate is None else f"{rate:g}/s"]


def _error(error: Deviation, column: ComparedColumn) -> str:
    """Return an error, in bold if it exceeds the tolerance."""
    if error.off is None:
        return ABSENT
    text = f"{100 * error.off:+.1f} {'points' if column.in_points else '%'}"
    return f"**{text}**" if error.within is False else text


def _document(subject: str, run: RunFile, *sections: Blocks) -> Document:
    config = run["config"]
    rows = [
        ("drafting", code(config["method"])),
        ("promised speed (SLO)", ", ".join(map(slo_in_words, config["slo"]))),
        ("largest batch", count(config["max_batch"])),
        ("measured", f"{config['duration_s']:g} s, of which {config['warmup_s']:g} s of warm-up do not count"),
        ("server", f"{run['server']['kind']} on {run['server']['device']}"),
        ("expected verification times", run["deployment"]["verifier"]["origin"]),
        ("times of the devices", run["deployment"]["drafter"]["origin"]),
    ]
    setting: Blocks = [Heading("What was run"), facts(rows)]
    return Document.of(
        f"{subject} {code(config['scheduler'])}", *sections, setting, provenance(RunDescription.read(run))
    )


LATE_S = 0.05
"""If drafts leave later than this after their planned time, the machine is too slow for the load that it generates."""
MOST_APART = 1.25
"""Largest ratio, either way, of measured verification times to those of the profile that passes without a word."""


def load_cautions(run: RunFile, rows: Sequence[Row]) -> list[str]:
    """Return what limits the figures of a load, less what the machine's disturbances void."""
    lines = setting_cautions(RunDescription.read(run))
    for row in rows:
        if row["late_s"][1] > LATE_S:
            lines.append(f"LATE DRAFTS at {name_of(row)}: the machine that generates the load was too slow.")
        answers = row.get("answers") or {}
        if answers.get("degraded") or answers.get("refusals"):
            lines.append(
                f"OVERLOADED at {name_of(row)}: the server answered {share(answers['degraded'] or 0.0)} of the rounds "
                f"without verifying the draft, and asked {count(answers['refusals'])} times to send it again later."
            )
        if answers.get("differing"):
            lines.append(
                f"OTHER ANSWERS at {name_of(row)}: {share(answers['differing'])} of the rounds, in "
                f"{share(answers['left_trace'])} of the responses, were not answered as in the trace. Devices followed "
                "the server, and most drafts behind such an answer are wrong."
            )
    return [*lines, *profile_cautions(run, rows)]


def profile_cautions(run: RunFile, rows: Sequence[Row]) -> list[str]:
    """Return what limits the comparison with the profile."""
    lines = []
    profile = run.get("profile") or {}
    if disturbed := profile.get("disturbed"):
        lines.append(f"DISTURBED PROFILE: {'; '.join(disturbed)}, while '{profile['name']}' was measured.")
    if (r2 := profile.get("r2")) is not None and r2 < LEAST_SERVED_R2:
        lines.append(poor_fit(r2))
    apart = [
        f"{slower:.2f} at {name_of(row)}"
        for row in rows
        if (slower := row.get("slower")) and not 1 / MOST_APART <= slower <= MOST_APART
    ]
    if apart:
        lines.append(
            f"OTHER SPEED: verifications took {', '.join(apart)} times as long as by the profile: measure it again, "
            "right before the load."
        )
    return lines


def poor_fit(r2: float | None) -> str:
    """Return the caution about a profile of a server that does not fit its test loads."""
    return (
        f"POOR FIT: R² of the server's profile is {score(r2)} on loads that were not fitted, below "
        f"{LEAST_SERVED_R2:g}: let nothing else run, and measure it again."
    )


def name_of(row: Row) -> str:
    """Return the name of a row's load."""
    return label(row["devices"], row.get("rate"))


def label(devices: int, rate: float | None) -> str:
    """Return the name of a load; a closed loop has no rate."""
    return f"{count(devices)} devices" + ("" if rate is None else f" and {rate:g} requests/s")
