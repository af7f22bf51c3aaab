"""The kit from its wheel, not from this tree, where no compiler could build the native executor."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import PATIENCE_S, environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NEEDED = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
NO_COMPILER = {"CC": "no-such-compiler", "CXX": "no-such-compiler"}


def run(*command: object, **settings: object) -> str:
    """Standard output of a command that ends well."""
    options = {"capture_output": True, "text": True, "timeout": PATIENCE_S} | settings
    done = subprocess.run([str(part) for part in command], check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs."""
    source, wheels, folder = (
        tmp_path_factory.mktemp(name) for name in ("source", "wheels", "installed")
    )
    for name in NEEDED:
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "specbench_kit",
        source / "specbench_kit",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    build = (
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        wheels,
        source,
    )
    run(*pip, *build, env=os.environ | NO_COMPILER)
    (wheel,) = wheels.glob("*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def skit(installed: Path, folder: Path, *arguments: object) -> str:
    """Return what the installed command prints, run in `folder`."""
    settings = environment(PYTHONPATH=str(installed), SKIT_HOME=str(folder / "home"))
    return run(sys.executable, installed / "bin" / "skit", *arguments, cwd=folder, env=settings)


@pytest.mark.nightly  # the other test builds and installs a wheel too
def test_without_a_compiler_the_list_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    assert not list(installed.rglob("*.so"))
    listed = " ".join(skit(installed, tmp_path, "list", "executors").split())
    assert "was not compiled: install a C++ compiler" in listed


def test_without_a_compiler_a_bench_from_the_wheel_is_lossless(
    installed: Path, tmp_path: Path
) -> None:
    options = (
        "--method",
        "fixed-k",
        "--dataset",
        "gsm8k",
        "--limit",
        6,
        "--max-new-tokens",
        8,
        "--out",
        "results",
    )
    skit(installed, tmp_path, "bench", *options)
    (report,) = (tmp_path / "results").rglob("report.md")
    text = report.read_text()
    assert "Lossless: 6 of 6 outputs equal autoregressive output token for token" in text
    assert "llama-cpu" in text


def test_every_file_of_data_is_a_part_of_a_wheel() -> None:
    """A table that only a checkout has would be an unknown name to everybody who installs the kit."""
    package = ROOT / "specbench_kit"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-data"]["specbench_kit"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    assert {*package.rglob("*.toml")} <= shipped
