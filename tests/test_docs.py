"""The documentation: every command in it is one, and pages that are made from the code say what the code says."""

import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from documents import FENCED, PAGES, ROOT, blocks

from specbench_kit.cli.command import Command
from specbench_kit.cli.commands import load_command
from specbench_kit.methods.base import methods


def commands() -> list[str]:
    """Return the commands in blocks, most of which only `make docs-test` runs, and in sentences with an option."""
    lines = [
        line
        for code_block in (*blocks("bash"), *blocks("sh"))
        for line in code_block.text.replace("\\\n", " ").splitlines()
    ]
    for page in PAGES:
        lines += re.findall(r"`(skit [^`\n]+ --[^`\s]+ [^`\n]+)`", page.read_text(encoding="utf-8"))
    return sorted({line.partition("  #")[0].removesuffix(" &") for line in lines if line.startswith("skit ")})


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as the command line would, without running it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.toml").write_text("limit = 20\nmethod = ['fixed-k']\n")
    name, *arguments = shlex.split(line)[1:]
    command = load_command(name)
    assert isinstance(command, Command)
    command.given_values(command.make_context(name, arguments))  # which also refuses options without effect


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
    assert "| `--batch-size` | integer | `1` | Number of requests decoded together. |" in pages["commands.md"]
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
    assert "| `acceptance_length` | number or null | committed tokens per verification" in pages["formats.md"]


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


@pytest.mark.skipif(not find_spec("mkdocs"), reason="the extra docs is not installed here")
def test_the_policy_reference_has_what_policies_are_given() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "docs_pages.py"))
    page = dict(script["pages"]())["policies.md"]
    for kind in ("Policy", "Drafter", "Draft", "TokenTree", "Verdict", "StopRule", "Method"):
        assert f"\n## {kind}\n" in page
    for part in ("extend", "expand", "room", "probability", "path_probability", "choose", "observe", "awaits_answer"):
        assert re.search(rf"^### {part}\n\n.*\w", page, re.MULTILINE | re.DOTALL), part
    assert "### commit" not in page  # which is the engine's
    assert "## check_method\n" in page
