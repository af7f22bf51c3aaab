"""A method that another distribution brings, found through a real entry point."""

import json
import os
from pathlib import Path

import plug_ins
import pytest
from command_line import environment, error_line, skit

from specbench_kit.methods.spec import describe_method, parse_method

MODULE = '''
"""Draft in pairs."""

from dataclasses import dataclass

from specbench_kit.methods.base import Method, Policy


@dataclass(frozen=True)
class Pairs(Method):
    """Draft two tokens, twice."""

    times: int = 2
    source = "elsewhere"

    def policy(self) -> Policy:
        return _PairsPolicy(self.times)


@dataclass
class _PairsPolicy(Policy):
    times: int

    def draft(self, drafter):
        for _ in range(2 * self.times):
            drafter.extend(drafter.drafts)
'''


def install(folder: Path, entry: str) -> dict[str, str]:
    """A distribution as an installer leaves it; returns the environment in which Python sees it."""
    plug_ins.install(folder, "elsewhere_pairs", MODULE, "specbench_kit.methods", [entry])
    before = os.environ.get("PYTHONPATH")
    return environment(PYTHONPATH=os.pathsep.join(filter(None, (str(folder), before))))


def test_it_is_listed_beside_the_others(tmp_path: Path) -> None:
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    listed = json.loads(skit("list", "methods", "--json", env=env).stdout)
    methods = {row["name"]: row for row in listed}
    assert {"autoregressive", "fixed-k", "pairs", "threshold"} <= set(methods)
    assert methods["pairs"]["summary"] == "Draft two tokens, twice."
    assert (methods["pairs"]["source"], methods["pairs"]["options"]) == (
        "elsewhere",
        {"times": 2, "drafter": "model"},
    )
    assert "pairs" in skit("list", "methods", env=env).stdout


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("pairs = elsewhere_trios:Pairs", "No module named 'elsewhere_trios'"),
        ("pairs = elsewhere_pairs:Trios", "module 'elsewhere_pairs' has no attribute 'Trios'"),
    ],
)
def test_one_that_is_gone_is_left_out_with_a_line(tmp_path: Path, entry: str, reason: str) -> None:
    """The entry point stays behind where a folder that was installed with --editable is removed."""
    env = install(tmp_path, entry)
    listed = skit("list", "methods", "--json", env=env)
    names = {row["name"] for row in json.loads(listed.stdout)}
    assert "threshold" in names
    assert "pairs" not in names
    line = (
        f"the installed method 'pairs' cannot be imported: {reason}: install its package again, or remove it with pip "
        "uninstall elsewhere-pairs"
    )
    assert listed.stderr == f"LEFT OUT: {line}\n"
    assert error_line(skit("bench", "--method", "pairs", env=env)).endswith(line)


@pytest.mark.parametrize(
    ("right", "wrong", "reason", "line"),
    [
        ("def draft(self, drafter):", "def draft(self, drafter)", "SyntaxError: expected ':'", 24),
        (
            "    times: int = 2\n",
            "    times: int = two\n",
            "NameError: name 'two' is not defined",
            13,
        ),
        (
            "import Method, Policy",
            "import Methods, Policy",
            "ImportError: cannot import name 'Methods' from",
            6,
        ),
    ],
)
def test_one_whose_code_is_wrong_is_left_out_with_its_line(
    tmp_path: Path, right: str, wrong: str, reason: str, line: int
) -> None:
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    file = tmp_path / "elsewhere_pairs.py"
    file.write_text(file.read_text().replace(right, wrong))
    listed = skit("list", "methods", "--json", env=env)
    assert "threshold" in {row["name"] for row in json.loads(listed.stdout)}
    said = error_line(skit("bench", "--method", "pairs", env=env))
    assert f"the installed method 'pairs' cannot be imported: {reason}" in said
    assert (
        f"({file}, line {line}): mend it, or remove it with pip uninstall elsewhere-pairs" in said
    )


DATASET = '''
"""Proverbs."""

from specbench_kit.datasets.base import Dataset, Prompt


class Proverbs(Dataset):
    local = "proverbs.jsonl"

    def prompt(self, row, index):
        return Prompt(str(index), "proverbs", (row["text"],))
'''


def test_one_that_lacks_what_its_contract_asks_for_is_left_out(tmp_path: Path) -> None:
    """A method without its policy, and a dataset without its texts for the list, which all others would die with."""
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    file = tmp_path / "elsewhere_pairs.py"
    file.write_text(file.read_text().replace("    def policy(self)", "    def polizy(self)"))
    plug_ins.install(
        tmp_path,
        "elsewhere_proverbs",
        DATASET,
        "specbench_kit.datasets",
        ["proverbs = elsewhere_proverbs:Proverbs"],
    )
    for kind, name, others in (
        ("methods", "pairs", "threshold"),
        ("datasets", "proverbs", "gsm8k"),
    ):
        names = {row["name"] for row in json.loads(skit("list", kind, "--json", env=env).stdout)}
        assert others in names
        assert name not in names
    said = error_line(skit("bench", "--method", "pairs", env=env))
    assert (
        "the installed method 'pairs' (elsewhere_pairs:Pairs) has no policy(): mend it, or remove it with pip"
        in said
    )
    said = error_line(skit("bench", "--method", "fixed-k", "--dataset", "proverbs", env=env))
    assert "the installed dataset 'proverbs' (elsewhere_proverbs:Proverbs) has no " in said
    assert "summary" in said


def test_two_of_one_name_are_one_line(tmp_path: Path) -> None:
    env = install(tmp_path, "fixed-k = elsewhere_pairs:Pairs")
    assert (
        error_line(skit("list", "methods", env=env))
        == "two methods are called 'fixed-k': rename one of them"
    )


def test_a_run_says_of_which_source_its_method_was(tmp_path: Path) -> None:
    """An edit between two runs is told by `skit rerun`."""
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    command = (
        "bench",
        "--method",
        "pairs",
        "--replay",
        "qwen2.5-coder",
        "--deployment",
        "wan",
        "--limit",
        4,
    )
    assert skit(*command, "--out", tmp_path / "out", env=env).returncode == 0
    (folder,) = (tmp_path / "out").iterdir()
    described = json.loads((folder / "run.json").read_text())
    assert len(described["method_source"]) == 64
    again = skit("rerun", folder, "--out", tmp_path / "again", env=env)
    assert again.returncode == 0
    assert "Repeated: 4 of 4 outputs are equal" in " ".join(again.stdout.split())
    file = tmp_path / "elsewhere_pairs.py"
    file.write_text(file.read_text().replace("range(2 * self.times)", "range(3 * self.times)"))
    changed = skit("rerun", folder, "--out", tmp_path / "again", env=env)
    assert changed.returncode == 1
    assert "NOT THE SAME POLICY: its code has changed since the first run; 4 of 4" in " ".join(
        changed.stdout.split()
    )


def test_the_kits_own_methods_are_told_by_version_and_commit() -> None:
    assert "method_source" not in describe_method("fixed-k", parse_method("fixed-k"))


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "    times: int = 2\n",
            "    times: int = 2\n    draft_limt = 'times'\n",
            "the installed method 'pairs' (elsewhere_pairs:Pairs) has 'draft_limt', which nothing reads (did you mean "
            "'draft_limit'?): mend it, or remove it with pip uninstall elsewhere-pairs",
        ),
        (
            "def draft(",
            "def drafft(",
            "pairs: its policy _PairsPolicy has 'drafft', which nothing reads (did you mean 'draft'?)",
        ),
        (
            "def draft(",
            "def grow(",
            "pairs: its policy _PairsPolicy has no draft(self, drafter), so that it never drafts: add it, or set "
            "uses_drafter = False in a method that decodes without drafts",
        ),
    ],
)
def test_one_that_misspells_a_name_or_never_drafts_is_refused_with_what_is_meant(
    tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    file = tmp_path / "elsewhere_pairs.py"
    file.write_text(file.read_text().replace(right, wrong))
    command = (
        "bench",
        "--replay",
        "qwen2.5-coder",
        "--method",
        "pairs",
        "--method",
        "fixed-k",
        "--limit",
        1,
    )
    assert error_line(skit(*command, "--out", tmp_path / "out", env=env)).endswith(said)
