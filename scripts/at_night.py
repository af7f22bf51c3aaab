"""Measure what each test runs and takes, and write the list of those that `make test` leaves to the night.

    python scripts/at_night.py measure build/at-night               every test of the day, half an hour on two cores
    python scripts/at_night.py measure build/at-night tests/live    some of them
    python scripts/at_night.py choose build/at-night                tests/at_night.toml, by its first lines' rule

A block is the body of a function, a branch, a loop or a handler. An import hook marks the blocks of the kit that run,
in the processes that a test starts too. Before the list is kept, plant faults and see which of them only moved tests
notice: these belong into `KEPT`.
"""

import ast
import atexit
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "specbench_kit"
LIST = ROOT / "tests" / "at_night.toml"
OUT = "BLOCKS_OF_TESTS"
"""The environment variable with the folder for measurements. What begins with SKIT_ is kept from processes of tests."""
MARKS = "_blocks_that_ran_"

CHEAP_S = 0.05
"""Tests that take no longer stay by day."""
PRICE_S = 1.5
"""Seconds that a block may cost which one test alone runs."""
DEAR_S = 1.0
"""Seconds up to which one case of a function stays by day, whatever it runs."""
WAITING = 0.6
"""Share of a test's wall time that counts at least: it waits for others beside it on a busy machine."""
KEPT = (
    # What alone noticed a planted fault.
    "tests/methods/test_oracle.py::test_no_lengths_are_faster[recorded]",
    "tests/serving/test_native_core.py::test_pools_give_the_same_numbers[30]",
    "tests/on_a_card/test_card_serving.py::test_a_server_that_drafts_by_itself",
    # Losslessness is checked every day.
    "tests/live/test_scoring.py::test_a_planted_fault_in_the_servers_verification_is_an_error[accept_second]",
    "tests/test_method_contract.py::test_the_distribution_check_catches_a_wrong_rule",
    "tests/decoding/test_verification.py::test_residual_gives_the_targets_distribution",
    # They start processes that the hook cannot follow.
    "tests/live/test_grammars_over_the_wire.py::",
    "tests/live/test_grammars_of_devices.py::",
    "tests/live/test_skit_serve.py::",
    "tests/decoding/test_pipeline_processes.py::",
)
MOVED = ("tests/cli/test_one_screen.py::", "tests/reports/run/test_every_form.py::")
"""Whose fixtures take long, and of which others run nearly every block."""

Block = tuple[str, int]
"""A file below the package, and the number of a block in it."""
_marks: dict[str, bytearray] = {}
_is_worker = False


class _Marker(ast.NodeTransformer):
    """Puts a mark at the start of every block, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Mark the blocks of what is below first, so that numbers depend on the source alone."""
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = self._marked(node.body, after=ast.get_docstring(node) is not None)
        elif isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
            node.body = self._marked(node.body)
            node.orelse = self._marked(node.orelse) if node.orelse else []
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            node.body = self._marked(node.body)
        return node

    def _marked(self, body: list[ast.stmt], *, after: bool = False) -> list[ast.stmt]:
        place = ast.Subscript(ast.Name(MARKS, ast.Load()), ast.Constant(self.count), ast.Store())
        mark = ast.copy_location(ast.Assign([place], ast.Constant(1)), body[0])
        self.count += 1
        return [*body[:after], ast.fix_missing_locations(mark), *body[after:]]


class _Loader(SourceFileLoader):
    """Loads a module of the kit with marks in its blocks."""

    def source_to_code(self, data: bytes, path: str, **_: object) -> CodeType:  # type: ignore[override]
        tree = _Marker().visit(ast.parse(data))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        # What is loaded may be bytecode, which does not say how many blocks it marks: a line begins two at most.
        lines = self.get_data(self.path).count(b"\n") + 1
        file = self.path.rpartition(f"{PACKAGE}/")[2]
        module.__dict__[MARKS] = _marks[file] = bytearray(2 * lines)
        super().exec_module(module)


class _Finder:
    """Finds the modules of the kit for `_Loader`."""

    @staticmethod
    def find_spec(name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Mark what runs in this process; what a test has started is written when it ends."""
    sys.meta_path.insert(0, _Finder)
    atexit.register(_write_at_end)
    os.register_at_fork(after_in_child=_begin_child)
    leave = os._exit

    def write_and_leave(status: int) -> NoReturn:
        _write_at_end()
        leave(status)

    os._exit = write_and_leave


def _begin_child() -> None:
    global _is_worker
    _is_worker = False
    _clear()


def _clear() -> None:
    for marks in _marks.values():
        marks[:] = bytes(len(marks))


def _write(name: str, **entry: object) -> None:
    path = Path(os.environ[OUT], f"{os.getpid()}.jsonl")
    ran = {file: [i for i, mark in enumerate(marks) if mark] for file, marks in _marks.items()}
    entry |= {"test": name, "ran": {file: blocks for file, blocks in ran.items() if blocks}}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _write_at_end() -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test and not _is_worker:
        _write(test.rpartition(" ")[0])


def _seconds() -> tuple[float, float]:
    times = os.times()
    return sum(times[:4]), times.elapsed


def hooks() -> dict[str, object]:
    """Return the hooks of pytest that measure each phase of a test."""
    # Processes that a test starts need none of them, nor pytest.
    import pytest

    global _is_worker
    _is_worker = True
    # What was moved to the night is measured too.
    vars(import_module("nightly"))["mark_what_was_moved"] = list

    def measured(phase: str, item: "pytest.Item") -> Generator[None, None, None]:
        _clear()
        before = _seconds()
        yield
        busy_s, wall_s = (now - then for now, then in zip(_seconds(), before, strict=True))
        _write(item.nodeid, phase=phase, seconds=max(busy_s, WAITING * wall_s))

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
        yield from measured("setup", item)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
        yield from measured("call", item)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
        yield from measured("teardown", item)

    found = (pytest_runtest_setup, pytest_runtest_call, pytest_runtest_teardown)
    return {hook.__name__: hook for hook in found}


def measure(out: Path, arguments: list[str]) -> int:
    """Run the tests with marks; return the exit code of pytest."""
    hook = out / "hook"
    hook.mkdir(parents=True, exist_ok=True)
    (hook / "sitecustomize.py").write_text("import at_night\n\nat_night.install()\n")
    (hook / "measuring.py").write_text("import at_night\n\nglobals().update(at_night.hooks())\n")
    for old in out.glob("*.jsonl"):
        old.unlink()
    paths = os.pathsep.join(map(str, (hook, ROOT / "scripts", ROOT / "tests")))
    settings = {
        "PYTHONPATH": paths,
        # Marked bytecode lies apart from that of the kit as it is.
        "PYTHONPYCACHEPREFIX": str(out.resolve() / "bytecode"),
        OUT: str(out.resolve()),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-p", "measuring", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=False).returncode


@dataclass
class Measured:
    """What was measured of a test."""

    call_s: float = 0.0
    ran: set[Block] = field(default_factory=set)


def read(out: Path) -> dict[str, Measured]:
    """Return the measurements by test."""
    tests: dict[str, Measured] = defaultdict(Measured)
    for path in out.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            test = tests[entry["test"]]
            test.call_s += entry["seconds"] if entry.get("phase") == "call" else 0.0
            test.ran |= {(file, block) for file, blocks in entry["ran"].items() for block in blocks}
    return tests


def choose(tests: dict[str, Measured]) -> set[str]:
    """Return the tests that run at night, the dearest first."""
    left = Counter(block for test in tests.values() for block in test.ran)
    cases = Counter(_function(name) for name in tests)
    chosen = set()
    for name, test in sorted(tests.items(), key=lambda item: (-item[1].call_s, item[0])):
        alone = sum(left[block] == 1 for block in test.ran)
        is_kept = test.call_s <= CHEAP_S or (alone and test.call_s / alone < PRICE_S)
        is_last = cases[_function(name)] == 1 and test.call_s < DEAR_S
        # A class of tests is one state machine of hypothesis.
        if is_kept or is_last or name.startswith(KEPT) or "::Test" in name:
            continue
        left.subtract(test.ran)
        cases[_function(name)] -= 1
        chosen.add(name)
    return chosen | {name for name in tests if name.startswith(MOVED)}


def lines_of(chosen: set[str], tests: Iterable[str]) -> Iterator[str]:
    """Yield the tables of the list, the shorter of what moves and what stays for each function."""
    by_function: dict[str, set[str]] = defaultdict(set)
    for name in tests:
        by_function[_function(name)].add(name)
    file = ""
    for function, names in sorted(by_function.items()):
        moved = names & chosen
        if not moved:
            continue
        path, _, test = function.removeprefix("tests/").partition("::")
        if path != file:
            yield f'\n["{path}"]'
            file = path
        stay = names - moved
        # Cases of native kernels are those that a processor has.
        by_day = len(stay) < len(moved) and not path.startswith("models/test_native")
        listed = sorted(
            name.partition("[")[2].removesuffix("]") for name in (stay if by_day else moved)
        )
        key = f"{test}.day" if stay and by_day else test
        text = '"all"' if not stay else json.dumps(listed, ensure_ascii=False)
        if len(f"{key} = {text}") <= 110:
            yield f"{key} = {text}"
        else:
            yield f"{key} = ["
            yield from (f"  {json.dumps(case, ensure_ascii=False)}," for case in listed)
            yield "]"


def _function(name: str) -> str:
    return name.partition("[")[0]


def main(arguments: list[str]) -> int:
    """Measure or choose."""
    if len(arguments) < 2 or arguments[0] not in ("measure", "choose"):
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(arguments[1])
    if arguments[0] == "measure":
        return measure(out, arguments[2:])
    tests = read(out)
    if not tests:
        print(
            f"{out} holds no measurements: python scripts/at_night.py measure {out}",
            file=sys.stderr,
        )
        return 2
    chosen = choose(tests)
    first_lines = LIST.read_text(encoding="utf-8").partition("\n\n")[0]
    LIST.write_text("\n".join([first_lines, *lines_of(chosen, tests)]) + "\n", encoding="utf-8")
    saved_s = sum(tests[name].call_s for name in chosen)
    print(
        f"{len(chosen)} of {len(tests)} tests run at night, and {saved_s:.0f} s of processor time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
