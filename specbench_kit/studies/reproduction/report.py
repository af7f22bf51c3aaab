"""One page per paper and a table over all papers, with their figures; on the terminal, one
experiment.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from specbench_kit.core.files import replace_file
from specbench_kit.papers.comparison import ComparedNumber, RatioOfRatios
from specbench_kit.papers.experiment import (
    HALF_FITTED,
    PREDICTED,
    ROLES,
    Assumed,
    Steps,
    experiments,
    worlds,
)
from specbench_kit.reports import render_html, render_markdown, render_terminal
from specbench_kit.reports.document import (
    Block,
    Blocks,
    Cell,
    Column,
    Document,
    Figure,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
    link,
    paragraphs,
)
from specbench_kit.reports.sections.wording import outcome
from specbench_kit.reports.writing.drawing import Picture, draw, logarithmic
from specbench_kit.reports.writing.formatting import ABSENT, times
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY, MARKERS
from specbench_kit.runs.folder import write_text
from specbench_kit.studies.reproduction.inputs import (
    changes_meaning,
    example_change,
    value_of_change,
)
from specbench_kit.studies.reproduction.steps import NOTE, found_at, steps_picture, steps_table
from specbench_kit.studies.reproduction.wording import (
    ReproducedExperiment,
    claim_in_a_line,
    claim_verdict,
    duration,
    effect_in_words,
    effects_compared,
    main_claim,
    metric_in_words,
    percent,
    predicted_counts,
    published,
    role,
    role_counts,
    series_and_point,
    short_verdict,
    summary_of_role,
    totals,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

PAPERS = {
    "wisp": "WISP",
    "specpipe": "SpecPipe",
    "adaspec": "AdaSpec",
    "specedge": "SpecEdge",
    "configspec": "ConfigSpec",
}
NUMBER_COLUMNS = ("configuration", "metric", "role", "published")
RATIO = "ours / published"
SHARE = "share of the effect"
MARKS = ("*", "**", "***", "†", "‡", "§")
"""What stands behind a role in the terminal, in place of a note that is told once below the
tables.
"""
SCREEN_LINES = 38
"""Lines that an experiment takes in the terminal, so that a screen of 40 holds the report's too."""
MOST_LISTED = 20
"""Experiments of which the terminal has a line each; of more it counts those of each paper."""
PAPER_COLUMNS = (
    *(
        "paper",
        "predictions",
        "of these come out",
        "identities within",
        "fitted within",
        "half fitted within",
    ),
    *("inputs within", "predictions that no effect would meet"),
)
MISSING_COLUMNS = ("not met", "what is missing")
EXPERIMENT_COLUMNS = ("experiment", "subject", "predictions that come out", "verdict")
INTRODUCTION = (
    "Published numbers, and the kit's results for the same setting. The latter are modelled or simulated, never "
    "measured on the paper's machines. Each paper's page lists all unspecified inputs, with the effect "
    "of other values."
)
LEGEND = (
    f"**What counts.** A prediction is a number or a bound that the paper prints and that could have come out "
    "differently here. It counts once, even where it is tried under several assumptions, and comes out if it does "
    "under all of them: a number if it is within the goal, the share that stands beside its experiment, or within the "
    "stated points where it is too small for a share; a bound if it holds. Of a number that states what it would be "
    f"without any effect, such as 1 for a gain, the effect is judged: 1.07x published and 1.00x of ours is no gain "
    f"found. So '{RATIO}' is always the plain ratio of both numbers, and '{SHARE}' is what is judged where it is "
    "given.",
    "**What does not count** is shown with how much of it is within the goal, and is in no count of predictions. An "
    "'input' was put into the run. A 'fitted' number is met because an unknown was chosen to meet it; a 'half fitted' "
    "one is a ratio or a difference of which one side was fitted. An 'identity' follows from other numbers of the same "
    "paper by arithmetic, without a model that could be wrong: one within the goal says that the paper's numbers agree "
    "with each other to that share, one beyond it that they do not. Nor does a prediction count that a result without "
    "any effect would meet too, whether it comes out here or not.",
)


def write(
    folder: Path, results: Sequence[ReproducedExperiment], formats: Sequence[str] = ("md", "html")
) -> list[Path]:
    """Write `README.md` over all experiments, a page per paper, and a figure per experiment with
    varied inputs.

    Return the pages.
    """
    by_paper = _by_paper(results)
    for result in results:
        if result.sensitivity:
            replace_file(folder / _figure_path(result), sensitivity(result))
        if steps := _steps_of(result):
            picture = steps_picture(result.name, result.source, found_at(result, steps), steps)
            replace_file(folder / _steps_path(result), picture)
    groups = {PAPERS.get(paper, paper): members for paper, members in by_paper.items()}
    document = overview(results, _tally(folder, "README", groups))
    written = _write_page(folder, "README", document, formats)
    for paper, members in by_paper.items():
        world = worlds()[paper]
        head: Blocks = [
            Paragraph(f"**{totals(members).capitalize()}.**"),
            *caution(changed_inputs(members), severe=True),
            *paragraphs(main_claim(world.main_claim, members, world.terms)),
            *_tally(folder, paper, {member.name.partition("/")[2]: [member] for member in members}),
            *_terms(paper, members),
            Table(
                _claim_columns(members), [row for member in members for row in _claim_rows(member)]
            ),
            *paragraphs(*LEGEND),
            Table(EXPERIMENT_COLUMNS, [_experiment_row(member) for member in members]),
            *(
                [Table(("claims that exclude each other", "why"), world.contradictions)]
                if world.contradictions
                else []
            ),
            *(
                [Table(("not compared", "because"), world.not_compared)]
                if world.not_compared
                else []
            ),
        ]
        document = Document.of(PAPERS.get(paper, paper), head, *map(_section, members))
        written += _write_page(folder, paper, document, formats)
    return written


def overview(results: Sequence[ReproducedExperiment], figures: Blocks) -> Document:
    """Return the page over all experiments."""
    by_paper = _by_paper(results)
    rows = [
        (
            link(result.name, f"{paper}.md"),
            *(result.summary, _within_the_goal(result), result.verdict),
        )
        for paper, members in by_paper.items()
        for result in members
    ]
    numbers = [
        (result.name, *row)
        for members in by_paper.values()
        for result in members
        for row in _rows(result)
    ]
    pairs = [pair for result in results for pair in result.published]
    columns = ("experiment", *NUMBER_COLUMNS, _ours(pairs), RATIO, SHARE)
    shown = (
        len(columns) if any(pair.effect_found is not None for pair in pairs) else len(columns) - 1
    )
    blocks: Blocks = [
        Paragraph(f"**{totals(results).capitalize()}.**"),
        *caution(changed_inputs(results), severe=True),
        *_main_claims(by_paper),
        *figures,
        *paragraphs(INTRODUCTION, *LEGEND),
        *_duration_of_all(results),
        Table(PAPER_COLUMNS, [_paper_row(paper, members) for paper, members in by_paper.items()]),
        Table(EXPERIMENT_COLUMNS, rows),
        *_missing_in_all(by_paper),
        Heading("Every number"),
        Table(columns[:shown], [row[:shown] for row in numbers]),
    ]
    return Document("Published experiments, reproduced", blocks)


def _missing_in_all(by_paper: Mapping[str, Sequence[ReproducedExperiment]]) -> Blocks:
    """Return a section on what is missing for each number of all papers that is not met."""
    rows = [
        (link(member.name, f"{paper}.md"), *row)
        for paper, members in by_paper.items()
        for member in members
        for row in _missing_rows(member)
    ]
    if not rows:
        return []
    return [
        Heading("What is missing where a number is not met"),
        Paragraph(
            "Every number that is not within the goal, whatever its kind, with what the paper does not give for it, or "
            "gives in two ways. Numbers in brackets are as printed."
        ),
        Table(("experiment", *MISSING_COLUMNS), rows),
    ]


def _missing_rows(result: ReproducedExperiment) -> list[tuple[str, str]]:
    """Return the numbers that are not met, by what is missing for them; none of changed inputs."""
    experiment = experiments().get(result.name)
    if experiment is None or result.changes:
        return []
    numbers: dict[str, dict[str, list[str]]] = {}
    for pair in result.published:
        if pair.within is False and (words := experiment.missing_for(pair)):
            of_metric = numbers.setdefault(words, {}).setdefault(metric_in_words(pair), [])
            of_metric.append(f"{series_and_point(pair)} ({published(pair)})")
    return [
        ("; ".join(f"{metric}: {', '.join(named)}" for metric, named in metrics.items()), words)
        for words, metrics in numbers.items()
    ]


def _by_paper(results: Sequence[ReproducedExperiment]) -> dict[str, list[ReproducedExperiment]]:
    by_paper: dict[str, list[ReproducedExperiment]] = {}
    for result in results:
        by_paper.setdefault(result.name.partition("/")[0], []).append(result)
    return by_paper


def _main_claims(by_paper: Mapping[str, Sequence[ReproducedExperiment]]) -> Blocks:
    """Return a sentence on the main claim of every paper."""
    of_papers = worlds()
    claims = {
        paper: main_claim(of_papers[paper].main_claim, members, of_papers[paper].terms)
        for paper, members in by_paper.items()
    }
    return [
        Paragraph(f"**{PAPERS.get(paper, paper)}.** {words}")
        for paper, words in claims.items()
        if words
    ]


def _terms(paper: str, members: Sequence[ReproducedExperiment]) -> Blocks:
    """Return a table of what the names of a paper's series stand for; nothing if none needs it."""
    named = {pair.series for member in members for pair in member.published}
    terms = [(name, words) for name, words in worlds()[paper].terms.items() if name in named]
    return [Table(("name", "what it stands for here"), terms)] if terms else []


def _ours(pairs: Sequence[ComparedNumber]) -> str:
    """Return the title of the column of the kit's own numbers: arithmetic has no interval."""
    if any(pair.unchanged for pair in pairs):
        return "ours, unchanged → changed"
    has_interval = any(pair.simulated and pair.simulated.bounds for pair in pairs)
    return "ours (95% interval)" if has_interval else "ours"


def _claim_columns(members: Sequence[ReproducedExperiment]) -> Sequence[str]:
    pairs = [pair for member in members for pair in member.published]
    return ("experiment", "claim", "kind", "published", _ours(pairs), "verdict")


TALLY_ROW_IN = 0.24
TALLY_FRAME_IN = 0.8


@dataclass(frozen=True, slots=True)
class Tally:
    """What a figure of numbers that come out counts: the name of its file, its title, its axis and
    its note.
    """

    name: str
    title: str
    axis: str
    note: str
    colour: str


PREDICTIONS = Tally(
    "predictions",
    "Predictions that come out",
    "predictions",
    "Full bars: all predictions; filled: those that come out. Fitted numbers, identities and inputs do not count.",
    COLOURS[0],
)
NOT_PREDICTED = Tally(
    "not-predicted",
    "Numbers within the goal, none of them predicted",
    "numbers that were put in, fitted, or follow from others",
    "Full bars: all numbers that the paper prints; filled: those within the goal. None of them could have come out "
    "differently, so that this shows no more than that the kit computes as the paper does.",
    GREY,
)


def _tally(folder: Path, page: str, groups: Mapping[str, Sequence[ReproducedExperiment]]) -> Blocks:
    """Write the figure of how many predictions of each group come out, and return it.

    Without predictions it shows the other numbers by what they are; nothing if no number is
    compared.
    """
    counts = {name: predicted_counts(members) for name, members in groups.items()}
    tally = PREDICTIONS
    if not any(compared for _, compared in counts.values()):
        tally = NOT_PREDICTED
        counts = {
            f"{name}, {role}": role_counts(members, role)
            for name, members in groups.items()
            for role in ROLES
            if role != PREDICTED
        }
    counts = {name: pair for name, pair in counts.items() if pair[1]}
    if not counts:
        return []
    path = f"plots/{page}-{tally.name}.svg"
    setting = f"{PAPERS.get(page, 'all papers')}, published numbers"
    replace_file(folder / path, _tally_picture(f"{page}-{tally.name}", counts, setting, tally))
    return [Figure(tally.title, path, tally.note)]


def _write_page(folder: Path, name: str, document: Document, formats: Sequence[str]) -> list[Path]:
    """Write a page as Markdown, and as HTML that needs no network and holds its figures; return the
    files.
    """
    pages = [folder / f"{name}.{suffix}" for suffix in ("md", "html") if suffix in formats]
    if "md" in formats:
        write_text(folder / f"{name}.md", render_markdown.render(document))
    if "html" not in formats:
        return pages
    drawings = {
        path.relative_to(folder).with_suffix("").as_posix(): render_html.inline_svg(
            path.read_text("utf-8"), path.stem
        )
        for path in folder.glob(f"plots/{name}-*.svg")
    }
    page = render_html.render(document, drawings)
    write_text(folder / f"{name}.html", re.sub(r'(href="[a-z]+)\.md"', r'\1.html"', page))
    return pages


def _duration_of_all(results: Sequence[ReproducedExperiment]) -> Blocks:
    """Return how long all experiments took, if every one of them was timed."""
    command = code("skit reproduce all")
    wall_s = [result.wall_s for result in results if result.wall_s is not None]
    if len(wall_s) < len(results):
        return [Paragraph(f"{command} runs all experiments, with a line of progress.")]
    took = f"those of this page took {duration(sum(wall_s))}, each as long as its own page says"
    return [Paragraph(f"{command} runs all experiments, with a line of progress; {took}.")]


def _claim_rows(result: ReproducedExperiment) -> list[tuple[Cell, ...]]:
    """Return a row for every predicted number, and one for all numbers of another role."""
    name = result.name.partition("/")[2]
    predicted = [
        pair for pair in result.published if pair.role == PREDICTED and pair.value is not None
    ]
    rows: list[tuple[Cell, ...]] = []
    for pair in predicted:
        claim = f"{series_and_point(pair)}: {metric_in_words(pair)}"
        ours = (with_interval(pair), claim_verdict(pair, result.goal))
        rows.append((name, claim, role(pair, result.variants), published(pair), *ours))
    rows += [
        (name, *_relative_claim(pair, pair.ratio_of_ratios, result))
        for pair in predicted
        if pair.ratio_of_ratios
    ]
    for kind in ROLES:
        compared = result.roles[kind].compared
        if kind != PREDICTED and compared:
            numbers = f"{compared} {'number' if compared == 1 else 'numbers'}"
            rows.append(
                (name, result.summary, kind, numbers, "below", summary_of_role(result, kind))
            )
    return rows


def _relative_claim(
    pair: ComparedNumber, ratios: RatioOfRatios, result: ReproducedExperiment
) -> tuple[Cell, ...]:
    """Return by how much the paper's own system leads another one, published and simulated."""
    claim = f"{result.against} / {series_and_point(pair)}: {metric_in_words(pair)}"
    sides = {
        (base.series, base.metric): base for base in result.published if base.where == pair.where
    }
    base = sides[result.against, pair.metric]
    kind = "follows from the numbers" + (
        f", half fitted: {base.fitted_to}" if base.fitted_to else ""
    )
    is_met = abs(ratios.ratio - 1) <= result.goal
    met = f"within {percent(result.goal)}" if is_met else "not met"
    leads = (times(ratios.published), times(ratios.simulated))
    return claim, kind, *leads, f"{met}: {times(ratios.ratio)}"


def _experiment_row(result: ReproducedExperiment) -> tuple[Cell, ...]:
    return (
        result.name.partition("/")[2],
        result.summary,
        _within_the_goal(result),
        result.verdict,
    )


def _within_the_goal(result: ReproducedExperiment) -> str:
    """Return how many predictions come out, with the goal: the largest distance that counts as
    met.
    """
    if not result.compared:
        return "nothing predicted"
    return f"{result.within} of {result.compared} (goal {percent(result.goal)})"


def _paper_row(paper: str, members: Sequence[ReproducedExperiment]) -> tuple[Cell, ...]:
    """Return how many numbers of a paper are predicted, how many of these come out, and what the
    others are.
    """
    within, compared = predicted_counts(members)
    by_role = {
        name: role_counts(members, name) for name in ("identity", "fitted", HALF_FITTED, "input")
    }
    idle = sum(member.roles[PREDICTED].passed_by_no_effect for member in members)
    return (
        link(PAPERS.get(paper, paper), f"{paper}.md"),
        str(compared),
        str(within),
        *(f"{met} / {of_role}" for met, of_role in by_role.values()),
        str(idle),
    )


def _title(paper: str) -> str:
    return PAPERS.get(paper, paper)


def print_totals(console: "Console", results: Sequence[ReproducedExperiment]) -> None:
    """Print for every paper how many numbers are predicted and how many of these come out."""
    by_paper = _by_paper(results)
    lines = [
        f"**{PAPERS.get(paper, paper)}: {totals(members)}**" for paper, members in by_paper.items()
    ]
    render_terminal.show(console, [*map(Paragraph, lines), *_main_claims(by_paper)])


def print_results(console: "Console", results: Sequence[ReproducedExperiment]) -> None:
    """Print what the main claims come to and what was found: one experiment with its numbers, a
    line for each of several.
    """
    claims = [
        Paragraph(f"**{claim_in_a_line(worlds()[paper].main_claim, _title(paper), members)}**")
        for paper, members in _by_paper(results).items()
    ]
    if len(results) == 1:
        print_experiment(console, results[0], claims)
        return
    totals_by_paper = [
        Paragraph(f"{_title(paper)}: {totals(members)}.")
        for paper, members in _by_paper(results).items()
    ]
    rows = [(result.name, _within_the_goal(result)) for result in results]
    table = [Table(("experiment", "predictions that come out"), rows)]
    shown = table if len(rows) <= MOST_LISTED else []
    cautions = caution(changed_inputs(results), severe=True)
    blocks: Blocks = [*claims, *cautions, *totals_by_paper, *shown]
    render_terminal.show(console, blocks)


def print_experiment(
    console: "Console", result: ReproducedExperiment, claims: Sequence[Paragraph] = ()
) -> None:
    """Print an experiment on one screen: its claim, count and numbers; the rest is on its page."""
    from rich.console import Console

    def lines(blocks: Sequence[Block]) -> int:
        text = StringIO()
        render_terminal.show(Console(file=text, width=console.width), blocks)
        return len(text.getvalue().splitlines())

    head: Blocks = [
        *claims,
        Paragraph(f"{result.name}: {result.summary} ({result.source})"),
        *caution(changed_inputs([result]), severe=True),
        Paragraph(f"**{short_verdict(result)}**"),
    ]
    kept = len(result.published)
    blocks: Blocks = [*head, *_numbers_in_terminal(result, kept)]
    while kept > 1 and (excess := lines(blocks) - SCREEN_LINES) > 0:
        # A row takes two lines at most.
        kept = max(1, kept - max(1, excess // 2))
        blocks = [*head, *_numbers_in_terminal(result, kept)]
    render_terminal.show(console, blocks)


def _numbers_in_terminal(result: ReproducedExperiment, kept: int) -> Blocks:
    """Return the tables of so many numbers, predictions first, and the notes on what they hold."""
    # What a number was fitted to, and how it is tried, takes several lines of a narrow column: it
    # stands on the page.
    claim = worlds()[result.name.partition("/")[0]].main_claim
    of_claim = {*claim.series, result.against} if result.name == claim.experiment else set()

    def place(index: int) -> tuple[bool, bool, bool]:
        pair = result.published[index]
        return pair.simulated is None, pair.series not in of_claim, not pair.counted

    # Numbers that were not simulated go first, both sides of the main claim last.
    order = sorted(range(len(result.published)), key=place)
    shown = set(order[:kept])
    notes: dict[str, None] = {}
    by_metric: dict[str, list[tuple[ComparedNumber, tuple[Cell, ...]]]] = {}
    for index, (pair, row) in enumerate(zip(result.published, _rows(result), strict=True)):
        if index not in shown:
            continue
        series, metric, _, _, *ours = row
        name, *more = role(pair, result.variants).partition(":")[0].replace("; ", ", ").split(", ")
        notes_here = [*([] if name == PREDICTED else [name]), *more]
        notes |= dict.fromkeys(notes_here)
        marks = "".join(MARKS[list(notes).index(note)] for note in notes_here)
        cells = (series, f"{published(pair) or ABSENT} {marks}".strip(), *ours)
        by_metric.setdefault(str(metric), []).append((pair, cells))
    blocks: list[Block] = []
    for metric, rows in by_metric.items():
        pairs = [pair for pair, _ in rows]
        columns = (NUMBER_COLUMNS[0], NUMBER_COLUMNS[3], _ours(pairs), RATIO, SHARE)
        has_effect = any(pair.effect_found is not None for pair in pairs)
        width = len(columns) if has_effect else len(columns) - 1
        blocks += [
            Paragraph(f"{metric}:"),
            Table(columns[:width], [cells[:width] for _, cells in rows]),
        ]
    in_table = {pair.series for rows in by_metric.values() for pair, _ in rows}
    terms = worlds()[result.name.partition("/")[0]].terms
    blocks += [Paragraph(f"'{name}': {terms[name]}") for name in terms if name in in_table]
    said = [f"{mark} {note}" for mark, note in zip(MARKS, notes, strict=False)]
    if any(pair.value is None for rows in by_metric.values() for pair, _ in rows):
        said.append(f"{ABSENT} not in the paper's text")
    if any(pair.simulated is None for rows in by_metric.values() for pair, _ in rows):
        said.append(f"{ABSENT} on the right: not simulated here")
    if hidden := len(result.published) - len(shown):
        said.append(f"{hidden} more on the page")
    changed = [
        f"{assumed.name}: {_assumed_value(result, assumed)}"
        for assumed in result.assumed
        if _is_changed(result, assumed)
    ]
    blocks += [Paragraph(f"assumed: {words}") for words in changed]
    if others := len(result.assumed) - len(changed):
        said.append(f"assumed inputs: {others}, with the effect of others on the page")
    return [*blocks, *paragraphs("; ".join(said))]


def _rows(result: ReproducedExperiment) -> list[tuple[Cell, ...]]:
    """Return a row for every number: what it is, published and ours, the ratio of both and the
    share of the effect.
    """
    rows: list[tuple[Cell, ...]] = []
    for pair in result.published:
        stated = published(pair) or "not in the text"
        what = (series_and_point(pair), metric_in_words(pair), role(pair, result.variants))
        rows.append((*what, stated, with_interval(pair), outcome(pair), effect_in_words(pair)))
    return rows


def _section(result: ReproducedExperiment) -> Blocks:
    blocks: list[Block] = [
        Heading(f"{result.name}: {result.summary}"),
        *paragraphs(f"{result.source}. {result.reading}".strip(), f"**{result.verdict}**"),
        *caution(changed_inputs([result]), severe=True),
        *_numbers_or_steps(result),
        *paragraphs(effects_compared(result)),
    ]
    if missing := _missing_rows(result):
        blocks.append(Table(MISSING_COLUMNS, missing))
    if result.differs:
        blocks.append(
            Table(("other than in the paper's world", "why"), list(result.differs.items()))
        )
    if result.assumed:
        assumed = [
            (entry.name, _assumed_value(result, entry), entry.effect, _way_to_change(result, entry))
            for entry in result.assumed
        ]
        columns_of_assumed = ("assumed", "value", "effect of another value", "change it with")
        blocks.append(Table(columns_of_assumed, assumed))
    if result.sensitivity:
        moves = []
        for move in result.sensitivity:
            largest = max(
                (abs(after / before - 1) for before, after in move.ratios.values()), default=0.0
            )
            moves.append((move.name, move.value, move.effect, percent(largest)))
        columns = (
            "input",
            "moved to",
            Column("mean change of the results", "times"),
            "largest change",
        )
        figure = Figure(
            "Effect of each assumed input on every number", _figure_path(result), SENSITIVITY_NOTE
        )
        blocks += [Table(columns, moves), figure]
    took = f" took {duration(result.wall_s)} here." if result.wall_s is not None else ""
    changed = "".join(
        f" --set {quote(f'{key}={value_of_change(value)}')}"
        for key, value in result.changes.items()
    )
    command = f"skit reproduce {result.name}{changed}"
    return [*blocks, Paragraph(f"{code(command)}{took}")]


def _numbers_or_steps(result: ReproducedExperiment) -> Blocks:
    """Return the table of an experiment's numbers, or its steps with a sentence and a picture."""
    steps = _steps_of(result)
    if steps is None:
        return [_numbers(result)]
    figure = Figure("Steps from as printed to the printed numbers", _steps_path(result), NOTE)
    return [Paragraph(steps.sentence), figure, steps_table(result, steps)]


def _steps_of(result: ReproducedExperiment) -> Steps | None:
    """Return the steps of an experiment, if it has any and all of them were found."""
    experiment = experiments().get(result.name)
    steps = experiment.steps if experiment else None
    if steps is None:
        return None
    points = {steps.first, *steps.single, *steps.cumulative}
    return steps if points <= found_at(result, steps).keys() else None


def _steps_path(result: ReproducedExperiment) -> str:
    return f"plots/{result.name.replace('/', '-')}-steps.svg"


def changed_inputs(results: Sequence[ReproducedExperiment]) -> list[str]:
    """Return a caution for every experiment with other inputs than its own, or other seeds."""
    cautions = []
    for result in results:
        values = ", ".join(f"{key}: {value}" for key, value in result.changes.items())
        if changes_meaning(result.changes):
            cautions.append(
                f"CHANGED INPUTS of {result.name}: {values}. These are not the paper's numbers "
                "reproduced: what is said below of assumed and fitted inputs, and the roles of "
                "numbers, is that of the unchanged experiment. Ours stands as unchanged → changed."
            )
        elif values:
            cautions.append(
                f"OTHER SEEDS of {result.name}: {values}. Intervals have another width, and means "
                "are of other draws."
            )
    return cautions


def _assumed_value(result: ReproducedExperiment, assumed: Assumed) -> str:
    """Return an assumed value, or what was set in its place."""
    if not _is_changed(result, assumed):
        return assumed.value
    own = assumed.options
    changed = [
        f"{key}={value_of_change(value)}" for key, value in result.changes.items() if key in own
    ]
    return f"CHANGED to {', '.join(changed)}; in the unchanged experiment {assumed.value}"


def _is_changed(result: ReproducedExperiment, assumed: Assumed) -> bool:
    return not assumed.options.isdisjoint(result.changes)


def _way_to_change(result: ReproducedExperiment, assumed: Assumed) -> str:
    """Return the option that changes an assumed input, with another value; nothing if there is
    none.
    """
    experiment = experiments().get(result.name)
    example = example_change(experiment, assumed) if experiment else ""
    return code(f"--set {quote(example)}") if example else ABSENT


def _numbers(result: ReproducedExperiment) -> Table:
    """Return all numbers, with the share of an effect if any has one, and with ratios of ratios to
    one series.
    """
    rows = _rows(result)
    columns: list[Column] = [
        *map(Column, (*NUMBER_COLUMNS, _ours(result.published))),
        Column(RATIO, "times"),
    ]
    if any(pair.effect_found is not None for pair in result.published):
        columns.append(Column(SHARE))
    rows = [row[: len(columns)] for row in rows]
    against = result.against
    if not against:
        return Table(columns, rows)
    titles = (f"{against} / series, published", "ours", "ratio of ratios")
    cells: list[Sequence[Cell]] = []
    for pair in result.published:
        ratios = pair.ratio_of_ratios
        cells.append(
            (ratios.published, ratios.simulated, ratios.ratio) if ratios else (None, None, None)
        )
    columns += [Column(title, "times") for title in titles]
    return Table(columns, [(*row, *more) for row, more in zip(rows, cells, strict=True)])


def _figure_path(result: ReproducedExperiment) -> str:
    return f"plots/{result.name.replace('/', '-')}.svg"


ROW_IN = 0.34
LINE_IN = 0.05
LEGEND_IN = 0.17
"""The least height of an input's value, of one number's line in it, and of a line of the legend."""
TICKS_OF_NARROW = (1, 1.2, 1.5, 2, 3, 5, 7, 8, 9)
TICKS_OF_WIDE = (1, 2, 3, 5, 7)
WIDE_SPAN = 3.0
"""Ticks per power of ten; the axis is wide if its largest ratio is over `WIDE_SPAN` times the
smallest.
"""


SENSITIVITY_NOTE = (
    "Effect of each assumed input on every number. Each colour with its mark is one published number, named below the "
    "axis. Its line goes from ours over the published one to where the input's other value moves it, at the mark."
)


def sensitivity(result: ReproducedExperiment) -> bytes:
    """Return an SVG with a row for each value of each input and an arrow for every published
    number.
    """
    moves = result.sensitivity
    names = list(dict.fromkeys(name for move in moves for name in move.ratios))
    ratios = [
        ratio for move in moves for pair in move.ratios.values() for ratio in pair if ratio > 0
    ]
    narrow = not ratios or max(ratios) / min(ratios) < WIDE_SPAN

    def paint(axes: "Axes") -> None:
        for index, name in enumerate(names):
            colour = COLOURS[index % len(COLOURS)]
            marker = MARKERS[index // len(COLOURS) % len(MARKERS)]
            for row, move in enumerate(moves):
                if name in move.ratios:
                    y = row + 0.7 * ((index + 0.5) / len(names) - 0.5)
                    axes.plot(move.ratios[name], [y, y], color=colour, linewidth=1)
                    axes.plot(move.ratios[name][1], y, marker=marker, markersize=3, color=colour)
            axes.plot(
                [],
                [],
                color=colour,
                marker=marker,
                markersize=3,
                label=name.replace("figures.overall.", "").removesuffix(" value"),
            )
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(
            range(len(moves)), [f"{move.name}: {move.value}"[:44] for move in moves], fontsize=7
        )
        axes.invert_yaxis()
        logarithmic(axes, "x", TICKS_OF_NARROW if narrow else TICKS_OF_WIDE)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel("ours / published, and where the input moves it", fontsize=7)
        if axes.get_legend_handles_labels()[0]:
            axes.figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)

    height_in = 0.7 + max(ROW_IN, LINE_IN * len(names)) * len(moves) + LEGEND_IN * len(names) / 2
    title = f"{result.name}: effect of the assumed inputs"
    picture = Picture(result.name.replace("/", "-"), title, "", height_in, paint)
    return draw(picture, result.source, ("svg",))["svg"]


def _tally_picture(
    name: str, counts: Mapping[str, tuple[int, int]], setting: str, tally: Tally
) -> bytes:
    """Return an SVG with a bar for each name: how many of its numbers come out, and of how many."""

    def paint(axes: "Axes") -> None:
        for row, (within, compared) in enumerate(counts.values()):
            axes.barh(row, compared, 0.7, facecolor="none", edgecolor=GREY)
            axes.barh(row, within, 0.7, color=tally.colour)
            label = f"{within} of {compared}"
            axes.annotate(
                label, (compared, row), (4, 0), textcoords="offset points", va="center", color=BLACK
            )
        axes.set_yticks(range(len(counts)), list(counts))
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(tally.axis)

    height_in = TALLY_FRAME_IN + TALLY_ROW_IN * max(2, len(counts))
    picture = Picture(name, tally.title, tally.note, height_in, paint)
    return draw(picture, setting, ("svg",))["svg"]
