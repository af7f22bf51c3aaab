"""The board of a suite: a static site that answers questions, with a page for every policy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specbench_kit.core.errors import by_reason
from specbench_kit.metrics.vocabulary import BASELINE, Unit
from specbench_kit.reports import render_html
from specbench_kit.reports.document import (
    Block,
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
    code,
    facts,
    link,
    paragraphs,
)
from specbench_kit.reports.writing.formatting import share, times
from specbench_kit.runs.folder import slug, write_text
from specbench_kit.studies.suite.plots import curves, drawing, winners
from specbench_kit.studies.suite.report import (
    CELL_COLUMNS,
    MODELLED,
    REGRET,
    best_first,
    by_batch_size,
    cell_rows,
    fleet_cells,
    fleet_columns,
    fleet_note,
    fleet_tables,
    headline,
    mean_regret,
    measured_table,
    most_devices_first,
    recorded,
    waste,
    worst_regret,
)
from specbench_kit.studies.suite.scores import (
    CellScore,
    MeasuredResult,
    PolicyResult,
    Scoreboard,
    SuiteCell,
    SuiteOutline,
)

Drawings = dict[str, str]
INDEX = "index.html"
OURS = "specbench-kit"
SHOWN_EVEN = 4
"""Policies that are named beside the fastest, of those that are not shown to be slower."""


def write_board(
    site: Path, outline: SuiteOutline, board: Scoreboard, measured: Sequence[MeasuredResult] = ()
) -> Path:
    """Write all pages, and return the path of the first."""
    for path, page in pages_of(outline, board, measured):
        write_text(site / path, page)
    return site / INDEX


def pages_of(
    outline: SuiteOutline, board: Scoreboard, measured: Sequence[MeasuredResult] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the path and the HTML of every page: the index, and a page per policy."""
    pages = _page_names(board)
    yield INDEX, render_html.render(*index(outline, board, pages, measured))
    for spec, path in pages.items():
        yield path, render_html.render(*policy_page(outline, board, spec))


def index(
    outline: SuiteOutline,
    board: Scoreboard,
    pages: Mapping[str, str],
    measured: Sequence[MeasuredResult],
) -> tuple[Document, Drawings]:
    """Return the first page and its figures by their paths."""
    groups = by_batch_size(board)
    cells = next(iter(groups.values()))
    tasks = _tasks_by_acceptance(board, cells[0])
    picture = winners(board, cells, tasks)
    setting = f"suite {outline.name}, recorded pair, modelled"
    drawings = {"plots/winners": drawing(picture, setting)}
    first_figure = []
    if best := _closest(board):
        best_curve = curves(board, best[:1], cells, "closest")
        drawings["plots/closest"] = drawing(best_curve, setting)
        first_figure.append(Figure(best_curve.title, "plots/closest.svg", best_curve.note))
    headline, *scope = _introduction(outline, board)
    sections: list[Sequence[Block]] = [
        [headline],
        first_figure,
        scope,
        list(_by_link(board, pages)),
        [
            Heading("Which policy for my task?"),
            Figure(
                picture.title,
                "plots/winners.svg",
                f"{picture.note} Tasks go from the easiest to draft for down.",
            ),
        ],
        list(_all_policies(board, pages)),
        list(_devices(board, pages)),
        list(_waste(board, pages)),
        list(_synthetic(outline, board, pages)),
        [Heading("What did running servers measure?"), *measured_table(measured)]
        if measured
        else [],
        _how_to_join(outline),
        [Heading(f"What {outline.name} leaves out"), BulletList(outline.left_out)],
    ]
    return Document.of(f"Drafting policies compared: suite {outline.name}", *sections), drawings


def policy_page(outline: SuiteOutline, board: Scoreboard, spec: str) -> tuple[Document, Drawings]:
    """Return the page of one policy and its figures by their paths."""
    policy = board.policies[spec]
    figures = []
    drawings = {}
    for size, cells in by_batch_size(board).items():
        if not any(board.score(spec, cell.name) for cell in cells):
            continue
        name = f"speedup-batch-{size}"
        setting = f"suite {outline.name}, recorded pair, batch size {size}, modelled"
        picture = curves(board, [spec], cells, name)
        drawings[f"plots/{name}"] = drawing(picture, setting)
        figures.append(
            Figure(f"{picture.title}, batch size {size}", f"plots/{name}.svg", picture.note)
        )
    rows = list(cell_rows(board, spec))
    fleets = list(fleet_tables(board, [spec]))
    sections: list[Sequence[Block]] = [
        paragraphs(policy.summary, headline(board, spec) if spec != BASELINE and rows else ""),
        list(_claims(board, policy)),
        figures,
        [Heading("In every cell"), Table(CELL_COLUMNS, rows).without_empty_columns(), Note(REGRET)]
        if rows
        else [],
        [Heading("How many devices?"), *fleets] if fleets else [],
        list(_missing(policy)),
        [Heading("What ran"), _identity(policy)],
        [Heading("Run it"), CodeBlock(f"skit suite run {outline.name} --method '{spec}'")],
        [Paragraph(link("All policies", f"../{INDEX}"))],
    ]
    return Document.of(f"{code(spec)} on suite {outline.name}", *sections), drawings


def _page_names(board: Scoreboard) -> dict[str, str]:
    """Return the page of every policy; specs that read the same in a file's name are numbered."""
    names: dict[str, str] = {}
    for spec in board.policies:
        name = slug(spec)
        alike = sum(page.startswith(f"policies/{name}.") for page in names.values())
        names[spec] = f"policies/{name}.{alike + 1}.html" if alike else f"policies/{name}.html"
    return names


def _closest(board: Scoreboard) -> list[str]:
    """Return the policies that can be deployed and run in every recorded cell, the closest to the
    oracle first.
    """
    deployable = [spec for spec in board.deployable if spec != BASELINE]
    return best_first(
        board,
        [spec for spec in deployable if mean_regret(board, spec, recorded(board)) is not None],
    )


def _introduction(outline: SuiteOutline, board: Scoreboard) -> Iterator[Block]:
    deployable = [spec for spec in board.deployable if spec != BASELINE]
    others = [spec for spec in deployable if board.policies[spec].package != OURS]
    if best := _closest(board):
        speedup = board.mean_speedup(best[0], recorded(board))
        regret = mean_regret(board, best[0], recorded(board))
        largest = worst_regret(board, best[0], recorded(board))
        most = f", and {share(largest[1])} in its worst cell, {largest[0]}" if largest else ""
        yield Paragraph(
            f"**{code(best[0])} is closest to the oracle: {times(speedup)} the speed of autoregressive decoding over "
            f"{len(recorded(board))} cells, and the oracle would save {share(regret)} of its time{most}.**"
        )
    yield Paragraph(
        f"{len(deployable)} policies, {len(others)} of them from other packages than the kit, on {outline.summary}."
    )
    yield Note(
        f"Suite {outline.name}, hash {outline.sha256[:12]}. {MODELLED} Anyone gets the same numbers, to the last "
        "digit, with skit suite check."
    )


def _by_link(board: Scoreboard, pages: Mapping[str, str]) -> Iterator[Block]:
    columns = (
        Column("deployment"),
        Column("fastest"),
        Column("speedup (95%)", "times"),
        Column("oracle", "times"),
        Column("as good"),
    )
    yield Heading("Which policy for my link?")
    for size, cells in by_batch_size(board).items():
        rows = [
            (f"{cell.words} ({code(cell.deployment)})", *_best_of(board, cell, pages))
            for cell in cells
        ]
        table = Table(columns, rows)
        if size == 1:
            yield from (Paragraph("One request at a time:"), table)
        else:
            yield Folded(f"{size} requests together", [table])
    yield Note(
        "Speedup over autoregressive decoding, which is the fastest itself where no policy pays. Those that are not "
        "shown to be slower are as good; the verdicts of one deployment hold together. The oracle knows the answer and "
        "drafts the lengths, up to 4, 8 or 12 tokens, with which a request takes the least time alone, whichever is "
        "fastest. Trees and drafting ahead can be faster, and so can others in a batch, whose requests wait for each "
        "other."
    )


def _best_of(board: Scoreboard, cell: SuiteCell, pages: Mapping[str, str]) -> list[Cell]:
    standings = board.standings(cell.name)
    oracle = board.oracle(cell.name)
    if not standings:
        return ["–", None, None, "–"]
    first, *even = [standing.spec for standing in standings if standing.is_first]
    score = board.score(first, cell.name)
    named = ", ".join(_linked(spec, pages) for spec in even[:SHOWN_EVEN]) or "none"
    more = f" and {len(even) - SHOWN_EVEN} more" if len(even) > SHOWN_EVEN else ""
    speedup = Estimate(score.speedup, score.interval) if score else None
    return [_linked(first, pages), speedup, oracle.speedup if oracle else None, named + more]


def _all_policies(board: Scoreboard, pages: Mapping[str, str]) -> Iterator[Block]:
    yield Heading("How fast is every policy?")
    yield Note(
        "Speedup over autoregressive decoding; policies go from the least mean regret to the largest."
    )
    for size, cells in by_batch_size(board).items():
        table = _matrix(board, pages, cells, lambda score: score.speedup, "times")
        yield table if size == 1 else Folded(f"{size} requests together", [table])


def _devices(board: Scoreboard, pages: Mapping[str, str]) -> Iterator[Block]:
    if board.fleets:
        yield Heading("How many devices?")
    for name, fleet in board.fleets.items():
        ran = most_devices_first(board, list(board.policies), name)
        rows = [
            (_linked(spec, pages), *fleet_cells(board, spec, fleet), board.policies[spec].group)
            for spec in ran
        ]
        yield Paragraph(f"{code(name)}: {fleet.words}. {fleet_note(fleet)}")
        yield Table((Column("policy"), *fleet_columns(fleet), Column("group")), rows)


def _waste(board: Scoreboard, pages: Mapping[str, str]) -> Iterator[Block]:
    cells = next(iter(by_batch_size(board).values()))
    yield Heading("What does it cost in waste?")
    yield Note(
        "Share of the drafting time that goes into tokens which are not accepted, one request at a time."
    )
    yield _matrix(board, pages, cells, waste, "share")


def _synthetic(
    outline: SuiteOutline, board: Scoreboard, pages: Mapping[str, str]
) -> Iterator[Block]:
    cells = [cell for cell in board.cells.values() if not cell.is_recorded]
    if not cells:
        return
    yield Heading("Which policy for another pair, and do trees pay?")
    pairs = dict.fromkeys(cell.pair for cell in cells)
    yield BulletList([f"{code(pair)}: {outline.pairs[pair]}" for pair in pairs])
    yield Note("Speedup over autoregressive decoding; here trees run too, one request at a time.")
    yield _matrix(board, pages, cells, lambda score: score.speedup, "times")


def _matrix(
    board: Scoreboard,
    pages: Mapping[str, str],
    cells: Sequence[SuiteCell],
    value: Callable[[CellScore], float | None],
    unit: Unit,
) -> Table:
    """Return a table with a row per policy and a column per cell, and the policies' groups."""
    several = len({cell.pair for cell in cells}) > 1
    names = [f"{cell.pair}, {cell.deployment}" if several else cell.deployment for cell in cells]
    columns = [Column("policy"), *(Column(name, unit) for name in names), Column("group")]
    rows = []
    for spec in best_first(board, [spec for spec in board.policies if spec != BASELINE]):
        scores = [board.score(spec, cell.name) for cell in cells]
        values = [value(score) if score else None for score in scores]
        if any(shown is not None for shown in values):
            rows.append((_linked(spec, pages), *values, board.policies[spec].group))
    return Table(columns, rows)


def _tasks_by_acceptance(board: Scoreboard, cell: SuiteCell) -> list[str]:
    """Return the tasks of a cell from the one that takes the oracle the fewest rounds down."""
    oracle = board.oracle(cell.name)
    if oracle is None or not oracle.result.rounds:
        return []
    mean = _mean_by_task(cell.tasks, oracle.result.rounds)
    plain = _mean_by_task(cell.tasks, board.policies[BASELINE].cells[cell.name].rounds)
    return sorted(mean, key=lambda task: mean[task] / plain[task])


def _mean_by_task(tasks: Sequence[str], rounds: Sequence[int]) -> dict[str, float]:
    """Return the mean number of rounds of each task's prompts."""
    by_task: dict[str, list[int]] = {}
    for task, count in zip(tasks, rounds, strict=False):
        by_task.setdefault(task, []).append(count)
    return {task: sum(counts) / len(counts) for task, counts in by_task.items()}


def _claims(board: Scoreboard, policy: PolicyResult) -> Iterator[Block]:
    """Yield what the authors of a policy report, beside what was found here."""
    if policy.source:
        yield Paragraph(f"Source: {policy.source}.")
    if policy.reported:
        speedup = board.mean_speedup(policy.spec, recorded(board))
        here = (
            f"{times(speedup)} autoregressive decoding over the cells of the recorded pair"
            if speedup
            else "no result"
        )
        yield facts(
            [
                ("reported by its authors", f"{policy.reported} (in their own setting)"),
                ("here", here),
            ]
        )


def _missing(policy: PolicyResult) -> Iterator[Block]:
    reasons = {code(part): reason for part, reason in policy.missing.items()}
    if reasons:
        yield Heading("Where it did not run")
        yield BulletList(
            [f"{', '.join(cells)}: {reason}" for reason, cells in by_reason(reasons).items()]
        )


def _identity(policy: PolicyResult) -> Table:
    options = ", ".join(f"{name}={value}" for name, value in policy.options.items()) or "none"
    predictor = policy.predictor
    rows = [
        ("package", f"{policy.package} {policy.version}"),
        ("hash of its source", code(policy.source_sha256)),
        ("options", f"{code(options)}, hash {code(policy.options_sha256[:12])}"),
    ]
    if policy.lowered:
        rows.append(
            ("draft limit", f"lowered to {code(policy.lowered)}, the longest draft on record")
        )
    if predictor:
        rows.append(
            (
                "predictor",
                f"{predictor.family}, of {predictor.created[:10]}, hash {code(predictor.sha256)}",
            )
        )
    return facts(rows)


def _how_to_join(outline: SuiteOutline) -> list[Block]:
    return [
        Heading("How do I get a place here?"),
        CodeBlock(
            "skit new method my-rule\n"
            "pip install --editable skit-my-rule\n"
            f"skit suite run {outline.name} --method my-rule --submit results/submissions\n"
            "skit suite board results/submissions --out board"
        ),
        Paragraph(
            "The file in the folder is the submission: anyone who has the package checks it with skit suite check."
        ),
    ]


def _linked(spec: str, pages: Mapping[str, str]) -> str:
    return link(code(spec), pages[spec])
