"""What CONTRIBUTING.md says of a new dataset and a new metric, done in a copy of the tree as it stands, and tested."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import FENCED, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PARTS = (
    "specbench_kit",
    "tests",
    "docs",
    "benchmarks",
    "scripts",
    "CONTRIBUTING.md",
    "README.md",
    "pyproject.toml",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree to add to."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def in_the_tree(tree: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in the copy, whose package comes before the one that is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    surroundings = kept | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )


def failures(tree: Path, *tests: str) -> list[str]:
    """Return the names of the tests that fail in the copy; at least some must pass."""
    options = ("-n", "0", "-p", "no:cacheprovider", "-rf", "--no-header")
    done = in_the_tree(tree, "-m", "pytest", *options, *tests)
    assert re.search(r"\d+ passed", done.stdout), done.stdout + done.stderr
    return re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)


def test_the_dataset_of_the_page_is_one_file_and_every_test_of_datasets_passes(tree: Path) -> None:
    (path,) = re.findall(r"A dataset, for example, is the file `([^`]+)`, and nothing else:", PAGE)
    (example,) = (match[3] for match in FENCED.finditer(PAGE) if match[2] == "toml")
    (tree / path).write_text(example, encoding="utf-8")
    listed = in_the_tree(tree, "-m", "specbench_kit", "list", "datasets")
    assert "riddles with short answers" in " ".join(listed.stdout.split()), listed.stderr
    assert failures(tree, "tests/datasets") == []


def test_the_template_of_a_pull_request_asks_for_what_the_page_says() -> None:
    template = (ROOT / ".github/pull_request_template.md").read_text(encoding="utf-8")
    asked = re.findall(r"^- \[ \] (.+)$", template, re.MULTILINE)
    section = PAGE.partition("\n## A pull request\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- (.+)$", section, re.MULTILINE) == asked
    assert len(asked) >= 5


METRIC = """
    rounds_per_token: Annotated[
        float | None,
        Metric("number", "verifications per committed token", ColumnHeading("rounds per token", "R")),
    ] = None
"""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_metric_is_a_field_and_a_line_and_fails_the_two_tests_that_the_page_names(
    tree: Path,
) -> None:
    vocabulary = tree / "specbench_kit/metrics/vocabulary.py"
    fields, end, rest = vocabulary.read_text(encoding="utf-8").rpartition("] = None\n")
    vocabulary.write_text(f"{fields}{end}{METRIC[1:]}{rest}", encoding="utf-8")
    computed = tree / "specbench_kit/metrics/acceptance.py"
    line = '        "rounds": rounds.count,\n'
    text = computed.read_text(encoding="utf-8")
    assert text.count(line) == 1
    added = '        "rounds_per_token": ratio_of_sums(rounds.count, rounds.sum("committed")),\n'
    computed.write_text(text.replace(line, line + added), encoding="utf-8")
    told = PAGE.partition("A metric is one field")[2].partition("\n\n")[0]
    tests, to_fail = re.findall(r"`(tests/[\w/.]+)`", told), re.findall(r"`(test_\w+)`", told)
    assert (len(tests), len(to_fail)) == (3, 2)
    assert sorted(failures(tree, *tests)) == sorted(to_fail)
