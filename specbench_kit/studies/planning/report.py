"""The report of a plan: one sentence to act on, the Pareto figure, the fleet, its rivals and its
assumptions.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.reports.comparison.scene import legend, legend_in
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    Cell,
    CodeBlock,
    Column,
    Document,
    Estimate,
    Figure,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import deployment
from specbench_kit.reports.sections.cautions import foreign_files
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.writing.drawing import Picture, logarithmic, spans_much
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    seconds,
    share,
    significant,
    span,
    times,
)
from specbench_kit.reports.writing.palette import BLACK, COLOURS, MARKERS, Style
from specbench_kit.runs.deployment import DeploymentDescription
from specbench_kit.runs.document import RunConfig, RunDescription
from specbench_kit.serving.figures import GroupFigures, Interval
from specbench_kit.serving.options import CapacityRule
from specbench_kit.studies.planning.summary import (
    Configuration,
    DraftingDevice,
    FleetSummary,
    MovedAssumption,
    PlanSummary,
    Tie,
)
from specbench_kit.studies.serving.capacity import steps_tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS: Mapping[str, str] = {
    "edge": "drafting on the devices",
    "server": "drafting on the server",
    "none": "autoregressive decoding",
}
"""Where drafts are made, in words."""
STYLES: Mapping[str, Style] = {
    "edge": Style(COLOURS[0], "-", MARKERS[0]),
    "server": Style(COLOURS[3], "--", MARKERS[1]),
    "none": Style(BLACK, ":", "x"),
}
NOTE = (
    "Rent of whole replicas for all devices: at the plan's promise that of the table, and the ring is the plan; at "
    "other promises, with one seed, that of the cheapest replica of those that the analytic model prefers there or at "
    "a stricter one. A line ends where it keeps the promise no longer. Down and to the right is better."
)


class PlanConfig(RunConfig, kw_only=True):
    """The settings of a plan that its report names."""

    target: Annotated[str, Meta(description="target model")]
    acceptance: Annotated[
        str, Meta(description="whose acceptance the drafts have: a trace, or stated rates")
    ]
    deployment: Annotated[
        str, Meta(description="deployment whose devices draft; empty in files of earlier versions")
    ] = ""
    methods: Annotated[list[str], Meta(description="drafting methods that were tried")] = field(
        default_factory=list
    )


class PlanDescription(RunDescription, kw_only=True):
    """What `run.json` says of a plan."""

    config: Annotated[PlanConfig, Meta(description="the settings")]
    deployment: Annotated[
        DeploymentDescription, Meta(description="the deployment of the plan's replica")
    ]
    check: Annotated[str, Meta(description="command that simulates a full replica of the plan")]
    check_capacity: Annotated[
        str,
        Meta(
            description="command that searches for how many devices such a replica serves; empty in files of "
            "earlier versions"
        ),
    ] = ""
    check_s: Annotated[
        float | None,
        Meta(
            description="about how many seconds that search takes on the machine that planned; null in files "
            "of earlier versions"
        ),
    ] = None
    capacity_ahead: Annotated[
        str,
        Meta(
            description="command that searches the same where devices draft ahead of the server; empty "
            "where there is none"
        ),
    ] = ""


def dollars(value: float | None) -> str:
    """Return an amount of money: $0.288, $12.30, $1,234."""
    if value is None:
        return ABSENT
    return f"${value:,.0f}" if value >= 100 else f"${value:.2f}" if value >= 1 else f"${value:.3f}"


def headline(summary: PlanSummary) -> str:
    """Return the sentence to act on."""
    plan = summary.plan
    cards = f"{plan.cards} {plan.title}"
    if plan.cards_per_replica > 1:
        cards += f" (in {_groups(plan.replicas)} of {plan.cards_per_replica}{_stages(plan)})"
    most = plan.most_price_per_hour
    least = dollars(plan.least_price_per_hour)
    span = (
        (
            "throughout its range"
            if least == dollars(most)
            else f"between {least} and {dollars(most)}"
        )
        if most
        else (f"from {least} up, and it may fail: see the range")
    )
    how = f"weights in {plan.weight_bits} bits and {WAYS[plan.drafting]}"
    if plan.drafting != "none":
        stated = summary.stated_acceptance
        how += f" as {code(stated)} states" if stated else f" by {code(plan.method)}"
    rent = f"Rent {cards}, about {dollars(plan.price_per_hour)} per hour ({span}), with {how}; {_rivals(summary)}."
    device = summary.drafters.get("edge")
    return f"{rent} The devices that draft: {_drafting(device)}." if device else rent


def _drafting(drafter: DraftingDevice) -> str:
    """Return what drafts with its speed: phone with Snapdragon 8 Gen 3, 22.1 ms per drafted
    token.
    """
    return f"{drafter.device}, {seconds(drafter.token_s)} per drafted token"


def _stages(replica: Configuration) -> str:
    """Return how many stages a replica's cards form, if they are a pipeline."""
    return f" in {replica.stages} stages" if replica.stages > 1 else ""


def _groups(replicas: int) -> str:
    return "1 group" if replicas == 1 else f"{replicas} groups"


def _rivals(summary: PlanSummary) -> str:
    """Return what the other ways would cost, relative to the plan."""
    plan = summary.plan
    parts = []
    for way, fleet in summary.fleets.items():
        if way == plan.drafting:
            continue
        if fleet is None:
            parts.append(f"{WAYS[way]} would not keep the promise")
        else:
            doubt = ", with a range that overlaps" if fleet.overlaps(plan) else ""
            ratio = times(fleet.price_per_hour / plan.price_per_hour)
            equal = fleet.price_per_hour == plan.price_per_hour
            parts.append(
                f"{WAYS[way]} would cost {'as much' if equal else f'{ratio} as much{doubt}'}{_served(fleet, plan)}"
            )
    parts.reverse()
    parts += [f"{_tie(tie, summary.devices)} would cost as much" for tie in summary.ties]
    return "; ".join(parts)


def _served(fleet: FleetSummary, plan: FleetSummary) -> str:
    """Return what a replica of the same cards serves, which rents of whole replicas may hide."""
    if not _is_same_replica(fleet, plan):
        return ""
    return f" (a replica serves {count(fleet.devices_served)} devices, the plan's {count(plan.devices_served)})"


def _is_same_replica(one: Configuration, other: Configuration) -> bool:
    """Return whether two replicas are of as many of the same cards, in as many stages."""
    return (one.card, one.cards_per_replica, one.stages) == (
        other.card,
        other.cards_per_replica,
        other.stages,
    )


def _tie(tie: Tie, devices: int) -> str:
    """Return another kind of replica of the same rent in words."""
    replicas = ceil(devices / tie.devices_served)
    cards = f"{replicas * tie.cards_per_replica} {tie.title}"
    if tie.cards_per_replica > 1:
        cards += f" in {_groups(replicas)} of {tie.cards_per_replica}{_stages(tie)}"
    return f"{cards} with weights in {tie.weight_bits} bits and {WAYS[tie.drafting]}"


def fleet_table(summary: PlanSummary, *, short: bool = False) -> Table:
    """Return one row per way to decode: its cheapest fleet, whose cards are named `short`, as
    options name them.
    """
    columns = (
        *("", "cards", "weights", "method", "scheduler", "largest batch"),
        *(Column("devices per replica", "count"), Column("it serves", "count")),
        Column("late responses (95%)", "share"),
        *("$ per hour", "range", "$ per million tokens", "kW at most"),
        *(Column("J / token of servers", "number"), Column("J / token of devices", "number")),
        Column("J / hour of a device", "number"),
    )
    rows: list[Sequence[Cell]] = []
    for way, fleet in summary.fleets.items():
        if fleet is None:
            rows.append([WAYS[way], "keeps the promise with none", *[None] * 14])
            continue
        late = fleet.violation_rate
        rows.append(
            [
                WAYS[way],
                f"{fleet.cards} x {fleet.card if short else fleet.title}"
                + (
                    f" ({_groups(fleet.replicas)}{_stages(fleet)})"
                    if fleet.cards_per_replica > 1
                    else ""
                ),
                f"{fleet.weight_bits} bits",
                code(fleet.method),
                code(fleet.scheduler),
                str(fleet.max_batch),
                fleet.devices_per_replica,
                fleet.devices_served,
                Estimate(late.mean, late.bounds),
                dollars(fleet.price_per_hour),
                _span(fleet),
                dollars(fleet.price_per_million),
                f"{fleet.power_kw:.1f}",
                *(None if energy is None else energy.mean for energy in fleet.energy),
            ]
        )
    return Table(columns, rows)


MINUTES_FROM_S = 90.0
"""Rough times from which on minutes are given."""
ABOUT_DRAFTS = ("acceptance", "drafting speed")
"""Assumptions that only fleets that draft make."""
FIRST = ("", "cards", "method", "late responses (95%)", "$ per hour", "range")
"""Columns that fit a terminal."""


def _span(fleet: FleetSummary | Tie) -> str:
    most = fleet.most_price_per_hour
    return span(dollars(fleet.least_price_per_hour), dollars(most) if most else "no fleet")


def terminal(run: PlanDescription, summary: PlanSummary) -> Blocks:
    """Return what the command prints."""
    return [
        *foreign_files(run),
        Paragraph(f"**{headline(summary)}**"),
        fleet_table(summary, short=True).columns_of(FIRST),
        Paragraph("What the answer rests on, each moved alone:"),
        BulletList(
            [
                *_drafting_devices(run, summary),
                *(_assumption(row, summary) for row in summary.assumptions),
            ]
        ),
        *_methods(run),
        *caution(cautions(run, summary)),
        *([Note(_check_time(run.check_s))] if run.check_s is not None else []),
    ]


def _drafting_devices(run: PlanDescription, summary: PlanSummary) -> list[str]:
    """Return a line on what drafts and how fast, on the devices and on the server."""
    places = {"edge": "on the devices", "server": "on the server"}
    parts = [f"{_drafting(drafter)} {places[way]}" for way, drafter in summary.drafters.items()]
    stated = f", of the deployment {code(run.config.deployment)}" if run.config.deployment else ""
    return [f"drafting device{stated}: {'; '.join(parts)}"] if parts else []


def _methods(run: PlanDescription) -> list[Block]:
    """Return which methods were chosen among: what a plan says of drafting is said of these
    alone.
    """
    if not run.config.methods:
        return []
    named = ", ".join(map(code, run.config.methods))
    return [
        Note(
            f"Drafting methods to choose from: {named}; --method names others. One whose server never waits, such as "
            f"{code('decoupled')}, is judged by {code('skit capacity')} alone, and may serve more devices that draft"
            + (
                ", on the plan's replica by this command in the folder of the plan:"
                if run.capacity_ahead
                else "."
            )
        ),
        *([CodeBlock(run.capacity_ahead)] if run.capacity_ahead else []),
    ]


def _check_time(check_s: float) -> str:
    return (
        f"To check it, the report gives two commands for its folder: {code('skit simulate')} takes seconds, and "
        f"{code('skit capacity')} about {_rough(check_s)} on this machine, by one simulation that was timed."
    )


def _rough(duration_s: float) -> str:
    """Return a rough time in words: `20 seconds` to `90 seconds`, then minutes."""
    if duration_s < MINUTES_FROM_S:
        return f"{10 * ceil(duration_s / 10)} seconds"
    return f"{ceil(duration_s / 60)} minutes"


def build(run: PlanDescription, summary: PlanSummary, figures: Sequence[Figure]) -> Document:
    """Return the report."""
    promise = slo_in_words(summary.slo)
    replica = facts(deployment.description(run.deployment))
    title = f"A fleet for {count(summary.devices)} devices: {promise}"
    return Document.of(
        title,
        foreign_files(run),
        [Paragraph(f"**{headline(summary)}**")],
        figures,
        caution(cautions(run, summary)),
        _assumptions(run, summary),
        _fleets(summary),
        _methods(run),
        _latencies(summary),
        _range(summary),
        _search(summary),
        _prices(summary),
        _check(run, summary),
        [Heading("The replica of the plan (modelled)"), replica],
        provenance(run),
    )


def _fleets(summary: PlanSummary) -> Blocks:
    plan = summary.plan
    table = fleet_table(summary)
    text = (
        f"Each fleet is the one with the least rent for {count(summary.devices)} devices, of equal replicas. A replica "
        f"serves so many devices that the 95% interval of late responses over {summary.seeds} seeds ends at or below "
        f"{share(summary.epsilon)}: one of the plan's up to {count(plan.devices_served)}, and it has "
        f"{count(plan.devices_per_replica)}. The range covers the interval over seeds of what a replica serves, and "
        "both ends of what its step times may be; where two ranges overlap, neither fleet is shown to be cheaper. "
        "The devices are the users' own and cost nothing here."
    )
    first = table.columns_of(
        ("", "cards", "weights", "method", "$ per hour", "range", "late responses (95%)")
    )
    return [
        Heading("The cheapest fleets (modelled)"),
        first,
        Folded("All columns", [table]),
        Paragraph(text),
    ]


def _assumption(row: MovedAssumption, summary: PlanSummary) -> str:
    """Return an assumption in a sentence: what was assumed, what it was moved to, and what is then
    needed.
    """
    subject = "this configuration" if row.drafting == summary.plan.drafting else WAYS[row.drafting]
    if row.price_per_hour is None:
        answer = f"{subject} would not keep the promise"
    else:
        rent = f"{dollars(row.price_per_hour)} per hour"
        answer = f"{subject} takes {row.cards} cards and {rent}, {times(row.ratio)} as much{_turn(row, summary)}"
    return f"{row.name}: {row.assumed} ({row.cards_before} cards); with {row.moved}, {answer}"


def _turn(row: MovedAssumption, summary: PlanSummary) -> str:
    """Return that a moved draft changes whether drafting is cheaper than decoding without; empty
    where it does not.

    Only decoding without drafts costs the same whatever drafts are like.
    """
    without = summary.fleets.get("none")
    if row.name not in ABOUT_DRAFTS or without is None or row.price_per_hour is None:
        return ""
    if row.drafting == summary.plan.drafting and row.price_per_hour > without.price_per_hour:
        return f": {WAYS['none']} is cheaper then ({dollars(without.price_per_hour)})"
    if row.drafting != summary.plan.drafting and row.price_per_hour < without.price_per_hour:
        return f": cheaper than the plan ({dollars(without.price_per_hour)})"
    return ""


def _assumptions(run: PlanDescription, summary: PlanSummary) -> Blocks:
    rows = [
        (
            row.name,
            WAYS[row.drafting],
            row.assumed,
            row.moved,
            row.cards,
            dollars(row.price_per_hour),
            row.ratio,
        )
        for row in summary.assumptions
    ]
    columns = (
        *(
            "assumption",
            "of the fleet",
            "assumed",
            "moved to",
            Column("cards", "count"),
            "$ per hour",
        ),
        Column("of its rent before", "times"),
    )
    text = (
        "The fleet named with each assumption moved alone and all else unchanged, by one seed; a dash: it would not "
        "keep the promise. Acceptance and drafting speed are always moved, against the plan: to worse drafts where it "
        "drafts, and to better ones of the cheapest fleet that drafts where it does not. The others are the three "
        "that change the plan's rent most."
    )
    devices = _drafting_devices(run, summary)
    return [
        Heading("What the answer rests on"),
        *([BulletList(devices)] if devices else []),
        Table(columns, rows),
        Paragraph(text),
    ]


def _latencies(summary: PlanSummary) -> Blocks:
    plan = summary.plan
    timed = [
        f"{name} {figure}"
        for name in ("response", "TTFT", "TPOT")
        for figure in ("p50", "p95", "p99")
    ]
    columns: tuple[Column | str, ...] = (
        *("class", Column("late", "share"), Column("tokens/s of a response", "number")),
        *(Column(title, "seconds") for title in timed),
    )
    groups: dict[str, GroupFigures[Interval]] = {"all": plan.overall}
    if len(plan.classes) > 1:
        groups |= plan.classes
    rows: list[list[Cell]] = []
    for name, group in groups.items():
        late = group.violation_rate.mean if group.violation_rate else None
        cells: list[Cell] = [name, late, group.speed.mean.mean if group.speed else None]
        for times_s in (group.response_s, group.ttft_s, group.tpot_s):
            cells += (
                [times_s.p50.mean, times_s.p95.mean, times_s.p99.mean] if times_s else [None] * 3
            )
        rows.append(cells)
    title = f"Latency with {count(plan.devices_per_replica)} devices at a replica (modelled)"
    return [Heading(title), Table(columns, rows)]


def _range(summary: PlanSummary) -> Blocks:
    fleets = {way: fleet for way, fleet in summary.fleets.items() if fleet is not None}
    ends = dict.fromkeys(end for fleet in fleets.values() for end in fleet.served_at_ends)
    rows: list[list[Cell]] = [
        ["by seed", *(", ".join(map(str, fleet.served.by_seed)) for fleet in fleets.values())]
    ]
    for end in ends:
        devices = (fleet.served_at_ends.get(end) for fleet in fleets.values())
        rows.append([end, *(ABSENT if number is None else str(number) for number in devices)])
    return [
        Heading("Devices that a replica serves"),
        Table(("", *(WAYS[way] for way in fleets)), rows),
        Paragraph("The ends are those of what derived step times may be, with the first seed."),
        *paragraphs(*_gain_of_devices(summary)),
    ]


def _gain_of_devices(summary: PlanSummary) -> list[str]:
    """Return what a replica gains from devices that draft, beside the capacity factor of `skit
    sweep`.
    """
    edge, server, factor = (
        summary.fleets.get("edge"),
        summary.fleets.get("server"),
        summary.capacity_factor,
    )
    if edge is None or server is None or factor is None or not _is_same_replica(edge, server):
        return []
    return [
        f"So a replica serves {times(edge.devices_served / server.devices_served)} as many devices if they draft "
        f"themselves by {code(edge.method)} as if it drafts for them by {code(server.method)}. The capacity factor of "
        f"{code('skit sweep')}, 1 + drafting time / verifying time of a server, is another number: by the analytic "
        f"model {factor.alone:.2f} for one request at a time here and {factor.in_batches:.2f} in the batches of the "
        f"replica that drafts, of {significant(factor.batch_size)} requests on average. It knows neither the promise "
        "nor how long a round is on the link or waits. Both grow with the length of drafts, and for large batches a "
        "plan chooses short ones."
    ]


def _search(summary: PlanSummary) -> Blocks:
    lines = [
        f"{WAYS[way]}: {counts.candidates:,} configurations, {counts.simulated:,} simulated; {counts.ruled_out:,} "
        "kinds of replicas cannot be cheaper by the analytic model's bound; of the others "
        f"{counts.untried:,} configurations were left out, since the analytic model finds others more promising"
        for way, counts in summary.searched.items()
    ]
    columns = (
        *("cards", "weights", "drafting", "method", "scheduler", Column("largest batch", "count")),
        *(Column("devices", "count"), "with", Column("by the analytic model", "count")),
        f"$ per hour for {count(summary.devices)} devices",
    )
    rows = [
        (
            f"{row.cards_per_replica} x {row.card}{_stages(row)}",
            f"{row.weight_bits} bits",
            WAYS[row.drafting],
            code(row.method),
            code(row.scheduler),
            row.max_batch,
            row.devices_served or None,
            "all seeds" if row.all_seeds else "one seed",
            row.devices_by_law,
            dollars(row.price_per_hour),
        )
        for row in summary.candidates
    ]
    table = Table(columns, rows)
    text = (
        "Devices that one replica serves, at least; the rent is that of as many replicas as all devices take. A dash: "
        "it would take more replicas than the best one costs."
    )
    return [
        Heading("How it was searched"),
        BulletList(lines),
        Folded("Simulated candidates", [table, Paragraph(text)]),
    ]


def _prices(summary: PlanSummary) -> Blocks:
    columns = (
        "card",
        "$ per hour",
        "read on",
        "product",
        "source",
        Column("power (W)", "count"),
        "power from",
    )
    rows = [
        (
            name,
            dollars(price.price_per_hour),
            price.date,
            price.product,
            price.source,
            price.power_w or None,
            price.power_source or None,
        )
        for name, price in summary.prices.items()
    ]
    return [Heading("Prices and power"), Table(columns, rows)]


def _check(run: PlanDescription, summary: PlanSummary) -> list[Block]:
    commands = [command for command in (run.check, run.check_capacity) if command]
    loads = len(steps_tried(summary.plan.devices_served, CapacityRule()))
    return [
        Heading("To check the plan, in its folder"),
        Paragraph(
            "The first simulates a replica with as many devices as the plan gives it, with other draws of the same "
            "scene; the second searches anew for how many such a replica serves. It simulates about "
            f"{loads} loads with each of {summary.seeds} seeds, one after the other; the terminal said at the end of "
            "the plan how long that takes."
        ),
        CodeBlock("\n".join(commands)),
    ]


def cautions(run: PlanDescription, summary: PlanSummary) -> list[str]:
    plan = summary.plan
    target = run.config.target
    lines = [
        f"MODELLED TIME: step times are those of {target}, derived and not measured: {run.deployment.verifier.origin}.",
    ]
    # Whether drafting pays rests on it, whichever way is the cheapest.
    is_compared = any(
        fleet is not None and fleet.drafting != "none" for fleet in summary.fleets.values()
    )
    if is_compared and summary.stated_acceptance:
        lines.append(
            f"STATED ACCEPTANCE: {code(summary.stated_acceptance)} says how much is drafted and accepted, so that "
            "no method was chosen; a trace as --acceptance compares them."
        )
    elif is_compared:
        lines.append(
            f"ASSUMED ACCEPTANCE: which drafts are accepted comes from {code(run.config.acceptance)}, which need "
            f"not be that of {target} and its draft model."
        )
    late = plan.violation_rate
    if late.high is not None and late.high > summary.epsilon:
        lines.append(
            f"FEW RESPONSES: with {count(plan.devices_per_replica)} devices at a replica the interval of late "
            f"responses ends at {share(late.high)}, above {share(summary.epsilon)}, where it serves "
            f"{count(plan.devices_served)}; a longer --duration narrows it."
        )
    rivals = [
        f"{WAYS[way]} ({dollars(fleet.price_per_hour)}, {_span(fleet)})"
        for way, fleet in summary.fleets.items()
        if fleet is not None
        and way != plan.drafting
        and fleet.overlaps(plan)
        and fleet.price_per_hour != plan.price_per_hour
    ]
    if rivals:
        lines.append(
            f"NOT SHOWN TO BE CHEAPER: the range of the rent with {' and with '.join(rivals)} overlaps the plan's, "
            f"{_span(plan)}."
        )
    if plan.weight_bits < 16:
        lines.append(
            f"OTHER OUTPUTS: with weights in {plan.weight_bits} bits the target answers otherwise than in 16; their "
            "step times go by the analytic model from the data sheet, computed in 16 bits."
        )
    dates = sorted({price.date for price in summary.prices.values()})
    lines.append(f"PRICES READ {' AND '.join(dates)}: give yours with --prices.")
    return lines


def pareto(summary: PlanSummary) -> Picture:
    """Return the figure of the rent for all devices over the promised speed."""

    def paint(axes: "Axes") -> None:
        for way, style in STYLES.items():
            points = [
                (point.promised, point.kept) for point in summary.pareto if point.drafting == way
            ]
            x = [promised for promised, kept in points if kept]
            y = [kept.price_per_hour for _, kept in points if kept]
            axes.plot(
                x, y, color=style.colour, linestyle=style.line, marker=style.marker, label=WAYS[way]
            )
        plan = summary.plan
        promised = next(point.promised for point in summary.pareto if point.scale == 1.0)
        axes.plot(
            [promised],
            [plan.price_per_hour],
            "o",
            ms=12,
            mfc="none",
            mec=STYLES[plan.drafting].colour,
        )
        axes.set(xlabel="promised tokens per second, mean over devices", ylabel="$ per hour")
        axes.margins(y=0.1)
        # One dear point would press all others on the axis.
        drawn = [
            (point.promised, point.kept.price_per_hour) for point in summary.pareto if point.kept
        ]
        if spans_much(x for x, _ in drawn):
            logarithmic(axes, "x", (1, 2, 5))
        if spans_much([plan.price_per_hour, *(y for _, y in drawn)]):
            logarithmic(axes, "y", (1, 2, 5))
        else:
            axes.set_ylim(bottom=0)
        legend(axes)

    title = "Rent over the promised speed"
    return Picture("pareto", title, NOTE, 3.0 + legend_in(WAYS.values()), paint)
