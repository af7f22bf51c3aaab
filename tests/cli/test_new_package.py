"""`skit new method` and `skit new command`: from a template to an installed part of the kit."""

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from command_line import PATIENCE_S, SKIT, environment, error_line, skit, skit_here, write_rows
from plug_ins import of_the_kit

from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.tuning.run import candidates

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The template of a method, where no package of that name is installed."""
    monkeypatch.setattr(methods, "_entries", of_the_kit(methods))
    monkeypatch.delitem(sys.modules, "skit_my_rule", raising=False)
    done = skit_here("new", "method", "my-rule", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "skit-my-rule"
    assert f"pip install --editable '{folder}[test]'" in done.stdout.splitlines()[-3]
    return folder


def test_the_template_passes_its_own_test(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["test"] == ["pytest"]
    module, _, kind = project["entry-points"]["specbench_kit.methods"]["my-rule"].partition(":")
    assert (
        methods.register("my-rule")(getattr(import_module(module), kind))
        is methods.all()["my-rule"]
    )
    assert methods.get("my-rule").group in GROUPS[:-1]
    assert len(candidates("my-rule", 16, seed=0)) >= 6
    assert parse_method("my-rule:longest=3").longest_draft == 3
    own = import_module(f"test_{module}")
    own.test_it_loses_nothing_with_any_drafter_and_at_the_end_of_the_context()
    own.test_skit_my_rule(tmp_path)
    own.test_a_longest_draft_of_no_token_is_refused()


def test_names_that_cannot_be_are_refused(package: Path) -> None:
    out = package.parent
    assert error_line(skit_here("new", "method", "my-rule", "--out", out)).endswith(
        "choose another --out"
    )
    assert error_line(skit_here("new", "method", "wisp", "--out", out)).startswith(
        "a method 'wisp' exists already"
    )
    assert error_line(skit_here("new", "method", "My_Rule")).startswith(
        "'My_Rule' cannot be a method's name"
    )
    assert error_line(skit_here("new", "command", "bench")).startswith(
        "a command 'bench' exists already"
    )
    assert (
        error_line(skit_here("new", "dataset", "x"))
        == "kind must be method or command or metric or card, not 'dataset'"
    )


def test_the_template_of_a_command_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert skit_here("new", "command", "fastest", "--out", tmp_path).returncode == 0
    monkeypatch.syspath_prepend(str(tmp_path / "skit-fastest"))
    own = import_module("test_skit_fastest")
    own.test_skit_fastest(tmp_path, capsys)
    own.test_no_method_at_all_is_refused()


PROVERBS = """
from specbench_kit.datasets.base import Dataset, Prompt


class Proverbs(Dataset):
    summary = "proverbs without their last word"
    paper = "who made them"
    local = "proverbs.jsonl"
    sample = "chat"

    def prompt(self, row, index):
        return Prompt(f"proverbs-{index}", "proverbs", (row["begin"],))
"""


PAGE_OF_COMMANDS = """
import runpy, sys, types

for name in ("mkdocs", "mkdocs.structure", "mkdocs.structure.files"):  # which only builds the site
    sys.modules[name] = types.SimpleNamespace(File=None, Files=None)
print(runpy.run_path("scripts/docs_pages.py")["_commands"]())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a package with a command, a method and a dataset."""
    source = tmp_path_factory.mktemp("source")
    for kind, name in (("command", "fastest"), ("method", "my-rule"), ("metric", "whole-drafts")):
        assert skit_here("new", kind, name, "--out", source).returncode == 0
    package = source / "skit-fastest"
    (package / "skit_proverbs.py").write_text(PROVERBS)
    project = (package / "pyproject.toml").read_text()
    points = (
        '[project.entry-points."specbench_kit.datasets"]\nproverbs = "skit_proverbs:Proverbs"\n'
    )
    for module in ("skit_my_rule", "skit_whole_drafts"):
        other = source / module.replace("_", "-")
        (other / f"{module}.py").rename(package / f"{module}.py")
        own = (other / "pyproject.toml").read_text().partition("[project.entry-points")[2]
        points += f"[project.entry-points{own.partition('[tool')[0]}"
    project = project.replace("[tool.setuptools]", f"{points}\n[tool.setuptools]")
    modules = '["skit_fastest", "skit_my_rule", "skit_proverbs", "skit_whole_drafts"]'
    (package / "pyproject.toml").write_text(project.replace('["skit_fastest"]', modules))
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
    quiet = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder)
    subprocess.run([*pip, *map(str, quiet), str(package)], check=True, timeout=PATIENCE_S)
    return folder


@pytest.mark.slow
def test_a_package_of_another_author_is_everywhere_without_an_edit_here(
    installed: Path, tmp_path: Path
) -> None:
    env = environment(PYTHONPATH=str(installed))

    def shown(*arguments: object) -> str:
        done = skit(*arguments, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "  fastest  " in shown("--help").partition("Results:")[2].partition("\n\n")[0]
    for help_text in (shown("fastest", "--help"), shown("help", "fastest")):
        assert "skit fastest results" in help_text
        assert "--most <integer>" in help_text
    parts = {
        "commands": "fastest",
        "methods": "my-rule",
        "datasets": "proverbs",
        "metrics": "whole-drafts",
    }
    for kind, name in parts.items():
        assert name in {entry["name"] for entry in json.loads(shown("list", kind, "--json"))}
    completion = {"_SKIT_COMPLETE": "complete_bash", "COMP_WORDS": "skit fas", "COMP_CWORD": "1"}
    offered = subprocess.run(
        [SKIT], env=env | completion, capture_output=True, text=True, check=True
    )
    assert offered.stdout.split() == ["fastest"]
    found = {row["name"]: row["found"] for row in json.loads(shown("doctor", "--json"))}
    for kind, name in parts.items():
        assert found[kind].endswith(f"of other packages {name}")
    docs = subprocess.run(
        [sys.executable, "-c", PAGE_OF_COMMANDS],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "## skit fastest" in docs.stdout
    write_rows(tmp_path / "proverbs.jsonl", {"begin": "A stitch in"}, {"begin": "All that"})
    prompts = ("--dataset", "proverbs", "--data-dir", tmp_path, "--max-new-tokens", 6)
    shown("bench", "--method", "my-rule", "--target", "bundled", *prompts, "--out", "runs")
    (report,) = (tmp_path / "runs").rglob("report.md")
    page = report.read_text()
    assert "my-rule" in page
    assert "proverbs" in page
    assert "| whole-drafts |" in page
    assert "drafts that the target accepted to their end / drafts" in page
    summary = json.loads((report.parent / "summary.json").read_text())
    assert 0 <= summary["overall"]["added"]["whole-drafts"] <= 1
    fastest = json.loads(shown("fastest", "runs", "--most", 2, "--json"))
    assert sum(method.startswith("my-rule") for method in fastest) == 1
    refused = skit("fastest", "runs", "--most", 0, env=env, cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "error: --most must be at least 1, not 0\n")
