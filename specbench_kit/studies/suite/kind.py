"""A run of a suite as a kind of study."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field, structs, to_builtins

from specbench_kit.core.errors import require
from specbench_kit.core.plain_text import CsvRow
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.study import StoredFiles, Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.suite import report
from specbench_kit.studies.suite.definition import Suite, load
from specbench_kit.studies.suite.files import kit_results, read
from specbench_kit.studies.suite.report import SuiteRun
from specbench_kit.studies.suite.scores import FleetResult, Scoreboard, SuiteOutline, SuiteResult

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = "results"
"""The folder of a run that holds the file of each policy's results."""


class SuiteDescription(RunDescription, kw_only=True):
    """What `run.json` says of a run of a suite."""

    suite: Annotated[str, Meta(description="name of the suite")]
    suite_sha256: Annotated[str, Meta(description="SHA-256 of the suite's definition and inputs")]
    quick: Annotated[
        bool, Meta(description="whether this was a quick run, of a part of the suite")
    ] = False
    specs: Annotated[
        list[str], Meta(description="specs of the policies, in the order in which they ran")
    ] = field(default_factory=list)


class CellScores(Struct):
    """A policy's scores in a cell."""

    speedup: Annotated[
        float, Meta(description="time of autoregressive decoding / time of the policy, both summed")
    ]
    interval: Annotated[
        list[float] | None,
        Meta(
            description="interval of the speedup, which holds together with those of all policies of the "
            "cell; null if there are too few prompts"
        ),
    ]
    regret: Annotated[
        float | None,
        Meta(
            description="share of the policy's time that the oracle of the cell would have saved, 0 where it "
            "is as fast; null without an oracle"
        ),
    ]
    acceptance_length: Annotated[float, Meta(description="mean committed tokens per round")]
    wdt: Annotated[float, Meta(description="drafting seconds of tokens that were not accepted")]
    wdt_share: Annotated[
        float | None,
        Meta(description="these seconds / all drafting seconds; null without drafting"),
    ]
    rank: Annotated[
        tuple[int, int] | None,
        Meta(
            description="place by the speedup, from 1, and how many policies have one; null without a rival"
        ),
    ]


class FleetScores(FleetResult, frozen=True, kw_only=True):
    """What a policy serves in a fleet."""

    devices: Annotated[
        float | None,
        Meta(
            description="devices that a server serves, mean over seeds, interpolated between loads; null if "
            "the policy cannot run there"
        ),
    ] = None
    least: Annotated[
        float | None,
        Meta(description="least devices of any seed; null if the policy cannot run there"),
    ] = None
    most: Annotated[
        float | None,
        Meta(description="most devices of any seed; null if the policy cannot run there"),
    ] = None
    is_bounded: Annotated[bool, Meta(description="whether a seed served even the largest load")] = (
        False
    )
    is_below: Annotated[
        bool,
        Meta(
            description="whether the mean lies below the smallest load, where it orders policies and means "
            "nothing else"
        ),
    ] = False


class SuiteSummary(Struct):
    """The content of `summary.json` of a run of a suite."""

    cells: Annotated[
        dict[str, dict[str, CellScores]],
        Meta(description="scores by cell, then by the policy's spec"),
    ]
    fleets: Annotated[
        dict[str, dict[str, FleetScores]],
        Meta(description="what is served by fleet, then by the policy's spec"),
    ]


SuiteStudy = Study[SuiteDescription, SuiteRun]


class SuiteKind(StudyKind[SuiteDescription, SuiteRun]):
    """Policies in every cell of a suite; the file of each policy's results lies in the folder as
    well.
    """

    command = "suite"
    description = SuiteDescription
    result = SuiteSummary

    def found(self, run: SuiteDescription, content: object, folder: Path) -> SuiteRun:
        """Return the run that the files of its results hold, beside the kit's own policies."""
        paths = sorted((folder / RESULTS).glob("*.json"))
        require(bool(paths), f"{folder / RESULTS} holds no file of results")
        results = [read(path) for path in paths]
        # In the order in which they ran, which the files' names do not tell.
        places = {spec: place for place, spec in enumerate(run.specs)}
        results.sort(key=lambda result: places.get(result.policy.spec, len(places)))
        return suite_run(load(run.suite, run.quick), results)

    def content(self, result: SuiteRun) -> object:
        """Return the scores."""
        return to_builtins(summarise(result.board, [policy.spec for policy in result.policies]))

    def upgraded(self, files: StoredFiles) -> StoredFiles:
        """Return files of 0.2, in which `machine` were words and no readings."""
        run = {name: value for name, value in files.run.items() if name != "machine"}
        return files._replace(run=run)

    def headline(self, study: SuiteStudy) -> str:
        """Return how the best of the policies that ran did."""
        return report.headlines(study.result)[0]

    def cautions(self, study: SuiteStudy) -> list[str]:
        """Return what limits the scores."""
        return report.cautions(study.result)

    def document(self, study: SuiteStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.result, figures)

    def pictures(self, study: SuiteStudy) -> Iterable[Picture]:
        """Return the speedups by deployment, a figure for each batch size."""
        return report.pictures(study.result)

    def setting(self, study: SuiteStudy) -> str:
        """Return the suite."""
        return f"suite {study.result.outline.name}, recorded pair, modelled"

    def files(self, study: SuiteStudy) -> Tables:
        """Return a row per policy and cell, and a row per policy and fleet."""
        scores = summarise(study.result.board, [policy.spec for policy in study.result.policies])
        return {
            "cells.csv": list(_rows(scores.cells, "cell")),
            "fleets.csv": list(_rows(scores.fleets, "fleet")),
        }

    def print(self, console: "Console", study: SuiteStudy) -> None:
        """Print the sentence and the table."""
        report.print_results(console, study.result)


def _rows(scores: Mapping[str, Mapping[str, Struct]], place: str) -> Iterator[CsvRow]:
    for spec, by_place in scores.items():
        for name, row in by_place.items():
            cells = {
                field: value
                for field, value in to_builtins(row).items()
                if field not in ("late", "interval")
            }
            low, high = getattr(row, "interval", None) or (None, None)
            interval = {"speedup_low": low, "speedup_high": high} if place == "cell" else {}
            yield {"policy": spec, place: name, **cells, **interval}


def suite_run(suite: Suite, results: Sequence[SuiteResult]) -> SuiteRun:
    """Return results beside those of the kit's policies."""
    policies = [result.policy for result in results]
    return SuiteRun(outline_of(suite), scoreboard(suite, results), policies, suite.quick)


def scoreboard(suite: Suite, results: Sequence[SuiteResult]) -> Scoreboard:
    """Return the scores of results beside those of the kit's policies; quick results stand
    alone.
    """
    shipped = [] if suite.quick else kit_results(suite)
    policies = [result.policy for result in (*shipped, *results)]
    return Scoreboard(
        list(suite.cells.values()), suite.table.bounds, policies, list(suite.fleets.values())
    )


def outline_of(suite: Suite) -> SuiteOutline:
    """Return what reports say of a suite."""
    table = suite.table
    pairs = {
        name: " ".join(filter(None, (f"{pair.words}.", pair.source)))
        for name, pair in table.pairs.items()
    }
    return SuiteOutline(table.name, suite.sha256, table.summary, pairs, table.left_out)


def summarise(board: Scoreboard, specs: Sequence[str]) -> SuiteSummary:
    """Return the scores of policies by cell, and what they serve by fleet."""
    cells = {
        spec: {cell: _scores(board, spec, cell) for cell in board.scores(spec)} for spec in specs
    }
    fleets = {
        spec: {
            fleet: _served(board, spec, fleet) for fleet in board.fleets if board.fleet(spec, fleet)
        }
        for spec in specs
    }
    return SuiteSummary(cells, fleets)


def _scores(board: Scoreboard, spec: str, cell: str) -> CellScores:
    score = board.scores(spec)[cell]
    result = score.result
    return CellScores(
        score.speedup,
        score.interval,
        score.regret,
        result.tokens_per_verification,
        result.wdt,
        result.wdt_share,
        board.rank(spec, cell),
    )


def _served(board: Scoreboard, spec: str, fleet: str) -> FleetScores:
    capacity, result = board.capacity(spec, fleet), board.fleet(spec, fleet)
    served = capacity._asdict() if capacity else {}
    return FleetScores(**served, **(structs.asdict(result) if result else {}))


SUITE = SuiteKind()
KINDS = (SUITE,)
