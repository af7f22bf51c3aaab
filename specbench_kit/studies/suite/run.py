"""Runs of a suite and their reports; the board of a folder of results; the check of a file of
results.

A check runs the file's policies again and compares every number to the last digit. Running servers
are measured on a suite's prompts as `skit ab` measures them: the second against the first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.core.version import __version__
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.live.engines.answers import ServerDescription
from specbench_kit.methods.base import methods
from specbench_kit.methods.selection import ALL
from specbench_kit.methods.spec import parse_method, source_hash
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.study import finish
from specbench_kit.runs.document import HardwareDescription
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.provenance import shareable
from specbench_kit.studies.ab.report import AbDescription
from specbench_kit.studies.ab.run import compare_servers
from specbench_kit.studies.ab.settings import AbSettings
from specbench_kit.studies.ab.summary import AbSummary
from specbench_kit.studies.suite.definition import PROMPTS, QUICK_STEP, Suite, load
from specbench_kit.studies.suite.files import SCHEMA, measurements, save, submissions
from specbench_kit.studies.suite.kind import (
    RESULTS,
    SUITE,
    SuiteStudy,
    outline_of,
    scoreboard,
    suite_run,
)
from specbench_kit.studies.suite.running import is_current, run_suite
from specbench_kit.studies.suite.scores import (
    CellResult,
    FleetResult,
    MeasuredResult,
    MeasuredServer,
    PolicyResult,
    SuiteResult,
)

if TYPE_CHECKING:
    from rich.console import Console


def run_named(
    suite: Suite,
    methods: Sequence[str],
    jobs: int,
    report: CountCallback,
    finished: Path | None = None,
) -> Iterator[SuiteResult]:
    """Run policies, without those whose files are in the folder `finished`.

    A quick run takes the baseline and the bounds along, which others find among what ships with the
    suite.
    """
    if suite.quick and ALL not in methods:
        methods = list(dict.fromkeys([BASELINE, *suite.table.bounds, *methods]))
    files = submissions(finished) if finished is not None and finished.is_dir() else []
    done = {result.policy.spec: result for result in files if is_current(result)}
    return run_suite(suite, methods, jobs, report, done)


def report_results(
    suite: Suite, results: Sequence[SuiteResult], out: Path, argv: Sequence[str], console: "Console"
) -> SuiteStudy:
    """Print the results, and write the report and the results into a folder of their own."""
    run = suite_run(suite, results)
    specs = [policy.spec for policy in run.policies]
    folder = unused_folder(out, "suite", suite.table.name, {"suite": suite.sha256, "specs": specs})
    for result in results:
        save(result, folder / RESULTS)
    about = {
        "suite": suite.table.name,
        "suite_sha256": suite.sha256,
        "quick": suite.quick,
        "specs": specs,
    }
    study = finish(SUITE, folder, {"command": SUITE.command, **about, "argv": shareable(argv)}, run)
    study.kind.print(console, study)
    return study


def kit_board(name: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the HTML of every page of the board of the kit's own policies."""
    from specbench_kit.studies.suite.board import pages_of

    suite = load(name)
    return pages_of(outline_of(suite), scoreboard(suite, []))


def make_board(folder: Path, site: Path) -> Path:
    """Write the board of all results in a folder, and of the kit's own policies, as a static
    site.
    """
    from specbench_kit.studies.suite.board import write_board

    results, measured = submissions(folder), measurements(folder)
    names = sorted({part.suite for part in results} | {part.suite for part in measured}) or ["v1"]
    require(
        len(names) == 1,
        f"{folder} holds results of several suites, {' and '.join(names)}: one board shows one",
    )
    suite = load(names[0])
    return write_board(site, outline_of(suite), scoreboard(suite, results), measured)


IDENTITY = ("options_sha256", "source_sha256", "predictor", "is_bound", "lowered")
"""What has to be the same of a policy besides its numbers."""
SUMS = 7
"""Numbers of a cell besides those of its requests."""
ENTRIES = {"late": "seed", "late_by_class": "class"}
"""What the entries of a list are, where they are not requests."""
Part = CellResult | FleetResult


@dataclass(frozen=True, slots=True)
class Check:
    """What running a policy again showed: the numbers compared, and a line for each difference."""

    cells: int
    fleets: int
    numbers: int
    differences: Sequence[str]


def check(result: SuiteResult, jobs: int, report: CountCallback) -> Check:
    """Run the policy of a file again; raise SkitError if it is not installed as it was
    submitted.
    """
    _require_installed(result.policy)
    suite = load(result.suite, result.quick)
    (again,) = run_suite(suite, [result.policy.spec], jobs, report)
    ran = [cell for cell in again.policy.cells.values() if cell.seconds]
    simulated = [fleet for fleet in again.policy.fleets.values() if fleet.late]
    numbers = sum(len(cell.seconds) + len(cell.rounds) + SUMS for cell in ran)
    numbers += sum(sum(map(len, fleet.late)) + len(fleet.late_by_class) + 1 for fleet in simulated)
    return Check(len(ran), len(simulated), numbers, list(_differences(result.policy, again.policy)))


def _require_installed(policy: PolicyResult) -> None:
    name = policy.spec.partition(":")[0]
    package = f"{policy.package} {policy.version}"
    if name not in methods.all():
        raise SkitError(f"the policy {name} is not installed here: install {package}, then check")
    if source_hash(type(parse_method(policy.spec))) != policy.source_sha256:
        raise SkitError(
            f"the source of {name} here is not the submitted one: install {package} as it was, then check"
        )


def _differences(old: PolicyResult, new: PolicyResult) -> Iterator[str]:
    """Yield a line for each cell that differs, with the first number that does."""
    for name in IDENTITY:
        if getattr(old, name) != getattr(new, name):
            yield f"{old.spec}: its {name.replace('_', ' ')} is another here"
    yield from _differing(old.spec, old.cells, new.cells, CellResult())
    yield from _differing(old.spec, old.fleets, new.fleets, FleetResult())


def _differing(
    spec: str, old: Mapping[str, Part], new: Mapping[str, Part], absent: Part
) -> Iterator[str]:
    for part in {**old, **new}:
        before = old.get(part, absent)
        after = new.get(part, absent)
        if before == after:
            continue
        name = next(
            field
            for field in structs.asdict(after)
            if getattr(before, field) != getattr(after, field)
        )
        yield f"{spec} in {part}: {_first(name, getattr(before, name), getattr(after, name))}"


def _first(name: str, before: object, after: object) -> str:
    words = name.replace("_", " ")
    entry = ENTRIES.get(name, "request")
    if isinstance(before, tuple) and isinstance(after, tuple):
        if len(before) != len(after):
            return f"{words} of {len(before)} entries in the file, of {len(after)} here"
        number = next(
            n for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]
        )
        return f"{words} of {entry} {number + 1} are {before[number]} in the file and {after[number]} here"
    return f"{words} is {before or 'nothing'} in the file and {after or 'nothing'} here"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of measuring two servers: the folder of the comparison, and the result."""

    folder: Path
    result: MeasuredResult


def measure_servers(
    suite: Suite,
    servers: Sequence[str],
    hardware: str,
    out: Path,
    argv: Sequence[str],
    progress: ProgressCallback,
    say: Callable[[str], None],
) -> Measurement:
    """Put the prompts of a suite's recorded pair to two servers, one request at a time.

    A quick measurement takes every fifth prompt. Raise SkitError if a server goes away.
    """
    path = suite.folder / PROMPTS
    pair = suite.recorded_pair
    dataset = load_dataset(
        str(path), data_dir=None, allow_sample=False, limit=None, seed=suite.table.seed
    )
    changed = f"the prompts in {path} are not those of suite {suite.table.name}: install specbench-kit again"
    require(dataset.digest == suite.table.pairs[pair].prompts, changed)
    if suite.quick:
        dataset = replace(dataset, prompts=dataset.prompts[::QUICK_STEP])
    trace = suite.trace(pair)
    settings = AbSettings(
        servers=tuple(servers),
        dataset=str(path),
        repeats=1,
        max_new_tokens=trace.known(trace.max_new_tokens, "config max_new_tokens"),
        seed=suite.table.seed,
        out=out,
        argv=tuple(argv),
    )
    outcome = compare_servers(settings, dataset, progress, say)
    if outcome.problem is not None:
        raise outcome.problem
    study = outcome.study
    return Measurement(
        study.folder, _result(suite, hardware or _hardware(study.run), study.run, study.result)
    )


def require_hardware(servers: Sequence[str], hardware: str) -> None:
    """Raise SkitError if nobody says what servers elsewhere run on."""
    here = all("://127.0.0.1" in server or "://localhost" in server for server in servers)
    require(
        here or bool(hardware),
        "give --hardware for servers on another machine, such as --hardware '1 x H100'",
    )


def _hardware(run: AbDescription) -> str:
    machine = run.hardware or HardwareDescription()
    return (
        f"{machine.gpu or machine.cpu}, {machine.usable_cpus} CPUs, {machine.memory_gb or 0:g} GB"
    )


def _result(suite: Suite, hardware: str, run: AbDescription, summary: AbSummary) -> MeasuredResult:
    (load,) = summary.loads
    compared = next(comparison for comparison in load.comparisons if comparison.figure == "e2e")
    first, second = (_server(server, summary) for server in run.servers)
    return MeasuredResult(
        schema=SCHEMA,
        suite=suite.table.name,
        suite_sha256=suite.sha256,
        quick=suite.quick,
        kit=__version__,
        hardware=hardware,
        servers=(first, second),
        requests=summary.finished,
        failed=summary.failed,
        speedup=compared.typical,
        interval=(compared.typical_interval[0], compared.typical_interval[1])
        if compared.typical_interval
        else None,
        verdict=compared.verdict,
        outputs=load.outputs.gate,
    )


def _server(server: ServerDescription, summary: AbSummary) -> MeasuredServer:
    (load,) = summary.loads
    figures = load.servers[server.name]
    speculation = figures.speculation
    return MeasuredServer(
        name=server.name,
        kind=server.dialect,
        model=Path(server.model).name if server.model else None,
        version=server.version,
        tokens_per_s=figures.throughput,
        acceptance_length=speculation.acceptance_length if speculation else None,
    )
