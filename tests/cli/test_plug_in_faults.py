"""A method of another package that fails: its author gets one line, and the way there if it is asked for."""

from pathlib import Path

import pytest
from command_line import TinyPair, environment, read_object, read_rows, skit, write_rows
from plug_ins import install

METHOD = '''
from dataclasses import dataclass

from specbench_kit.methods.base import Method, Policy


@dataclass(frozen=True)
class Slip(Method):
    """Drafts a token, or would."""

    source = "yours"

    def policy(self):
        return SlipPolicy()


class SlipPolicy(Policy):
    def draft(self, drafter):
        drafter.extend(drafter.draughts)
'''
FAILING_LINE = 1 + METHOD.splitlines().index("        drafter.extend(drafter.draughts)")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed package that brings a method."""
    install(tmp_path, "slip_package", METHOD, "specbench_kit.methods", ["slip = slip_package:Slip"])
    return tmp_path


def test_the_line_of_an_authors_typo_is_named_and_the_way_there_on_demand(package: Path) -> None:
    command = (
        "bench",
        "--replay",
        "qwen2.5-coder",
        "--method",
        "slip",
        "--limit",
        1,
        "--out",
        package / "out",
    )
    env = environment(PYTHONPATH=str(package))
    done = skit(*command, env=env)
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith(
        f"error: the method 'slip', which is no part of the kit, fails in SlipPolicy.draft ({package}/slip_package.py, "
        f"line {FAILING_LINE}): AttributeError: "
    )
    assert line.endswith("has no attribute 'draughts'; --traceback shows the way there")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    shown = skit(*command, "--traceback", env=env)
    assert shown.returncode == 2
    assert "Traceback (most recent call last)" in shown.stderr
    assert shown.stderr.strip().splitlines()[-1].endswith("has no attribute 'draughts'")


@pytest.mark.slow
def test_a_policy_that_fails_in_its_warm_up_ends_no_other_method(
    package: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    rows = [{"id": name, "prompt": f"Who is {name}?"} for name in "ab"]
    prompts = write_rows(tmp_path / "ask.jsonl", *rows)
    options = (
        "--dataset",
        prompts,
        *tiny.options,
        "--max-new-tokens",
        4,
        "--out",
        tmp_path / "out",
    )
    env = environment(PYTHONPATH=str(package))
    done = skit("bench", "--method", "slip", "--method", "fixed-k:k=2", *options, env=env)
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    place = f"SlipPolicy.draft ({package}/slip_package.py, line {FAILING_LINE})"
    assert line.startswith(
        f"error: the method 'slip', which is no part of the kit, fails in {place} during warm-up: "
    )
    assert line.endswith("; the other methods went on; --traceback shows the way there")
    assert "fixed-k" in done.stdout
    (run,) = (tmp_path / "out").glob("*-fixed-k-*")
    assert len(read_rows(run / "requests.jsonl")) == 2
    assert read_object(run / "run.json")["left_out"].keys() == {"slip"}
    assert f"{FAILING_LINE}) during warm-up" in (run / "report.md").read_text()

    alone = skit("bench", "--method", "slip", *options, "--traceback", env=env)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "Traceback (most recent call last)" in alone.stderr
    assert alone.stderr.strip().splitlines()[-1].endswith("has no attribute 'draughts'")


def test_a_policy_that_fails_in_a_replay_ends_no_other_method(package: Path) -> None:
    methods = ("--method", "slip", "--method", "fixed-k")
    command = (
        "bench",
        "--replay",
        "qwen2.5-coder",
        *methods,
        "--limit",
        1,
        "--out",
        package / "out",
    )
    done = skit(*command, env=environment(PYTHONPATH=str(package)))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: slip: left out, as said above")
    assert f"line {FAILING_LINE}" in done.stdout
    (run,) = (package / "out").iterdir()
    assert "fixed-k" in run.name


COMMANDS = """
from specbench_kit.cli.commands import CommandEntry


def odd():
    raise AttributeError("no such thing")


COMMAND = CommandEntry("odd_package:odd", "Results of others", "Do something odd.")
"""


def test_a_command_of_another_package_that_cannot_be_used_ends_no_other_one(tmp_path: Path) -> None:
    entries = ("odd = odd_package:odd", "bench = odd_package:COMMAND", "own = odd_package:COMMAND")
    install(tmp_path, "odd_package", COMMANDS, "specbench_kit.commands", entries)
    env = environment(PYTHONPATH=str(tmp_path))
    shown = skit("--help", env=env)
    assert shown.returncode == 0
    assert "Benchmark methods on a dataset" in shown.stdout
    assert shown.stdout.rstrip().endswith(
        "Results of others:\n  own               Do something odd."
    )
    taken, wrong = sorted(shown.stderr.splitlines())
    assert taken.endswith("the command 'bench' of odd_package has a name that is taken: rename it")
    assert "the installed command 'odd' (odd_package:odd) is no CommandEntry: mend it" in wrong
    refused = skit("odd", env=env)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("error: the installed command 'odd'")
    failed = skit("own", env=env).stderr.splitlines()[-1]
    assert failed.startswith(
        "error: the command 'own', which is no part of the kit, fails in odd ("
    )
