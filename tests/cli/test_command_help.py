"""The help of commands: what matters first with an example, everything by --help-all, and no word that is cut."""

import shlex
from pathlib import Path

import pytest
from command_line import skit_here

from specbench_kit.cli.command import MANY_OPTIONS, first_options
from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.core.errors import SkitError

MOST_SHOWN = 10


@pytest.mark.parametrize("name", commands.all())
def test_a_command_with_many_options_shows_ten_at_most_and_an_example_that_is_parsed(
    name: str,
) -> None:
    command, entry = load_command(name), commands.get(name)
    shown = first_options(command.params, command.options)
    assert (len(shown) < len(command.params)) == (len(command.params) >= MANY_OPTIONS)
    if len(shown) < len(command.params):
        assert 5 <= len(shown) <= MOST_SHOWN
        assert {one.name for one in command.params if one.required} <= {one.name for one in shown}
        skit, called, *arguments = shlex.split(entry.example)
        assert (skit, called) == ("skit", name)
        command.make_context(name, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simulate", "capacity"])
def test_the_example_of_a_simulation_runs(name: str, tmp_path: Path) -> None:
    example = shlex.split(commands.get(name).example)[1:]
    done = skit_here(*example, "--duration", 12, "--warm-up", 2, "--seeds", 1, "--out", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", commands.all())
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_help_cuts_a_word_or_a_line(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    short, full_help = (skit_here(name, option).stdout for option in ("--help", "--help-all"))
    for text in (short, full_help):
        assert max(map(len, text.splitlines())) <= columns
        assert "…" not in text
    command, words = load_command(name), "".join(full_help.split())
    for option in command.params:
        assert "".join((option.help or "").split()) in words
        assert max(option.opts, key=len) in full_help


def test_the_first_options_come_in_their_order_and_the_rest_under_headings() -> None:
    short, full_help = (skit_here("bench", option).stdout for option in ("--help", "--help-all"))
    first = [line.split()[0] for line in short.splitlines() if line.startswith("  --")]
    assert first[:4] == ["--method", "--limit", "--dataset", "--target"]
    marked = {
        option.option.shown_name(name)
        for name, option in load_command("bench").options.items()
        if option.option.first
    }
    assert set(first) == marked
    assert commands.get("bench").example in short
    assert "--help-all shows" in short
    assert "--help-all shows" not in full_help
    headings = [
        line for line in full_help.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings[:3] == ["Example:", "What to run:", "Models:"]
    assert headings[-1] == "Other:"
    assert headings.index("Server:") > headings.index("Decoding:")


def test_an_option_file_cannot_ask_for_help(tmp_path: Path) -> None:
    command, file = load_command("list"), tmp_path / "options.toml"
    file.write_text("help_all = true\n")
    with pytest.raises(SkitError, match="unknown option 'help_all'"):
        command.make_context("list", ["--config", str(file)])


def test_help_on_a_subject_shows_the_options_with_that_text_and_no_others() -> None:
    def shown(subject: str) -> set[str]:
        lines = skit_here("bench", f"--help={subject}").stdout.splitlines()
        return {line.split()[0] for line in lines if line.startswith("  --")}

    output = {
        option.option.shown_name(name)
        for name, option in load_command("bench").options.items()
        if option.option.panel == "Output"
    }
    assert shown("Output") > output, "those of the heading, and --max-new-tokens of output tokens"
    assert "--max-new-tokens" in shown("OUTPUT") - output
    assert "--deployment" not in shown("output")
    nothing = skit_here("bench", "--help=zzz")
    assert nothing.returncode == 2
    assert (
        nothing.stderr
        == "error: skit bench --help=zzz: no option has this text; --help-all shows all\n"
    )
