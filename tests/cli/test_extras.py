"""Packages of extras: commands that do not need them run without, the others name the extra in one line."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import PATIENCE_S, TinyPair, environment
from nightly import nightly_except

from specbench_kit.core.extras import EXTRA_OF_MODULE, PURPOSES, missing_module_line

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from specbench_kit.cli.main import main
main()
"""
MODULES = [module for module, extra in EXTRA_OF_MODULE.items() if extra in ("live", "trees")]


SERVE = "serve --listen 127.0.0.1:0"


def skit_without(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a command as if no package of an extra were installed."""
    command = [sys.executable, "-c", BLOCKED.format(blocked=set(MODULES)), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False
    )


@pytest.mark.nightly  # a process of its own; the other command loads the same modules
def test_a_bench_needs_no_extra(tiny: TinyPair, tmp_path: Path) -> None:
    options = [
        "--dataset",
        "gsm8k",
        "--limit",
        "1",
        "--max-new-tokens",
        "4",
        "--out",
        tmp_path,
        *tiny.options,
    ]
    done = skit_without("bench", "--method", "fixed-k", *options)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*/requests.jsonl"))


@pytest.mark.parametrize(
    "command",
    nightly_except(
        [SERVE],
        [
            SERVE,
            "bench --method fixed-k --server 127.0.0.1:1 --limit 1",
            "bench --method fixed-k --server vllm://127.0.0.1:1 --limit 1",
        ],
    ),
)
def test_a_command_that_needs_the_extra_live_names_it(command: str, tmp_path: Path) -> None:
    done = skit_without(*command.split(), *(("--out", tmp_path) if command != SERVE else ()))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()[-1:]
    assert line.startswith("error: ")
    assert "pip install 'specbench-kit[live]'" in line
    assert "Traceback" not in done.stderr


def test_every_extra_is_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(PURPOSES) <= set(project["optional-dependencies"])
    assert set(EXTRA_OF_MODULE.values()) == set(PURPOSES)
    assert all(find_spec(module) for module in MODULES)
    assert missing_module_line("torch") is None
    assert "specbench-kit[trees]" in str(missing_module_line("xgboost.core"))
