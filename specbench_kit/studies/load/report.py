"""What a load at a server finds, and the reports on it and on how far the simulator is off, with
their figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.vocabulary import DistributionValues, Percentiles, Unit
from specbench_kit.profilers.base import LEAST_SERVED_R2
from specbench_kit.reports.document import (
    Blocks,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
    with_more_columns,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.profiles import poor_fit
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant
from specbench_kit.reports.writing.palette import COLOURS, GREY, MARKERS
from specbench_kit.runs.deployment import DeploymentDescription
from specbench_kit.runs.document import RunConfig, RunDescription, ServerReference
from specbench_kit.serving.figures import Figures, Interval, Real
from specbench_kit.studies.tail_latency import TailPair, tail_verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = Mapping[str, float | None]
"""The figures of a row by the titles of their columns."""


class LoadFigures(Struct, kw_only=True):
    """The figures of a load at a server, or of a simulation of it; a closed loop of devices has no
    rate.

    `round_s` is the time from a draft sent to its answer, of whose mean files of earlier versions say nothing.
    """

    devices: Annotated[int, Meta(description="number of devices")]
    rate: Annotated[
        float | None,
        Meta(
            description="responses that arrive per second; null in a closed loop of devices, where each asks "
            "again when it has its answer"
        ),
    ] = None
    round_s: Annotated[
        DistributionValues,
        Meta(description="round trips from sending a draft to its answer, after the warm-up"),
    ]
    figures: Annotated[Figures, Meta(description="the figures of the load")]

    @property
    def name(self) -> str:
        """The load in words."""
        return label(self.devices, self.rate)


class AnswerShares(Struct):
    """A server's answers to the drafts of a load."""

    rounds: Annotated[int, Meta(description="answers to rounds")]
    responses: Annotated[int, Meta(description="responses that were begun")]
    differing: Annotated[
        float | None,
        Meta(
            description="share of the answers that accept other tokens than the recorded target, or go on "
            "with another one; null without answers"
        ),
    ]
    left_trace: Annotated[
        float | None,
        Meta(
            description="share of the responses with at least one such answer; null without responses"
        ),
    ]
    degraded: Annotated[
        float | None,
        Meta(
            description="share of the answers that come from an overloaded server, which did not verify the "
            "draft; null without answers"
        ),
    ]
    refusals: Annotated[int, Meta(description="answers that asked for the same draft later")]


class ServedLoad(LoadFigures, kw_only=True):
    """A load that a server was under, with speculation or without it."""

    slower: Annotated[
        float | None,
        Meta(description="time of verifications / the same by the profile; null without batches"),
    ]
    estimate: Annotated[
        float | None,
        Meta(
            description="time of verifications by the server's own estimate / the same by the profile; null "
            "without batches"
        ),
    ]
    scatter: Annotated[
        float | None,
        Meta(
            description="standard deviation / mean of the times of equal batches; null without batches"
        ),
    ]
    late_s: Annotated[
        tuple[float, float],
        Meta(description="median and 99th percentile of the seconds by which drafts left too late"),
    ]
    answers: Annotated[AnswerShares, Meta(description="the server's answers")]
    itl_p99: Annotated[
        dict[str, Interval] | UnsetType,
        Meta(
            description="99th percentile of the time between tokens in seconds, with its interval over ten "
            "stretches of the measured time, of all devices ('all') and of each class; left out of loads that "
            "were not measured with speculation off"
        ),
    ] = UNSET


class MeasuredLoad(ServedLoad, kw_only=True):
    """A load that a server was under, and what it did under the same load with speculation off."""

    plain: Annotated[
        ServedLoad | UnsetType,
        Meta(
            description="the same load with speculation off; left out where that was not measured"
        ),
    ] = UNSET

    @property
    def sides(self) -> list[ServedLoad]:
        """The load as it was measured: with the method and, where that was asked for, without
        drafts.
        """
        return [self, *([] if self.plain is UNSET else [self.plain])]


class LoadSummary(Struct):
    """The content of a load's `summary.json`."""

    rows: Annotated[list[MeasuredLoad], Meta(description="the loads in their order")]
    late: Annotated[list[int], Meta(description="numbers of devices at which drafts left too late")]


class LoadConfig(RunConfig, kw_only=True):
    """The settings of a load that its report names, and those that its simulation needs."""

    method: Annotated[str, Meta(description="spec of the method that the devices draft with")]
    scheduler: Annotated[str, Meta(description="the server's scheduler")]
    slo: Annotated[
        list[str],
        Meta(description="promised tokens per second, a class, or a mix of them with shares"),
    ]
    max_batch: Annotated[
        int, Meta(description="largest number of requests in a batch of the server")
    ]
    duration_s: Annotated[float, Meta(description="seconds of each load, warm-up included")]
    warmup_s: Annotated[float, Meta(description="seconds at the start that no figure includes")]
    seed: Annotated[int, Meta(description="seed of the devices' prompts and arrivals")]
    baseline: Annotated[
        bool, Meta(description="whether each load was measured with speculation off too")
    ] = False


class LoadedProfile(Struct):
    """How far the server's profile is to be trusted."""

    name: Annotated[str, Meta(description="name of the server's latency profile")] = ""
    r2: Annotated[
        float | None,
        Meta(
            description="R2 of its predictions on configurations that it was not fitted on; null if that is "
            "not known"
        ),
    ] = None
    disturbed: Annotated[
        list[str], Meta(description="what disturbed the machine while it was measured")
    ] = field(default_factory=list)


class LoadDescription(RunDescription, kw_only=True):
    """What `run.json` says of a load."""

    config: Annotated[LoadConfig, Meta(description="the settings")]
    server: Annotated[ServerReference, Meta(description="the server that was loaded")]
    deployment: Annotated[
        DeploymentDescription, Meta(description="the deployment that the load is simulated on")
    ]
    profile: Annotated[
        LoadedProfile, Meta(description="how far the server's profile is to be trusted")
    ] = field(default_factory=LoadedProfile)
    busy_by_sessions: Annotated[
        list[tuple[float, float]],
        Meta(
            description="pairs of a number of devices and the seconds by which round trips are longer with "
            "them than with one"
        ),
    ] = field(default_factory=lambda: [(1.0, 0.0)])
    wire_s: Annotated[
        float,
        Meta(description="seconds of the round trip of a single device, without its verification"),
    ] = 0.0
    verify_cv: Annotated[
        float, Meta(description="standard deviation / mean of the times of equal verifications")
    ] = 0.0
    frame_s: Annotated[
        float,
        Meta(
            description="seconds that the server takes for each message, one after the other in each "
            "direction"
        ),
    ] = 0.0
    turn_s: Annotated[
        float, Meta(description="seconds of the fixed gap between two verifications")
    ] = 0.0
    turn_answer_s: Annotated[
        float, Meta(description="seconds that each answer of the previous batch adds to that gap")
    ] = 0.0
    answer_s: Annotated[
        float,
        Meta(
            description="seconds that each answer which is still being sent adds to the next verification"
        ),
    ] = 0.0


@dataclass(frozen=True, slots=True)
class ComparedColumn(Column):
    """A figure of a load; `tolerance` is how far a simulation may be off, as a share or in
    points.
    """

    of: Callable[[LoadFigures], float | None] = lambda _: None
    tolerance: float | None = None
    in_points: bool = False


def _mean(quantity: Percentiles[Real] | None) -> float | None:
    return quantity.mean if quantity else None


COLUMNS = (
    ComparedColumn(
        "throughput (tokens/s)", "number", lambda row: row.figures.overall.throughput, 0.10
    ),
    ComparedColumn("round p50", "seconds", lambda row: row.round_s.p50, 0.10),
    ComparedColumn("round p95", "seconds", lambda row: row.round_s.p95, 0.15),
    ComparedColumn("round p99", "seconds", lambda row: row.round_s.p99),
    ComparedColumn(
        "violations", "share", lambda row: row.figures.overall.violation_rate, 0.03, in_points=True
    ),
    ComparedColumn("batch size", "number", lambda row: _mean(row.figures.server.batch_size)),
    ComparedColumn("queue", "seconds", lambda row: _mean(row.figures.overall.queue_s)),
    ComparedColumn("verify", "seconds", lambda row: _mean(row.figures.overall.verify_s)),
    ComparedColumn("estimated / true", "number", lambda row: row.figures.server.estimate_over_true),
    ComparedColumn("busy", "share", lambda row: row.figures.server.utilisation),
)
POINT = ("devices", "arrivals")
"""Columns that name a load: the devices, and how many requests arrive."""
SIMULATED = {
    "simulated": "simulated, by the profile",
    "as_fast": "simulated, with the measured batch times",
}
TOLERANCES = "throughput and median within 10%, P95 within 15%, violations within 3 points"


def values_of(row: LoadFigures) -> Values:
    """Return the figures of a row."""
    return {column.title: column.of(row) for column in COLUMNS}


def mean_of(rows: Sequence[LoadFigures]) -> Values:
    """Return the means of the figures of several rows; None if a row lacks the figure."""
    means: dict[str, float | None] = {}
    for column in COLUMNS:
        known = [value for row in rows if (value := column.of(row)) is not None]
        means[column.title] = fmean(known) if len(known) == len(rows) else None
    return means


class Deviation(Struct):
    """How far a simulated figure is off."""

    off: Annotated[
        float | None,
        Meta(
            description="simulated / measured - 1, or simulated - measured of a share; null if either is not "
            "known"
        ),
    ]
    within: Annotated[
        bool | None,
        Meta(description="whether that is tolerated; null if it is not known, or has no tolerance"),
    ]


class ValidatedLoad(Struct):
    """One measured load, and the figures of both simulations of it."""

    devices: Annotated[int, Meta(description="number of devices")]
    rate: Annotated[
        float | None,
        Meta(
            description="responses that arrive per second; null where each device asks again when it has its "
            "answer"
        ),
    ]
    measured: Annotated[MeasuredLoad, Meta(description="the load as it was measured")]
    simulated: Annotated[
        Values,
        Meta(
            description="mean figures simulated with the server as fast as its profile, by the titles of "
            "their columns"
        ),
    ]
    simulated_apart: Annotated[
        dict[str, Deviation], Meta(description="how far each of these figures is off")
    ]
    as_fast: Annotated[
        Values,
        Meta(
            description="mean figures simulated with the server as fast as its batches were during the load"
        ),
    ]
    as_fast_apart: Annotated[
        dict[str, Deviation], Meta(description="how far each of these figures is off")
    ]

    @property
    def variants(self) -> Mapping[str, tuple[Values, dict[str, Deviation]]]:
        """The figures and deviations of each simulation by its name in `SIMULATED`."""
        return {
            "simulated": (self.simulated, self.simulated_apart),
            "as_fast": (self.as_fast, self.as_fast_apart),
        }


class Validation(Struct):
    """The simulation of a load."""

    seeds: Annotated[int, Meta(description="simulations of each load that were averaged")]
    rows: Annotated[list[ValidatedLoad], Meta(description="the loads in their order")]


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


TAIL_COLUMNS: tuple[tuple[str, Unit], ...] = (
    ("ITL P50", "seconds"),
    ("P95", "seconds"),
    ("P99", "seconds"),
    ("tokens/s", "number"),
)
"""Titles and units of the figures of each side."""
LOAD_COLUMNS = (
    "load",
    "throughput (tokens/s)",
    "round p50",
    "round p95",
    "violations",
    "batch size",
    "busy",
)
"""The columns of a load that a reader sees first."""


def load_report(
    run: LoadDescription, summary: LoadSummary, figures: Sequence[Figure] = ()
) -> Document:
    """Return the report of `skit load`."""
    rows = [
        [row.name, *values_of(row).values(), " and ".join(map(seconds, row.late_s))]
        for row in summary.rows
    ]
    table = Table(("load", *COLUMNS, "drafts sent late by (p50, p99)"), rows)
    return _document(
        "Load on",
        run,
        caution(machine.warnings(run), severe=True),
        [Paragraph(f"**{load_headline(run, summary)}**")],
        paragraphs(*tail_sentences(run, summary)),
        caution(load_cautions(run, summary.rows)),
        [*figures, *with_more_columns(table, LOAD_COLUMNS)],
        _gaps_of_both(run, summary) or _gaps(summary),
        _answers(summary),
    )


PLAIN = "plain decoding"
"""What the load with speculation off is called."""


def tail_sentences(run: LoadDescription, summary: LoadSummary) -> list[str]:
    """Return from which load on speculation makes the longest gaps between tokens longer, for each
    class; nothing of loads that were not measured with speculation off.

    Loads rise in the requests per second where these vary, and in the devices otherwise.
    """
    by_rate = len({row.rate for row in summary.rows}) > 1
    groups: dict[tuple[int | None, str], list[tuple[float, TailPair]]] = {}
    for row in summary.rows:
        for name, drafting, plain in _tails(row):
            load = f"{row.rate:g} requests/s" if by_rate else f"{count(row.devices)} devices"
            key = (row.devices if by_rate else None, name)
            height = float(row.rate or 0.0) if by_rate else float(row.devices)
            groups.setdefault(key, []).append((height, TailPair(load, drafting, plain)))
    several = len({devices for devices, _ in groups}) > 1
    lines = []
    for (devices, name), pairs in groups.items():
        of_class = "" if name == "all" else f" of class {slo_in_words(name)}"
        where = f" with {count(devices)} devices" if several and devices is not None else ""
        rising = [pair for _, pair in sorted(pairs, key=lambda entry: entry[0])]
        said = tail_verdict(
            rising, code(run.config.method), PLAIN, "lower rates" if by_rate else "fewer"
        )
        lines.append(f"The P99 of the time between tokens (ITL){of_class}{where}: {said}.")
    return lines


def _tails(row: MeasuredLoad) -> list[tuple[str, Interval, Interval]]:
    """Return each class that has the 99th percentile with drafts and without, and both."""
    if row.plain is UNSET or row.itl_p99 is UNSET or row.plain.itl_p99 is UNSET:
        return []
    plain = row.plain.itl_p99
    return [(name, own, plain[name]) for name, own in row.itl_p99.items() if name in plain]


def _gaps_of_both(run: LoadDescription, summary: LoadSummary) -> Blocks:
    """Return the time between tokens with speculation and without it; nothing of loads that were
    not measured with speculation off.
    """
    cells: list[list[Cell]] = []
    by_class = any(len(_tails(row)) > 1 for row in summary.rows)
    for row in summary.rows:
        for name, *tails in _tails(row):
            own: list[Cell] = [row.name, *([name] if by_class else [])]
            for side, tail in zip(row.sides, tails, strict=True):
                group = side.figures.overall if name == "all" else side.figures.classes.get(name)
                itl_s = group.itl_s if group else None
                medians = [itl_s.p50, itl_s.p95] if itl_s else [None, None]
                own += [*medians, Estimate(tail.mean, tail.bounds)]
                own.append(group.throughput if group else None)
            cells.append(own)
    if not cells:
        return []
    columns = [
        Column(f"{side}\n{title}", unit)
        for side in (run.config.method, PLAIN)
        for title, unit in TAIL_COLUMNS
    ]
    return [
        Heading("Time between tokens with speculation and without it (measured)"),
        Table(("load", *(["class"] if by_class else []), *columns), cells),
        Note(
            "Both sides have the same server, devices, prompts and arrivals, one after the other; the side that begins "
            "changes from load to load. With speculation off a device sends a message for each token. The tokens that "
            "a round brings share the gap before them equally. Intervals (95%) of a P99 are over ten stretches of the "
            "measured time; a difference is shown where they do not overlap."
        ),
    ]


def _gaps(summary: LoadSummary) -> Blocks:
    """Return the percentiles of the time between tokens, by class; nothing of files without it."""
    cells: list[list[Cell]] = []
    for row in summary.rows:
        classes = row.figures.classes if len(row.figures.classes) > 1 else {}
        for name, group in {"all": row.figures.overall, **classes}.items():
            if (itl_s := group.itl_s) is not None:
                cells.append([row.name, name, itl_s.p50, itl_s.p95, itl_s.p99])
    if not cells:
        return []
    columns = [Column(f"ITL {title}", "seconds") for title in ("P50", "P95", "P99")]
    return [
        Heading("Time between tokens (measured)"),
        Table(("load", "class", *columns), cells),
        Note(
            "The tokens that a round brings share the gap before them equally. With --baseline every load is measured "
            "with speculation off too, which says from which load on speculation hurts the tail."
        ),
    ]


def load_headline(run: LoadDescription, summary: LoadSummary) -> str:
    """Return in a sentence what the server did under the load with the highest throughput."""
    rows = summary.rows
    values = {row.name: values_of(row) for row in rows}
    best = max(values, key=lambda name: values[name]["throughput (tokens/s)"] or 0.0)
    figures = values[best]
    first = (
        f"Of {len(rows)} loads, {best} have the highest throughput"
        if len(rows) > 1
        else f"{best} were served"
    )
    promise = slo_in_words(run.config.slo[0])
    # None if no response was due within the load.
    broken = figures["violations"]
    kept = (
        f"{share(broken)} of responses slower than the promised {promise}"
        if broken is not None
        else "no response was due in the time that counts"
    )
    return (
        f"{first}: {significant(figures['throughput (tokens/s)'])} tokens/s with {code(run.config.scheduler)}, "
        f"95% of rounds answered within {seconds(figures['round p95'])}, {kept} (one measurement, no interval)."
    )


def _answers(summary: LoadSummary) -> Blocks:
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
    rows: list[list[Cell]] = []
    for row in summary.rows:
        answers = row.answers
        counts = (
            answers.rounds,
            answers.differing,
            answers.left_trace,
            answers.degraded,
            answers.refusals,
        )
        rows.append([*_point(row.devices, row.rate), *counts, row.slower, row.estimate])
    return [Heading("The server's answers"), Table(columns, rows)]


@dataclass(frozen=True, slots=True)
class JudgedError:
    """How far one simulated figure is off under one load, as a share or in points, and the
    tolerance.
    """

    load: str
    column: ComparedColumn
    variant: str
    error: float
    within: bool

    @property
    def text(self) -> str:
        """The error with its unit."""
        return f"{100 * self.error:+.1f}{' points' if self.column.in_points else '%'}"


def judged_errors(result: Validation) -> list[JudgedError]:
    """Return the errors of all figures that have a tolerance, load by load, for each variant of the
    simulation.
    """
    judged = []
    for row in result.rows:
        for column in COLUMNS:
            for name, (_, errors) in row.variants.items():
                error = errors[column.title]
                if error.off is not None and error.within is not None:
                    load = label(row.devices, row.rate)
                    judged.append(JudgedError(load, column, name, error.off, error.within))
    return judged


def validation_report(
    run: LoadDescription, result: Validation, figures: Sequence[Figure] = ()
) -> Document:
    """Return the report on the simulation of the same load."""
    rows: list[list[Cell]] = []
    for row in result.rows:
        rows.append([*_point(row.devices, row.rate), "measured", *values_of(row.measured).values()])
        for name, (values, errors) in row.variants.items():
            rows.append(["", "", SIMULATED[name], *(values[column.title] for column in COLUMNS)])
            rows.append(
                ["", "", "error", *(_error(errors[column.title], column) for column in COLUMNS)]
            )
    note = f"Tolerances: {TOLERANCES}; bold exceeds them. Simulated numbers are means over {result.seeds} seeds."
    return _document(
        "Validation of",
        run,
        caution(machine.warnings(run), severe=True),
        [Paragraph(f"**{validation_headline(result)}**")],
        caution(load_cautions(run, [row.measured for row in result.rows])),
        [*figures, _judged_table(result), Paragraph(note)],
        [Heading("All metrics"), Table((*POINT, "", *COLUMNS), rows)],
    )


def validation_headline(result: Validation) -> str:
    """Return in a sentence how many simulated numbers lie within the tolerances, and which is
    farthest off.
    """
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
    """Return a row for each figure that has a tolerance under each load, measured beside both
    simulations.
    """
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
    text = f"{100 * error.off:+.1f}{' points' if column.in_points else '%'}"
    return f"**{text}**" if error.within is False else text


def _document(subject: str, run: LoadDescription, *sections: Blocks) -> Document:
    config = run.config
    rows = [
        ("drafting", code(config.method)),
        ("promised speed (SLO)", ", ".join(map(slo_in_words, config.slo))),
        ("largest batch", count(config.max_batch)),
        (
            "measured",
            f"{config.duration_s:g} s, of which {config.warmup_s:g} s of warm-up do not count",
        ),
        ("server", f"{run.server.kind} on {run.server.device}"),
        ("expected verification times", run.deployment.verifier.origin),
        ("times of the devices", run.deployment.drafter.origin),
    ]
    setting: Blocks = [Heading("What was run"), facts(rows)]
    return Document.of(f"{subject} {code(config.scheduler)}", *sections, setting, provenance(run))


LATE_S = 0.05
"""If drafts leave later than this after their planned time, the machine is too slow for the load
that it generates.
"""
MOST_APART = 1.25
"""Largest ratio, either way, of measured verification times to those of the profile that passes
without a word.
"""


def load_cautions(run: LoadDescription, rows: Sequence[MeasuredLoad]) -> list[str]:
    """Return what limits the figures of a load, less what the machine's disturbances void."""
    lines = setting_cautions(run)
    sides = [
        (row.name if side is row else f"{row.name} with speculation off", side)
        for row in rows
        for side in row.sides
    ]
    for name, row in sides:
        if row.late_s[1] > LATE_S:
            lines.append(
                f"LATE DRAFTS at {name}: the machine that generates the load was too slow."
            )
        answers = row.answers
        if answers.degraded or answers.refusals:
            lines.append(
                f"OVERLOADED at {name}: the server answered {share(answers.degraded or 0.0)} of the rounds "
                f"without verifying the draft, and asked {count(answers.refusals)} times to send it again later."
            )
        if answers.differing:
            lines.append(
                f"OTHER ANSWERS at {name}: {share(answers.differing)} of the rounds, in "
                f"{share(answers.left_trace)} of the responses, were not answered as in the trace. Devices followed "
                "the server, and most drafts behind such an answer are wrong."
            )
    return [*lines, *profile_cautions(run, rows)]


def profile_cautions(run: LoadDescription, rows: Sequence[MeasuredLoad]) -> list[str]:
    """Return what limits the comparison with the profile."""
    lines = []
    profile = run.profile
    if profile.disturbed:
        lines.append(
            f"DISTURBED PROFILE: {'; '.join(profile.disturbed)}, while '{profile.name}' was measured."
        )
    if profile.r2 is not None and profile.r2 < LEAST_SERVED_R2:
        lines.append(poor_fit(profile.r2))
    apart = [
        f"{row.slower:.2f} times as long at {row.name}"
        for row in rows
        if row.slower and not 1 / MOST_APART <= row.slower <= MOST_APART
    ]
    if apart:
        lines.append(
            f"OTHER SPEED: verifications took {', '.join(apart)} as by the profile: measure it again, right before the "
            "load."
        )
    return lines


def label(devices: int, rate: float | None) -> str:
    """Return the name of a load; a closed loop has no rate."""
    return f"{count(devices)} devices" + ("" if rate is None else f" and {rate:g} requests/s")


ROW_IN = 0.26
FRAME_IN = 1.0
"""Height of a row, and of the axis and the legend below the rows."""


def where(run: LoadDescription) -> str:
    """Return the server, the policy and the promise in a few words."""
    config = run.config
    return (
        f"{config.scheduler} on {run.server.device}, {config.method}, promised {slo_in_words(config.slo[0])}, "
        f"{config.duration_s:g} s per load"
    )


def round_trips(summary: LoadSummary) -> Picture:
    """Return the picture of how long rounds take under each load: a line from the median to the
    slowest percent.
    """
    answered = [row for row in summary.rows if row.round_s.p50 is not None]

    def draw(axes: "Axes") -> None:
        for number, row in enumerate(answered):
            trips = row.round_s
            p50_ms, p95_ms, p99_ms = (
                1e3 * (time_s or 0.0) for time_s in (trips.p50, trips.p95, trips.p99)
            )
            axes.plot([p50_ms, p99_ms], [number, number], color=COLOURS[0], linewidth=2)
            for index, (name, time_ms) in enumerate(
                (("P50", p50_ms), ("P95", p95_ms), ("P99", p99_ms))
            ):
                name_once = name if number == 0 else None
                axes.plot(
                    [time_ms],
                    [number],
                    MARKERS[index],
                    color=COLOURS[0],
                    markersize=6,
                    label=name_once,
                )
        axes.set_yticks(range(len(answered)), [row.name for row in answered])
        axes.invert_yaxis()
        axes.margins(y=0.3)
        axes.set_xlim(left=0)
        axes.set_xlabel("time from a draft sent to its answer (ms)")
        axes.grid(axis="x", alpha=0.3)
        if answered:
            axes.legend(loc="best")

    note = "Half of the rounds are faster than P50; one in a hundred is slower than P99. To the left is better."
    return Picture(
        "round_trips", "Round trips by load", note, FRAME_IN + ROW_IN * max(2, len(answered)), draw
    )


def error_picture(result: Validation) -> Picture | None:
    """Return the picture of how far simulated figures are off, or None if none has a tolerance."""
    errors = judged_errors(result)
    by_figure: dict[tuple[str, str], list[JudgedError]] = {}
    for error in errors:
        by_figure.setdefault((error.load, error.column.title), []).append(error)
    several = len({load for load, _ in by_figure}) > 1
    # Names leave most of the width to the errors: the unit stands in the table.
    short = {figure: figure.partition(" (")[0] for _, figure in by_figure}
    names = [
        f"{short[figure]}\n{load.replace(' and ', ', ').replace(' requests', '')}"
        if several
        else short[figure]
        for load, figure in by_figure
    ]

    def draw(axes: "Axes") -> None:
        named = set[str]()
        for number, members in enumerate(by_figure.values()):
            reach = 100 * (members[0].column.tolerance or 0.0)
            axes.plot(
                [-reach, reach],
                [number, number],
                color=GREY,
                linewidth=7,
                alpha=0.3,
                solid_capstyle="butt",
            )
            for error in members:
                index = list(SIMULATED).index(error.variant)
                name = None if error.variant in named else SIMULATED[error.variant]
                named.add(error.variant)
                axes.plot(
                    [100 * error.error],
                    [number],
                    MARKERS[index],
                    color=COLOURS[index],
                    markersize=6,
                    label=name,
                )
        axes.axvline(0, color=GREY, linewidth=1)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("simulated less measured (%)")
        axes.grid(axis="x", alpha=0.3)
        axes.figure.legend(loc="outside lower center", frameon=False)

    note = f"Grey: the tolerances ({TOLERANCES}). A mark beyond them is missed; violations are in points."
    height_in = FRAME_IN + 0.3 + (1.3 if several else 1.0) * ROW_IN * max(2, len(names))
    return (
        Picture("simulation_errors", "How far the simulation is off", note, height_in, draw)
        if errors
        else None
    )
