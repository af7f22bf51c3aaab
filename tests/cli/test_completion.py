"""Completion in a shell: names of methods, deployments, experiments and kinds."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SKIT, environment

from specbench_kit.cli.command_option import KIND_OF, completer_of
from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.cli.listing import SLOW, kinds


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("skit bench --method fixed", ["fixed-k"]),
        ("skit bench --deployment wisp-r", ["wisp-roofline"]),
        (
            "skit reproduce adaspec/",
            [
                f"adaspec/{name}"
                for name in ("figure-10", "figure-11", "figure-13", "table-2-traces", "table-2")
            ],
        ),
        ("skit list exp", ["experiments"]),
        ("skit capacity --system sl", ["sled"]),
    ],
)
def test_a_shell_is_offered_names(line: str, names: list[str]) -> None:
    completion_request = {
        "_SKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run(
        [SKIT], env=environment() | completion_request, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == names


def test_zsh_completes_at_the_first_tab_of_a_terminal(tmp_path: Path) -> None:
    """That tab loads the installed file, which must complete the word and not only define the function for later."""
    show = environment() | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        [SKIT, "--show-completion", "zsh"], env=show, capture_output=True, text=True, check=True
    )
    assert 'loadautofunc ]] && _skit_completion "$@"' in script.stdout
    if zsh := shutil.which("zsh"):
        (tmp_path / "_skit").write_text(script.stdout, encoding="utf-8")
        first_tab = """
            compdef() {}; _arguments() { print -r -- "$@" }
            path=(${SKIT:h} $path); fpath=(. $fpath); autoload -Uz _skit; words=(skit list exp); CURRENT=3; _skit
        """
        done = subprocess.run(
            [zsh, "-fc", first_tab],
            cwd=tmp_path,
            env=environment() | {"SKIT": SKIT},
            capture_output=True,
            text=True,
        )
        assert "experiments" in done.stdout


def test_every_completed_option_exists_and_takes_names_that_are_quick_to_list() -> None:
    options = {
        option.option.shown_name(option.name)
        for name in commands.all()
        for option in load_command(name).options.values()
    }
    assert KIND_OF.keys() <= options
    assert set(KIND_OF.values()) - {"kinds"} <= kinds().keys() - set(SLOW)
    assert completer_of("--limit") is None


def test_completion_imports_nothing_heavy() -> None:
    asks = [f"completer_of({name!r})('')" for name in KIND_OF]
    code = (
        f"from specbench_kit.cli.command_option import completer_of; {'; '.join(asks)}; "
        "import sys; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "matplotlib"} & set(done.stdout.split())
