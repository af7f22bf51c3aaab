"""Processes that crash inside a test: the run tells of each such test, runs all others, and ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PATIENCE_S, environment

pytestmark = pytest.mark.slow

SHARED = """
def pytest_xdist_make_scheduler(config, log):
    from by_file import ByFile
    return ByFile(config, log)
"""
PASSING = "\ndef test_passing_{0}(): pass\n"
CRASHING = "\ndef test_crashing(): import os; os.abort()\n"
FILES = {
    "test_crash_at_first": CRASHING + PASSING.format(0) + PASSING.format(1),
    "test_crash_at_last": PASSING.format(0) + PASSING.format(1) + PASSING.format(2) + CRASHING,
    "test_crash_alone": CRASHING,
    "test_method_contract": PASSING.format(0)
    + CRASHING
    + PASSING.format(1),  # handed out test by test
    "test_single": PASSING.format(0),
    "test_other": PASSING.format(0) + PASSING.format(1),
}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_test_that_crashes_its_process_fails_alone(tmp_path: Path, processes: int) -> None:
    for name, text in {"conftest": SHARED, **FILES}.items():
        tmp_path.joinpath(f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-v", "-n", str(processes), "-p", "no:faulthandler"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = environment(PYTHONPATH=path)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    crashing = {f"{name}.py::test_crashing" for name, text in FILES.items() if CRASHING in text}
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert {
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")
    } == crashing
    for test in crashing:
        assert f"crashed while running '{test}'" in done.stdout
    passing = sum(text.count("def test_passing") for text in FILES.values())
    assert f" {len(crashing)} failed, {passing} passed" in done.stdout
