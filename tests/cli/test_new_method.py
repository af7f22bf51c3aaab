"""`skit new method`: from a template to a comparison."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from plug_ins import of_the_kit

from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.tuning.run import candidates


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
    assert (
        error_line(skit_here("new", "dataset", "x")) == "kind must be method or card, not 'dataset'"
    )
