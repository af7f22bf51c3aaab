"""Check a file of results: run its policies again and compare every number to the last digit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.suite import CellResult, FleetResult, PolicyResult, SuiteResult
from specbench_kit.studies.suite.definition import load
from specbench_kit.studies.suite.running import run_suite, source_hash

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
    """Run the policy of a file again; raise SkitError if it is not installed as it was submitted."""
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
        raise SkitError(f"the source of {name} here is not the submitted one: install {package} as it was, then check")


def _differences(old: PolicyResult, new: PolicyResult) -> Iterator[str]:
    """Yield a line for each cell that differs, with the first number that does."""
    for name in IDENTITY:
        if getattr(old, name) != getattr(new, name):
            yield f"{old.spec}: its {name.replace('_', ' ')} is another here"
    yield from _differing(old.spec, old.cells, new.cells, CellResult())
    yield from _differing(old.spec, old.fleets, new.fleets, FleetResult())


def _differing(spec: str, old: Mapping[str, Part], new: Mapping[str, Part], absent: Part) -> Iterator[str]:
    for part in {**old, **new}:
        before = old.get(part, absent)
        after = new.get(part, absent)
        if before == after:
            continue
        name = next(field for field in structs.asdict(after) if getattr(before, field) != getattr(after, field))
        yield f"{spec} in {part}: {_first(name, getattr(before, name), getattr(after, name))}"


def _first(name: str, before: object, after: object) -> str:
    words = name.replace("_", " ")
    entry = ENTRIES.get(name, "request")
    if isinstance(before, tuple) and isinstance(after, tuple):
        if len(before) != len(after):
            return f"{words} of {len(before)} entries in the file, of {len(after)} here"
        number = next(n for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        return f"{words} of {entry} {number + 1} are {before[number]} in the file and {after[number]} here"
    return f"{words} is {before or 'nothing'} in the file and {after or 'nothing'} here"
