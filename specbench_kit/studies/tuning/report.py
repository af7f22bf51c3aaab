"""The page of `skit tune`: what the chosen options of each method gain on requests that did not
choose them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import convert

from specbench_kit.methods.spec import known_class
from specbench_kit.reports.document import (
    Block,
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
)
from specbench_kit.reports.sections.cautions import shorter_drafts
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import ABSENT, interval, rate, significant, times
from specbench_kit.reports.writing.palette import COLOURS
from specbench_kit.runs.document import LoweredLimit, RunDescription
from specbench_kit.studies.tuned_options import TunedMethod, TunedOptions
from specbench_kit.studies.tuning.objectives import OBJECTIVES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW_REQUESTS = 20
"""Test requests below which a reader is warned."""


def gain(choice: TunedMethod) -> Estimate:
    """Return what decided of the chosen options over that of the defaults; without a value if these
    cannot run.
    """
    ratio = choice.merit / choice.default_merit if choice.default_merit else None
    return Estimate(ratio, choice.gain_interval)


def headline(tuned: TunedOptions) -> str:
    """Return the best tuned method in a sentence, with what tuning gained and the interval of
    that.
    """
    if not tuned.methods:
        return "No method could be tuned on this trace."
    name, best = max(tuned.methods.items(), key=lambda item: item[1].merit)
    measure = OBJECTIVES[tuned.objective]
    gained = gain(best)
    bounds = gained.bounds
    if all(choice.tried == 1 for choice in tuned.methods.values()):
        names = ", ".join(map(code, tuned.methods))
        return f"Nothing was tuned: nothing but the defaults of {names} was tried."
    among = f"Of {len(tuned.methods)} tuned methods, " if len(tuned.methods) > 1 else ""
    merit = rate(best.merit) if measure.speed else f"{significant(best.merit)} {measure.unit}"
    done = f"{among}{code(best.spec)} is {measure.best}: {merit} on requests that chose no options"
    if gained.value is None:
        return f"{done}; the defaults of {code(name)} cannot be replayed on this trace."
    if best.merit == best.default_merit:
        better = "faster" if measure.speed else "better"
        return f"{done}; no other setting of {code(name)} was {better} than its defaults."
    within = f" (95% interval {interval(bounds)})" if bounds else " (without an interval)"
    shown = ", which shows no gain" if bounds is not None and bounds[0] <= 1 <= bounds[1] else ""
    those = "the speed" if measure.speed else "those"
    return f"{done}, {times(gained.value)}{within} {those} of its defaults{shown}."


def table(tuned: TunedOptions) -> Table:
    """Return a row per method, the best first."""
    measure = OBJECTIVES[tuned.objective]
    columns = (
        "method",
        *(() if measure.speed else (Column(measure.unit, "number"),)),
        Column("tuned\ntokens/s", "number"),
        Column("default\ntokens/s", "number"),
        Column("gain (95%)", "times"),
        Column("tried", "count"),
        "options",
    )
    rows: list[list[Cell]] = []
    for name, choice in sorted(tuned.methods.items(), key=lambda item: -item[1].merit):
        options = choice.spec.partition(":")[2]
        speeds: list[Cell] = [choice.tokens_per_s, choice.default_tokens_per_s, gain(choice)]
        if not measure.speed:
            speeds.insert(0, choice.merit)
        rows.append(
            [code(name), *speeds, choice.tried, code(options) if options else "the defaults"]
        )
    return Table(columns, rows)


def draft_headline(tuned: TunedOptions) -> str:
    """Return in a sentence which draft of several was chosen, and how it does on requests that
    chose nothing.
    """
    chosen, *others = tuned.drafts
    best = max(others, key=lambda draft: draft.merit)
    measure = OBJECTIVES[tuned.objective]
    ratio = times(chosen.merit / best.merit)
    those = (
        f"decodes {ratio} as fast with it as {code(best.spec)} with {best.name}"
        if measure.speed
        else f"has {ratio} the {measure.unit} with it that {code(best.spec)} has with {best.name}"
    )
    return (
        f"Of {len(tuned.drafts)} drafts, {chosen.name} is chosen: {code(chosen.spec)} {those}, on requests that "
        "chose nothing."
    )


def draft_table(tuned: TunedOptions) -> Table:
    """Return a row per draft, the chosen one first."""
    measure = OBJECTIVES[tuned.objective]
    best = measure.best.removeprefix("the ")
    columns = ("draft", Column("step", "seconds"), Column(measure.unit, "number"), f"{best} method")
    return Table(
        columns,
        [[draft.name, draft.step_s, draft.merit, code(draft.spec)] for draft in tuned.drafts],
    )


def notes(tuned: TunedOptions) -> list[Block]:
    """Return what the figures of the table rest on."""
    requests = (
        f"{tuned.run['requests']} requests: one half to choose options, the other for these figures"
    )
    lines = [f"{tuned.deployment}, batch of {tuned.batch_size}, {requests}"]
    if any(choice.default_tokens_per_s is None for choice in tuned.methods.values()):
        lines.append(f"{ABSENT}: with its defaults, the method cannot be replayed on this trace")
    if ends := _at_an_end(tuned):
        lines.append(
            f"least or largest of the values tried, so that a better one may lie beyond: {'; '.join(ends)}"
        )
    return [Note(line) for line in lines]


def cautions(tuned: TunedOptions) -> list[str]:
    """Return what a reader must know before quoting a gain."""
    tested = tuned.run["requests"] // 2
    few = [f"FEW REQUESTS: gains rest on {tested} requests; record more before you conclude."]
    return [
        *_untried(tuned),
        *(few if tested < FEW_REQUESTS else []),
        "MODELLED TIME: durations come from the latency models of the deployment "
        f"'{tuned.deployment}', not from a clock.",
        *shorter_drafts(convert(tuned.run.get("lowered_limits", {}), dict[str, LoweredLimit])),
    ]


def _untried(tuned: TunedOptions) -> list[str]:
    """Return the methods that name no values to try, with what to do."""
    names = [code(name) for name, choice in tuned.methods.items() if choice.tried == 1]
    if not names:
        return []
    return [
        f"NOTHING TO TRY: only the defaults of {', '.join(names)} were replayed; values to try are those of the class "
        "attribute `grid` of a method, such as `grid = {'threshold': (0.3, 0.5, 0.7)}`."
    ]


def _at_an_end(tuned: TunedOptions) -> list[str]:
    """Return the chosen numbers that are the least or the largest of the values tried."""
    found = []
    for name, choice in tuned.methods.items():
        kind = known_class(name)
        grid = kind.grid if kind else {}
        for item in filter(None, choice.spec.partition(":")[2].split(",")):
            option, _, text = item.partition("=")
            numbers = [value for value in grid.get(option, ()) if isinstance(value, int | float)]
            if len(numbers) > 1 and text in (str(min(numbers)), str(max(numbers))):
                found.append(f"{code(name)}: {item}")
    return found


def warnings(tuned: TunedOptions) -> list[str]:
    """Return the line that stands before all others where the times that decided were taken on a
    busy machine.
    """
    found = "; ".join(tuned.disturbed)
    return (
        [f"DISTURBED MACHINE: the times that decided do not hold: {found}: record again."]
        if found
        else []
    )


def build(
    run: RunDescription,
    tuned: TunedOptions,
    left_out: Mapping[str, str],
    figures: Sequence[Figure] = (),
) -> Document:
    """Return the page; `left_out` says of methods why they have no options."""
    name = (tuned.run.get("dataset") or {}).get("name")
    rows = [
        ("trace", f"{tuned.run['requests']} requests of {name or 'a recorded dataset'}"),
        ("deployment", tuned.deployment),
        ("what decided", f"{tuned.objective}: {OBJECTIVES[tuned.objective].unit}"),
        ("batch size", str(tuned.batch_size)),
        ("settings tried per method", f"at most {tuned.budget}, the defaults among them"),
        *((f"left out: {code(spec)}", reason) for spec, reason in left_out.items()),
    ]
    return Document.of(
        "Tuned options",
        caution(warnings(tuned), severe=True),
        [Paragraph(f"**{headline(tuned)}**")],
        caution(cautions(tuned)),
        figures,
        [Paragraph(draft_headline(tuned)), draft_table(tuned)] if tuned.drafts else [],
        [table(tuned), *notes(tuned)],
        [Heading("What was run"), facts(rows)],
        provenance(run),
    )


def terminal(tuned: TunedOptions) -> Blocks:
    """Return what a terminal shows: the result, the table, and what limits it."""
    drafts: list[Block] = []
    if tuned.drafts:
        drafts = [draft_table(tuned), Paragraph(f"**{draft_headline(tuned)}**")]
    return [
        Paragraph(f"**{headline(tuned)}**"),
        table(tuned),
        *notes(tuned),
        *drafts,
        *caution([*warnings(tuned), *cautions(tuned)]),
    ]


NOTE = (
    "Hollow: with the default options; filled: with the chosen ones; both on requests that chose "
    "none. To the right is "
)


def picture(tuned: TunedOptions) -> Picture | None:
    """Return the picture of what decided, of each method before and after tuning, the best first;
    None without methods.
    """
    measure = OBJECTIVES[tuned.objective]
    ordered = sorted(tuned.methods.items(), key=lambda item: -item[1].merit)

    def paint(axes: "Axes") -> None:
        for number, (_, choice) in enumerate(ordered):
            if (default := choice.default_merit) is not None:
                axes.plot([default, choice.merit], [number, number], color=COLOURS[0], linewidth=2)
                axes.plot(
                    [default], [number], "o", color=COLOURS[0], markerfacecolor="none", markersize=9
                )
            axes.plot([choice.merit], [number], "o", color=COLOURS[0], markersize=5)
        axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
        axes.invert_yaxis()
        axes.margins(y=0.3)
        # By the speeds and not by their spread, which is nothing where all methods are alike.
        axes.set_xlim(
            0,
            1.06 * max(max(one.merit, one.default_merit or 0.0) for _, one in ordered),
        )
        axes.set_xlabel("tokens per second" if measure.speed else measure.unit)
        axes.grid(axis="x", alpha=0.3)

    height_in = 0.8 + 0.24 * max(2, len(ordered))
    return (
        Picture(
            "tuning_gain",
            "Speed before and after tuning"
            if measure.speed
            else f"{measure.unit.capitalize()} before and after tuning",
            NOTE + ("faster." if measure.speed else "better."),
            height_in,
            paint,
        )
        if ordered
        else None
    )
