"""The command line as a real process, and the files that it is given."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from warm_start import loads_alike, warm_start

SKIT = str(Path(sysconfig.get_path("scripts"), "skit"))
PATIENCE_S = 240
"""How long a command may take. It only ends what hangs, so it is far above what a busy machine needs.

Most commands need 5 to 15 s of processor time, and up to eight times that where eight processes share a core. It is
less than what pytest gives a slow test, so that a command that hangs is named, with what it said.
"""
READINGS = "SKIT_MACHINE_READINGS"
QUIET, BUSY = (Path(__file__).with_name(f"{name}_machine.json") for name in ("quiet", "busy"))
"""Readings that stand in for those of the machine which runs the tests."""
HOME = TemporaryDirectory(prefix="skit-home-", ignore_cleanup_errors=True)
"""The user's folder of all tests of this process: what the user fetched or trained decides none of them."""

QUICK = (
    "--help",
    "--version",
    "capacity",
    "compare",
    "export",
    "list",
    "profile-verifier",
    "simulate",
)
"""What loads neither torch nor transformers, or not always."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TinyPair:
    """Folders of a target and of a draft that agrees with it now and then; every byte is a token."""

    target: Path
    draft: Path

    @property
    def options(self) -> list[str]:
        return ["--target", str(self.target), "--draft", str(self.draft)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what leads the kit to data, models, the user's folder or a hub."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SKIT_"))
    }
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SKIT_HOME": HOME.name,
        READINGS: str(QUIET),
    }
    return inherited | fixed | changes


def ignore_ctrl_c() -> None:
    """A shell that starts a command in the background of a script has it ignore Ctrl-C, which it must hear anyhow."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def skit(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `skit` with these arguments to its end, with its libraries loaded where nothing else is asked for."""
    settings: dict[str, Any] = {
        "capture_output": True,
        "env": environment(),
        "timeout": PATIENCE_S,
    } | options
    command = [SKIT, *map(str, arguments)]
    usual = environment()
    if (
        options.keys() <= {"env", "cwd"}
        and command[1] not in QUICK
        and loads_alike(settings["env"], usual)
    ):
        folder = str(options.get("cwd", Path.cwd()))
        return warm_start(usual).run(command[1:], settings["env"], folder, settings["timeout"])
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, text=True, check=False, **settings
    )
    return done


def skit_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `skit` in this process, which loads torch only once."""
    from specbench_kit.cli.main import main

    argv, sys.argv = sys.argv, ["skit", *map(str, arguments)]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            return subprocess.CompletedProcess(
                sys.argv, int(end.code or 0), out.getvalue(), err.getvalue()
            )
        finally:
            sys.argv = argv
    raise AssertionError("the command line ends with an exit code")


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why `skit` ended with exit code 2, or with 130 after an interrupt."""
    interrupted = "error: interrupted" in done.stderr
    assert done.returncode == (130 if interrupted else 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert lines == done.stderr.splitlines()[-1:]
    return lines[0].removeprefix("error: ")


def write_rows(path: Path, *rows: Mapping[str, object]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_prompts(path: Path, prompts: Iterable[str]) -> Path:
    """A file of prompts that are completed as they stand, by their numbers."""
    rows = (
        {"id": f"p{number}", "prompt": prompt, "chat": False}
        for number, prompt in enumerate(prompts)
    )
    return write_rows(path, *rows)


def read_rows(path: Path) -> Rows:
    """The objects of a JSONL file's whole lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def copy_model(source: Path, folder: Path, **config: object) -> Path:
    """A copy of a model's folder with changed entries in its config.json."""
    shutil.copytree(source, folder)
    file = folder / "config.json"
    if config:
        file.write_text(json.dumps(read_object(file) | config))
    return folder
