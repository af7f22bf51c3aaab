"""Runs of a suite and their reports; the board of a folder of results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from specbench_kit.core.errors import require
from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.suite import Scoreboard, SuiteOutline, SuiteResult
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.provenance import shareable
from specbench_kit.studies.bench.choice import ALL
from specbench_kit.studies.suite.definition import Suite, load
from specbench_kit.studies.suite.files import kit_results, measurements, save, submissions
from specbench_kit.studies.suite.running import is_current, run_suite

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """The folder of a run's report, and its scores by policy and cell."""

    folder: Path
    summary: dict[str, object]


def run_named(
    suite: Suite, methods: Sequence[str], jobs: int, report: CountCallback, finished: Path | None = None
) -> Iterator[SuiteResult]:
    """Run policies, without those whose files are in the folder `finished`.

    A quick run takes the baseline and the bounds along, which others find among what ships with the suite.
    """
    if suite.quick and ALL not in methods:
        methods = list(dict.fromkeys([BASELINE, *suite.table.bounds, *methods]))
    files = submissions(finished) if finished is not None and finished.is_dir() else []
    done = {result.policy.spec: result for result in files if is_current(result)}
    return run_suite(suite, methods, jobs, report, done)


def report_results(
    suite: Suite, results: Sequence[SuiteResult], out: Path, argv: Sequence[str], console: "Console"
) -> SuiteOutcome:
    """Print the results, and write the report and the results into a folder of their own."""
    from specbench_kit.reports import render_html, render_markdown
    from specbench_kit.studies.suite.report import SuiteRun, build, print_results

    policies = [result.policy for result in results]
    run = SuiteRun(outline_of(suite), scoreboard(suite, results), policies, suite.quick)
    print_results(console, run)
    specs = [policy.spec for policy in policies]
    folder = unused_folder(out, "suite", suite.table.name, {"suite": suite.sha256, "specs": specs})
    document, drawings = build(run)
    write_text(folder / "report.html", render_html.render(document, drawings))
    write_text(folder / "report.md", render_markdown.render(document))
    for result in results:
        save(result, folder / "results")
    summary = summarise(run.board, specs)
    about = {"command": "suite", "suite": suite.table.name, "suite_sha256": suite.sha256, "argv": shareable(argv)}
    write_text(folder / "run.json", to_json({**about, "quick": suite.quick, "machine": results[0].machine}))
    write_text(folder / "summary.json", to_json(summary))
    return SuiteOutcome(folder, summary)


def scoreboard(suite: Suite, results: Sequence[SuiteResult]) -> Scoreboard:
    """Return the scores of results beside those of the kit's policies; quick results stand alone."""
    shipped = [] if suite.quick else kit_results(suite)
    policies = [result.policy for result in (*shipped, *results)]
    return Scoreboard(list(suite.cells.values()), suite.table.bounds, policies, list(suite.fleets.values()))


def outline_of(suite: Suite) -> SuiteOutline:
    """Return what reports say of a suite."""
    table = suite.table
    pairs = {name: " ".join(filter(None, (f"{pair.words}.", pair.source))) for name, pair in table.pairs.items()}
    return SuiteOutline(table.name, suite.sha256, table.summary, pairs, table.left_out)


def summarise(board: Scoreboard, specs: Sequence[str]) -> dict[str, object]:
    """Return the content of `summary.json`: the scores of policies by cell, and what they serve by fleet."""
    return {
        spec: {
            cell: {
                "speedup": score.speedup,
                "interval": score.interval,
                "regret": score.regret,
                "acceptance_length": score.result.tokens_per_verification,
                "wdt": score.result.wdt,
                "wdt_share": score.result.wdt_share,
                "rank": board.rank(spec, cell),
            }
            for cell, score in board.scores(spec).items()
        }
        | {fleet: _served(board, spec, fleet) for fleet in board.fleets if board.fleet(spec, fleet)}
        for spec in specs
    }


def _served(board: Scoreboard, spec: str, fleet: str) -> dict[str, object]:
    capacity, result = board.capacity(spec, fleet), board.fleet(spec, fleet)
    return {**(capacity._asdict() if capacity else {}), **(structs.asdict(result) if result else {})}


def kit_board(name: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the HTML of every page of the board of the kit's own policies."""
    from specbench_kit.studies.suite.board import pages_of

    suite = load(name)
    return pages_of(outline_of(suite), scoreboard(suite, []))


def make_board(folder: Path, site: Path) -> Path:
    """Write the board of all results in a folder, and of the kit's own policies, as a static site."""
    from specbench_kit.studies.suite.board import write_board

    results, measured = submissions(folder), measurements(folder)
    names = sorted({part.suite for part in results} | {part.suite for part in measured}) or ["v1"]
    require(len(names) == 1, f"{folder} holds results of several suites, {' and '.join(names)}: one board shows one")
    suite = load(names[0])
    return write_board(site, outline_of(suite), scoreboard(suite, results), measured)
