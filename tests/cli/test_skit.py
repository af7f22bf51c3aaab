"""`skit` itself, without a command."""

import subprocess
import sys

import pytest
from command_line import skit_here

import specbench_kit


def test_alone_it_shows_a_short_guide_of_commands_that_exist() -> None:
    done = skit_here()
    assert done.returncode == 0
    examples = [line.strip() for line in done.stdout.splitlines() if line.startswith("  skit ")]
    assert len(examples) >= 6
    listed = skit_here("--help").stdout
    for example in examples:
        assert f" {example.split()[1].rstrip(',')} " in listed


@pytest.mark.parametrize("arguments", [("-h",), ("bench", "-h"), ("list", "-h")])
def test_help_has_a_short_name(arguments: tuple[str, ...]) -> None:
    assert "Usage:" in skit_here(*arguments).stdout


def test_python_runs_it_as_a_module() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "specbench_kit", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"specbench-kit {specbench_kit.__version__}\n"


def test_it_knows_its_version() -> None:
    assert skit_here("--version").stdout == f"specbench-kit {specbench_kit.__version__}\n"
