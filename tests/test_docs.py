"""The documentation: every command in it is one, and pages that are made from the code say what the code says."""

import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from specbench_kit.cli.main import app
from specbench_kit.methods.base import methods

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NOT_READ = ("config", "save_config")


def commands() -> list[str]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`(skit [^`]+)`", text)
    return sorted({line for line in lines if line.startswith("skit ")})


@pytest.mark.parametrize("line", commands())
def test_every_command_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed as the command line would, without running it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.toml").write_text("limit = 20\nmethod = ['fixed-k']\n")
    name, *arguments = shlex.split(line)[1:]
    known: Any = typer.main.get_command(app)
    known.commands[name].make_context(name, arguments)


@pytest.mark.skipif(not find_spec("mkdocs"), reason="the extra docs is not installed here")
def test_every_method_and_metric_has_its_page() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "docs_pages.py"))
    pages = dict(made["pages"]())
    assert {f"methods/{name}.md" for name in methods.all()} <= pages.keys()
    assert "| `tokens_per_verify` | number | committed tokens / rounds" in pages["metrics.md"]
    assert "## sweep\n" in pages["python.md"]
    assert "`--strict`" in pages["commands.md"]
