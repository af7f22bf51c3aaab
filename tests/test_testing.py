"""The checks that the kit offers to packages with methods of their own: right methods pass, wrong ones do not."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import environment
from nightly import nightly_except
from plug_ins import install

from specbench_kit.api.testing import check_method
from specbench_kit.core.errors import SkitError
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method, Policy, methods


@pytest.mark.parametrize("spec", ["threshold", "fixed-k:k=3", "specinfer", "suffix", "eagle"])
def test_methods_of_the_kit_pass(spec: str) -> None:
    check_method(spec)


@dataclass(frozen=True)
class Careless(Method):
    """Reads what it never drafted, where a draft had no room."""

    source = "test"

    def policy(self) -> Policy:
        return CarelessPolicy()


class CarelessPolicy(Policy):
    def draft(self, drafter: Any) -> None:
        drafter.extend(drafter.drafts)
        for draft in drafter.drafts:
            draft.tree.probability(draft.tree.last)


def test_a_policy_that_forgets_the_end_of_the_context_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "_entries", dict(methods.all()) | {"careless": Careless})
    with pytest.raises(SkitError, match="statistics of the root, which was not drafted"):
        check_method("careless")


def test_a_verification_that_keeps_a_wrong_token_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specbench_kit.api.testing._Pair.outputs", outputs_with_a_wrong_token)
    with pytest.raises(
        AssertionError, match="fixed-k:drafter=model, 1 request at a time: greedy outputs differ"
    ):
        check_method("fixed-k")


def outputs_with_a_wrong_token(_: object, method: Method, *__: object) -> dict[str, list[int]]:
    return {"0": [1, 2, 3 if isinstance(method, Autoregressive) else 4]}


PLUGIN = """
from dataclasses import dataclass
from specbench_kit.methods.base import Method
from specbench_kit.methods.fixed_k import FixedK


@dataclass(frozen=True)
class Plugin({base}):
    source = "test"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "counted"),
    nightly_except(
        [("Method", "1 failed, 1 passed")],
        [("FixedK", "2 passed"), ("Method", "1 failed, 1 passed")],
    ),
)
def test_pytest_checks_the_methods_of_other_packages_by_the_name_of_the_module(
    base: str, counted: str, tmp_path: Path
) -> None:
    """A method that keeps its promises passes, and one without a policy fails."""
    tried = "tried_plugin"
    for module, kind in (("right_plugin", "FixedK"), (tried, base)):
        install(
            tmp_path,
            module,
            PLUGIN.format(base=kind),
            "specbench_kit.methods",
            [f"{module} = {module}:Plugin"],
        )
    called = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "specbench_kit.api.testing",
    ]
    path = f"{tmp_path}:{Path(__file__).parents[1]}"
    done = subprocess.run(
        called,
        env=environment() | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert counted in done.stdout, done.stdout
    assert done.returncode == ("failed" in counted)
    if done.returncode:
        assert f"test_method[{tried}]" in done.stdout
