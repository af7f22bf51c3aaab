"""A method of another package that fails: its author gets one line, and the way there if it is asked for."""

from pathlib import Path

import pytest
from command_line import environment, skit
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
    command = ("bench", "--replay", "qwen2.5-coder", "--method", "slip", "--limit", 1, "--out", package / "out")
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
