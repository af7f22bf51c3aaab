"""Running servers measured on a suite's prompts, as `skit ab` measures them: the second against the first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.core.version import __version__
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.metrics.ab.summary import AbSummary
from specbench_kit.metrics.suite import MeasuredResult, MeasuredServer
from specbench_kit.studies.ab.run import compare_servers
from specbench_kit.studies.ab.settings import AbSettings
from specbench_kit.studies.suite.definition import PROMPTS, QUICK_STEP, Suite
from specbench_kit.studies.suite.files import SCHEMA


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
    dataset = load_dataset(str(path), data_dir=None, allow_sample=False, limit=None, seed=suite.table.seed)
    changed = f"the prompts in {path} are not those of suite {suite.table.name}: install specbench-kit again"
    require(dataset.digest == suite.table.pairs[pair].prompts, changed)
    if suite.quick:
        dataset = replace(dataset, prompts=dataset.prompts[::QUICK_STEP])
    settings = AbSettings(
        servers=tuple(servers),
        dataset=str(path),
        repeats=1,
        max_new_tokens=suite.trace(pair).provenance("config", "max_new_tokens"),
        seed=suite.table.seed,
        out=out,
        argv=tuple(argv),
    )
    outcome = compare_servers(settings, dataset, progress, say)
    if outcome.problem is not None:
        raise outcome.problem
    return Measurement(outcome.folder, _result(suite, hardware or _hardware(outcome.run), outcome.run, outcome.summary))


def require_hardware(servers: Sequence[str], hardware: str) -> None:
    """Raise SkitError if nobody says what servers elsewhere run on."""
    here = all("://127.0.0.1" in server or "://localhost" in server for server in servers)
    require(here or bool(hardware), "give --hardware for servers on another machine, such as --hardware '1 x H100'")


def _hardware(run: JsonObject) -> str:
    facts = run["hardware"]
    return f"{facts['gpu'] or facts['cpu']}, {facts['usable_cpus']} CPUs, {facts['memory_gb']:g} GB"


def _result(suite: Suite, hardware: str, run: JsonObject, summary: AbSummary) -> MeasuredResult:
    (load,) = summary.loads
    compared = next(comparison for comparison in load.comparisons if comparison.figure == "e2e")
    first, second = (_server(facts, summary) for facts in run["servers"])
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
        interval=(compared.typical_interval[0], compared.typical_interval[1]) if compared.typical_interval else None,
        verdict=compared.verdict,
        outputs=load.outputs.gate,
    )


def _server(facts: JsonObject, summary: AbSummary) -> MeasuredServer:
    (load,) = summary.loads
    figures = load.servers[facts["name"]]
    speculation = figures.speculation
    return MeasuredServer(
        name=facts["name"],
        kind=facts["dialect"],
        model=Path(facts["model"]).name if facts["model"] else None,
        version=facts["version"],
        tokens_per_s=figures.throughput,
        acceptance_length=speculation.acceptance_length if speculation else None,
    )
