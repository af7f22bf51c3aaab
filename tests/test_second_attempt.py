"""`make test` with small suites that fail in every way: what fails once passes as FLAKY, and nothing else does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PATIENCE_S, environment

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

FLAKY = """
from pathlib import Path

def test_flaky():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen, "what failed at first"

def test_good():
    pass
"""
FAILING = "def test_failing(): assert False"
CRASHING = "import os\n\ndef test_crashing(): os._exit(0)"
GONE = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("name", ["new" if Path("seen").exists() else "old"])
def test_gone(name): assert name == "new"
"""
UNCOLLECTED = "import no_module_of_this_name"
HANGING = "import time\n\ndef test_hanging(): time.sleep(1000)"


def make_test(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile's `test` in a folder with these files of tests, as if everything were installed there."""
    suite = {"conftest": 'pytest_plugins = ["second_attempt"]'} | {
        f"test_{name}": files[name] for name in files
    }
    for name, text in suite.items():
        folder.joinpath(f"{name}.py").write_text(text)
    folder.joinpath("pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '-q'\ntimeout = 3\n"
    )
    for name in ("constraints.txt", "installed"):
        folder.joinpath(name).touch()
    settings = [
        "INSTALLED=installed",
        f"BIN={Path(sys.executable).parent}",
        f"PYTEST={sys.executable} -m pytest -n 1",
    ]
    command = ["make", "-f", str(ROOT / "Makefile"), "test", *settings]
    env = environment(
        PYTHONPATH=os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    )
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.nightly  # the test below runs the same two attempts
def test_what_passes_alone_is_told_with_its_first_traceback_and_fails_nothing(
    tmp_path: Path,
) -> None:
    done = make_test(tmp_path, flaky=FLAKY)
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, flaky_part = done.stdout.partition("FLAKY: failed at first, passed alone")
    assert "test_flaky.py::test_flaky" in flaky_part
    assert "AssertionError: what failed at first" in flaky_part
    assert flaky_part.splitlines()[-1].startswith("1 passed in ")


def test_what_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = make_test(
        tmp_path, flaky=FLAKY, failing=FAILING, crashing=CRASHING, gone=GONE, hanging=HANGING
    )
    assert done.returncode != 0
    _, _, second = done.stdout.partition("second attempt: what failed, alone\n")
    failed = {line.split()[1] for line in second.splitlines() if line.startswith("FAILED ")}
    assert failed == {
        "test_crashing.py::test_crashing",
        "test_failing.py::test_failing",
        "test_gone.py::test_gone[old]",
        "test_hanging.py::test_hanging",
    }
    assert "test_flaky.py::test_flaky" in second.partition("FLAKY")[2]


def test_a_file_that_cannot_be_collected_is_not_tried_again(tmp_path: Path) -> None:
    done = make_test(tmp_path, uncollected=UNCOLLECTED, flaky=FLAKY)
    assert done.returncode != 0
    assert "ERROR test_uncollected.py" in done.stdout
    assert "second attempt" not in done.stdout
