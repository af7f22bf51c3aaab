"""The documentation: every command in it is one, and pages that are made from the code say what the code says."""

import inspect
import re
import runpy
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from documents import FENCED, PAGES, ROOT, blocks

from specbench_kit.api.testing import check_method
from specbench_kit.cli.command import Command
from specbench_kit.cli.group import load_command
from specbench_kit.decoding.drafter import Drafter
from specbench_kit.methods.base import (
    Chains,
    Child,
    LevelPolicy,
    Method,
    Pipeline,
    Policy,
    StopRule,
    methods,
)


def commands() -> list[str]:
    """Return the commands in blocks, most of which only `make docs-test` runs, and in sentences with an option."""
    lines = [
        line
        for code_block in (*blocks("bash"), *blocks("sh"))
        for line in code_block.text.replace("\\\n", " ").splitlines()
    ]
    for page in PAGES:
        lines += re.findall(r"`(skit [^`\n]+ --[^`\s]+ [^`\n]+)`", page.read_text(encoding="utf-8"))
    return sorted(
        {line.partition("  #")[0].removesuffix(" &") for line in lines if line.startswith("skit ")}
    )


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as the command line would, without running it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.toml").write_text("limit = 20\nmethod = ['fixed-k']\n")
    name, *arguments = shlex.split(line)[1:]
    command = load_command(name)
    assert isinstance(command, Command)
    command.given_values(
        command.make_context(name, arguments)
    )  # which also refuses options without effect


def test_every_page_is_in_the_navigation() -> None:
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    written = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    assert written <= set(re.findall(r"'([\w/.]+\.md)'", nav))


def test_percentages_are_written_as_the_tables_of_reports_write_them() -> None:
    pages = [*PAGES, *(ROOT / "results" / "reference").rglob("*.md")]
    spaced = re.compile(r"\d %(?=[\s.,;:)*|]|$)", re.MULTILINE)
    assert [page for page in pages if spaced.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(not find_spec("mkdocs"), reason="the extra docs is not installed here")
def test_every_method_and_metric_has_its_page() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "docs_pages.py"))
    pages = dict(script["pages"]())
    assert {f"methods/{name}.md" for name in methods.all()} <= pages.keys()
    assert (
        "| `acceptance_length` | tokens | committed tokens per verification: committed tokens / rounds"
        in pages["metrics.md"]
    )
    assert "| ours | WISP | SpecEdge | AdaSpec | SpecPipe | vLLM | AIPerf |" in pages["metrics.md"]
    assert "## sweep\n" in pages["python.md"]
    assert "`--strict`" in pages["commands.md"]
    assert (
        "| `--batch-size` | integer | `1` | Number of requests decoded together. |"
        in pages["commands.md"]
    )
    assert (
        "| `adaptive=false` | true or false | `adaptive` refits each request's threshold"
        in pages["methods/threshold.md"]
    )
    without = [
        line
        for name, page in pages.items()
        if name.startswith("methods/")
        for line in page.partition("## Options")[2].splitlines()
        if line.startswith("| `") and line.endswith("|  |")
    ]
    assert without == [], "options without a meaning"
    assert (
        "| `acceptance_length` | number or null | committed tokens per verification"
        in pages["formats.md"]
    )


@pytest.mark.slow
def test_the_examples_of_the_policy_reference_run_and_keep_what_methods_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "_entries", dict(methods.all()))
    text = (ROOT / "scripts" / "policy_reference.md").read_text(encoding="utf-8")
    examples = [match[3] for match in FENCED.finditer(text) if match[2] == "python"]
    assert len(examples) == 3
    for number, example in enumerate(examples):
        assert example.rstrip().splitlines()[-1].startswith("check_method(")
        exec(compile(example, f"example {number}", "exec"), {"__name__": f"example_{number}"})
    assert {"as-far-as-last-time", "two-then-two", "until-unsure"} <= set(methods.all())


def hook_examples(kind: type) -> dict[str, str]:
    """The example in the docstring of each hook of a policy."""
    hooks = [name for name in vars(kind) if not name.startswith("_")]
    docs = {name: inspect.getdoc(inspect.getattr_static(kind, name)) or "" for name in hooks}
    return {
        name: "".join(match[3] for match in FENCED.finditer(f"{doc}\n"))
        for name, doc in docs.items()
    }


class FourTokens(Policy):
    """Drafts four tokens, for the examples of hooks that come after `draft`."""

    def draft(self, drafter: Drafter) -> None:
        for _ in range(4):
            drafter.extend(drafter.drafts)


def with_hooks(kind: type, *hooks: str) -> Any:
    """A policy that has the examples of these hooks."""
    names: dict[str, Any] = {"StopRule": StopRule, "Child": Child}
    examples = hook_examples(kind)
    for hook in hooks:
        exec(compile(examples[hook], hook, "exec"), names)
    policy = type(
        "Example", (FourTokens if kind is Policy else kind,), {hook: names[hook] for hook in hooks}
    )()
    policy.lengths = {}
    return policy


@dataclass(frozen=True)
class HookExample(Method):
    """Runs the examples of some hooks."""

    hooks: tuple[str, ...] = ()
    source = "example"

    @property
    def overlaps(self) -> bool:
        return "overlap" in self.hooks

    @property
    def pipeline(self) -> Pipeline | None:
        return Pipeline(stages=2, width=4) if "next_level" in self.hooks else None

    def policy(self) -> Policy | LevelPolicy:
        made: Policy | LevelPolicy = with_hooks(
            LevelPolicy if self.pipeline else Policy, *self.hooks
        )
        return made


def test_every_hook_of_a_policy_has_an_example() -> None:
    assert [name for name, example in hook_examples(Policy).items() if not example] == []
    rule = with_hooks(Policy, "stop_rule").stop_rule
    marked = rule.stops(
        Chains(np.array([[[0, 0, 0, 0, 0.3], [0, 0, 0, 0, 0.5]]]), np.ones((1, 2), bool))
    )
    assert (rule.most, marked.tolist()) == (8, [[True, False]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "hooks",
    [
        ("choose", "expects"),
        ("draft", "observe", "forget"),
        ("draft", "overlap", "next_root"),
        ("next_level",),
    ],
    ids=lambda hooks: hooks[-1],
)
def test_the_examples_of_hooks_decode_without_loss(
    hooks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "_entries", dict(methods.all()))
    called = set()
    tried = hooks

    @methods.register("hooks")
    @dataclass(frozen=True)
    class Registered(HookExample):
        hooks: tuple[str, ...] = tried

        def policy(self) -> Policy | LevelPolicy:
            policy = super().policy()
            for hook in self.hooks:
                setattr(policy, hook, watched(hook, getattr(policy, hook)))
            return policy

    def watched(hook: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            called.add(hook)
            return function(*arguments)

        return call

    check_method("hooks")
    assert called == set(hooks)


def test_the_policy_reference_is_what_the_docstrings_say() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "policy_page.py"))["page"]()
    current = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert current == page, "run make policy-page"


def test_the_policy_reference_has_what_policies_are_given() -> None:
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    for kind in (
        "Policy",
        "Drafter",
        "Draft",
        "TokenTree",
        "Verdict",
        "StopRule",
        "LevelPolicy",
        "Method",
    ):
        assert f"\n## {kind}\n" in page
    for part in (
        "extend",
        "expand",
        "room",
        "probability",
        "path_probability",
        "choose",
        "observe",
        "awaits_answer",
    ):
        assert re.search(rf"^### {part}\n\n.*\w", page, re.MULTILINE | re.DOTALL), part
    assert "### commit" not in page  # which is the engine's
    assert "## check_method\n" in page
