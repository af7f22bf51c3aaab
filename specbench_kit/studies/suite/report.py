"""The report on one run of a suite: a sentence, a table, and a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING

from specbench_kit.core.errors import by_reason
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import (
    Block,
    BulletList,
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
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import share, times
from specbench_kit.studies.suite.plots import curves
from specbench_kit.studies.suite.scores import (
    CellScore,
    FleetCapacity,
    MeasuredResult,
    PolicyResult,
    Scoreboard,
    SuiteCell,
    SuiteFleet,
    SuiteOutline,
    fleet_capacity,
)

if TYPE_CHECKING:
    from rich.console import Console

QUICK = "QUICK RUN: fewer requests than the suite has. Its numbers compare with nothing, and it cannot be submitted."
MODELLED = "Every number is modelled: the rounds are those of a live run, and their time is that of the deployment."
REGRET = (
    "Regret is the share of the policy's time that the oracle of the cell would have saved. The oracle has the fastest "
    "draft lengths of every request that is decoded alone; where trees, drafting ahead or a batch let a policy be "
    "faster, its regret is 0."
)
MEASURED = (
    "Measured, one request at a time, on the prompts of the recorded pair: the time of the answers of the first server "
    "over that of the second, with an interval that holds together with those of all other figures. The servers may "
    "run other models than the recorded pair, so that these rows compare with no modelled one."
)
MOST_CURVES = 6


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run: its suite, the scores of all policies, those that ran, and whether it was a quick
    one.
    """

    outline: SuiteOutline
    board: Scoreboard
    policies: Sequence[PolicyResult]
    is_quick: bool

    @property
    def deployable(self) -> list[str]:
        """The specs of those that ran and can be deployed, without the baseline."""
        return [
            policy.spec
            for policy in self.policies
            if not policy.is_bound and policy.spec != BASELINE
        ]


def print_results(console: "Console", run: SuiteRun) -> None:
    """Print the sentence and the table."""
    render_terminal.show(console, [*_opening(run), *_tables(run, brief=True)])


def pictures(run: SuiteRun) -> Iterator[Picture]:
    """Yield the speedups of the best policies by deployment, a figure for each batch size."""
    board = run.board
    specs = run.deployable
    for size, cells in by_batch_size(board).items() if specs else ():
        picture = curves(
            board, best_first(board, specs)[:MOST_CURVES], cells, f"speedup-batch-{size}"
        )
        yield replace(picture, title=f"{picture.title}, batch size {size}")


def build(run: SuiteRun, figures: Sequence[Figure]) -> Document:
    """Return the page."""
    outline = run.outline
    specs = run.deployable
    identity = facts(
        [
            ("suite", f"{outline.name}: {outline.summary}"),
            ("hash of the suite", code(outline.sha256)),
            *((f"pair {code(name)}", words) for name, words in outline.pairs.items()),
        ]
    )
    *opening, scope = _opening(run)
    sections: list[Sequence[Block]] = [
        opening,
        figures,
        [scope],
        list(_tables(run)),
        [Heading("What was run"), identity, policy_facts(run.policies)],
        [Heading(f"What {outline.name} leaves out"), BulletList(outline.left_out)],
    ]
    title = f"Suite {outline.name}: {', '.join(map(code, specs[:3]))}{' and more' if len(specs) > 3 else ''}"
    return Document.of(title, *sections)


def headlines(run: SuiteRun) -> list[str]:
    """Return a sentence on each of the best policies that ran."""
    named = best_first(run.board, run.deployable) or [policy.spec for policy in run.policies]
    return [headline(run.board, spec) for spec in named[:3]]


def cautions(run: SuiteRun) -> list[str]:
    """Return what limits the scores."""
    return [QUICK] if run.is_quick else []


def by_batch_size(board: Scoreboard) -> dict[int, list[SuiteCell]]:
    """Return the cells of recorded pairs by their batch size."""
    of_size = attrgetter("batch_size")
    cells = sorted((cell for cell in board.cells.values() if cell.is_recorded), key=of_size)
    return {size: list(group) for size, group in groupby(cells, of_size)}


def best_first(board: Scoreboard, specs: Sequence[str]) -> list[str]:
    """Return policies from the least mean regret to the largest; those without a recorded cell come
    last.
    """
    cells = recorded(board)
    regrets = {}
    for spec in specs:
        regret = mean_regret(board, spec, cells)
        if regret is not None:
            regrets[spec] = regret
    return [
        *sorted(regrets, key=regrets.__getitem__),
        *(spec for spec in specs if spec not in regrets),
    ]


def recorded(board: Scoreboard) -> list[str]:
    """Return the names of the cells of recorded pairs."""
    return [cell.name for cell in board.cells.values() if cell.is_recorded]


def mean_regret(board: Scoreboard, spec: str, cells: Sequence[str]) -> float | None:
    """Return the mean regret over cells; None unless the policy ran in all of them."""
    scores = [board.score(spec, cell) for cell in cells]
    regrets = [score.regret for score in scores if score and score.regret is not None]
    return fmean(regrets) if regrets and len(regrets) == len(cells) else None


def worst_regret(board: Scoreboard, spec: str, cells: Sequence[str]) -> tuple[str, float] | None:
    """Return the cell in which a policy has the largest regret, and that regret; None if it ran in
    none of them.
    """
    scores = {cell: board.score(spec, cell) for cell in cells}
    regrets = {
        cell: score.regret for cell, score in scores.items() if score and score.regret is not None
    }
    return max(regrets.items(), key=lambda item: item[1], default=None)


def headline(board: Scoreboard, spec: str) -> str:
    """Return the sentence on one policy: its mean speedup, its regret, and its best place."""
    cells = recorded(board)
    ran = board.scores(spec)
    speedup = board.mean_speedup(spec, cells)
    regret = mean_regret(board, spec, cells)
    parts = []
    if speedup is not None:
        parts.append(
            f"{times(speedup)} the speed of autoregressive decoding over {len(cells)} cells of the recorded pair"
        )
    else:
        parts.append(f"runs in {len(ran)} of {len(board.cells)} cells")
    if regret is not None:
        largest = worst_regret(board, spec, cells)
        most = (
            f" ({share(largest[1])} in its worst cell, {largest[0]})"
            if largest and largest[1] > regret
            else ""
        )
        parts.append(f"{share(regret)} of its time would be saved by the oracle{most}")
    ranks = {cell: rank for cell in ran if (rank := board.rank(spec, cell))}
    if ranks:
        best = min(ranks, key=lambda cell: ranks[cell][0])
        worst = max(ranks, key=lambda cell: ranks[cell][0])
        own = [
            f"rank {ranks[cell][0]} of {ranks[cell][1]} in {code(cell)}"
            for cell in dict.fromkeys((best, worst))
        ]
        parts.append(", its best place, and ".join(own) + (", its worst" if len(own) > 1 else ""))
    served = {name: capacity for name in board.fleets if (capacity := board.capacity(spec, name))}
    parts += [
        f"one server serves {devices(board.fleets[name], capacity)} {code(name)}"
        for name, capacity in served.items()
    ]
    return f"**{code(spec)}: {'; '.join(parts)}.**"


def devices(fleet: SuiteFleet, capacity: FleetCapacity) -> str:
    """Return a number of devices, in words where it lies beyond the loads that were simulated."""
    if capacity.is_below:
        return f"fewer than {fleet.loads[0]}"
    return f"{'at least ' if capacity.is_bounded else ''}{capacity.devices:.0f}"


def fleet_note(fleet: SuiteFleet) -> str:
    """Return what the columns of a fleet say."""
    *speeds, last = (f"{speed:g}" for _, speed in fleet.classes)
    promises = " and ".join(filter(None, (", ".join(speeds), last)))
    return (
        f"A quarter of the devices each were promised {promises} tokens per second. A load is served if at most "
        f"{share(fleet.late_share)} of the responses break their promise: the number of devices is "
        f"interpolated between loads of {', '.join(map(str, fleet.loads))}, and is the mean over seeds, with the least "
        f"and the most of any seed behind it. Late are the responses at {fleet.devices} devices."
    )


def fleet_columns(fleet: SuiteFleet) -> list[Column]:
    """Return the columns that say what a policy does in a fleet."""
    return [
        Column("devices served"),
        Column("late", "share"),
        *(Column(f"late at {speed:g} tok/s", "share") for _, speed in fleet.classes),
        Column("tokens/s in time", "number"),
    ]


def fleet_cells(board: Scoreboard, spec: str, fleet: SuiteFleet) -> tuple[Cell, ...]:
    """Return the cells of a policy below `fleet_columns`; empty if it has no result in the
    fleet.
    """
    result, capacity = board.fleet(spec, fleet.name), board.capacity(spec, fleet.name)
    if result is None or capacity is None:
        return ()
    late = fmean(shares[fleet.loads.index(fleet.devices)] for shares in result.late)
    served = devices(fleet, capacity)
    if not capacity.is_below:
        served += f" ({capacity.least:.0f}–{capacity.most:.0f})"
    return served, late, *result.late_by_class, result.goodput


def most_devices_first(board: Scoreboard, specs: Sequence[str], fleet: str) -> list[str]:
    """Return the policies that ran in a fleet, from the one that serves most devices down; then by
    tokens in time.
    """
    ran = {spec: result for spec in specs if (result := board.fleet(spec, fleet))}
    return sorted(
        ran,
        key=lambda spec: (
            -fleet_capacity(board.fleets[fleet], ran[spec]).devices,
            -ran[spec].goodput,
        ),
    )


def fleet_tables(board: Scoreboard, specs: Sequence[str]) -> Iterator[Block]:
    """Yield a table and a note for each fleet in which any of the policies ran."""
    for name, fleet in board.fleets.items():
        if ran := most_devices_first(board, specs, name):
            rows = [(code(spec), *fleet_cells(board, spec, fleet)) for spec in ran]
            yield Paragraph(f"{code(name)}: {fleet.words}")
            yield Table((Column("policy"), *fleet_columns(fleet)), rows)
            yield Note(fleet_note(fleet))


def policy_facts(policies: Sequence[PolicyResult]) -> Table:
    """Return a table with the origin of every policy."""
    rows = [
        (
            code(policy.spec),
            f"{policy.package} {policy.version}",
            code(policy.source_sha256[:12]),
            code(policy.options_sha256[:12]),
            f"{policy.predictor.family}, {code(policy.predictor.sha256[:12])}"
            if policy.predictor
            else "–",
            policy.lowered or "–",
        )
        for policy in policies
    ]
    return Table(("policy", "package", "source", "options", "predictor", "limit lowered to"), rows)


def missing_lines(policies: Sequence[PolicyResult]) -> list[str]:
    """Return a line for each reason why policies have no result in some cells."""
    reasons = {
        f"{code(policy.spec)} in {code(part)}": reason
        for policy in policies
        for part, reason in policy.missing.items()
    }
    lines = []
    for reason, where in by_reason(reasons).items():
        specs = list(dict.fromkeys(place.partition(" in ")[0] for place in where))
        cells = list(dict.fromkeys(place.partition(" in ")[2] for place in where))
        shown = ", ".join(cells) if len(cells) <= 3 else f"{len(cells)} cells"
        lines.append(f"No result: {', '.join(specs)} in {shown}: {reason}")
    return lines


def cell_rows(board: Scoreboard, spec: str) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each cell in which a policy ran."""
    for name, score in board.scores(spec).items():
        best = board.fastest(name)
        rank = board.rank(spec, name)
        yield (
            code(name),
            Estimate(score.speedup, score.interval),
            score.regret,
            score.result.tokens_per_verification,
            waste(score),
            f"{rank[0]}/{rank[1]}" if rank else "–",
            f"{code(best[0])} {times(best[1])}" if best else "–",
        )


CELL_COLUMNS = (
    Column("cell"),
    Column("speedup (95%)", "times"),
    Column("regret", "share"),
    Column("tokens per verification", "number"),
    Column("WDT share", "share"),
    Column("rank"),
    Column("fastest here"),
)
BRIEF_COLUMNS = CELL_COLUMNS[:-1]
"""The columns that a terminal has room for."""


def waste(score: CellScore) -> float | None:
    """Return the share of drafting time that wasted tokens took."""
    return score.result.wdt_share


def measured_table(results: Sequence[MeasuredResult]) -> list[Block]:
    """Return a row for each pair of running servers, what they are, and what the figures are."""
    columns = (
        Column("server"),
        Column("against"),
        Column("speedup (95%)", "times"),
        Column("tokens/s", "number"),
        Column("acceptance length", "number"),
        Column("outputs"),
    )
    rows: list[tuple[Cell, ...]] = []
    described: list[tuple[str, str]] = []
    for number, result in enumerate(results, 1):
        # Servers of different submissions may have one name.
        plain, own = names = [
            code(server.name) + (f" ({number})" if len(results) > 1 else "")
            for server in result.servers
        ]
        speedup = Estimate(result.speedup, result.interval) if result.speedup is not None else None
        figures = result.servers[1]
        rows.append(
            (own, plain, speedup, figures.tokens_per_s, figures.acceptance_length, result.outputs)
        )
        described += [
            (
                name,
                ", ".join(
                    filter(None, (server.kind, server.model, server.version, result.hardware))
                ),
            )
            for name, server in zip(names, result.servers, strict=True)
        ]
    return [Table(columns, rows), facts(described), Note(MEASURED)]


def _opening(run: SuiteRun) -> list[Block]:
    outline = run.outline
    return [
        *map(Paragraph, headlines(run)),
        *caution(cautions(run), severe=True),
        Note(f"Suite {outline.name}, hash {outline.sha256[:12]}. {MODELLED} {REGRET}"),
    ]


def _tables(run: SuiteRun, *, brief: bool = False) -> Iterator[Block]:
    board = run.board
    own = run.deployable
    named = [policy.spec for policy in run.policies if policy.spec != BASELINE]
    if len(own) != 1 or not brief:
        yield overview(board, named)
    if len(own) == 1 or not brief:
        for spec in own or named:
            if rows := list(cell_rows(board, spec)):
                yield Heading(code(spec))
                columns = len(BRIEF_COLUMNS) if brief else len(CELL_COLUMNS)
                yield Table(
                    CELL_COLUMNS[:columns], [row[:columns] for row in rows]
                ).without_empty_columns()
    if tables := list(fleet_tables(board, named)):
        yield from (Heading("How many devices?"), *tables)
    if lines := missing_lines(run.policies):
        yield BulletList(lines)


def overview(board: Scoreboard, specs: Sequence[str]) -> Table:
    """Return a row per policy: its mean speedup and regret over the recorded cells, by batch
    size.
    """
    groups = by_batch_size(board)
    columns = [Column("policy")]
    for size in groups:
        columns += [
            Column(f"mean speedup, batch {size}", "times"),
            Column(f"mean regret, batch {size}", "share"),
        ]
    columns.append(Column("cells", "count"))
    rows = []
    for spec in best_first(board, specs):
        row: list[Cell] = [code(spec)]
        for cells in groups.values():
            names = [cell.name for cell in cells]
            row += [board.mean_speedup(spec, names), mean_regret(board, spec, names)]
        rows.append((*row, len(board.scores(spec))))
    return Table(columns, rows)
