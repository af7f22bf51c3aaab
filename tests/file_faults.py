"""Faults at a chosen file operation of a command: its process is killed there, or the disk is full from there on.

The operations are those by which a command writes below one folder: files opened for writing, renamed and removed, and
folders made. Python tells of each of them before it happens, so that a fault comes at the same place in every run.
"""

import errno
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "SKIT_TEST_FILE_FAULT"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
ADDING = ("open", "os.mkdir", "os.rename")
REMOVING = ("os.remove", "os.rmdir")


def fault(kind: str, number: int, folder: Path, counted: Path | None = None) -> dict[str, str]:
    """Return the environment variable by which a command `kill`s itself, or meets a `full` disk, at an operation.

    With `counted`, the number of operations so far is always in that file.
    """
    return {VARIABLE: os.pathsep.join((kind, str(number), str(folder), str(counted or "")))}


def plant(environment: Mapping[str, str]) -> None:
    """Let this process meet the fault that its environment names, if it names one."""
    if VARIABLE not in environment:
        return
    kind, number, folder, counted = environment[VARIABLE].split(os.pathsep)
    done = 0
    owner = os.getpid()

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if not _writes(event, arguments, folder) or os.getpid() != owner:
            return
        done += 1
        if counted:
            os.write(log, f"{event} {arguments[0]}\n".encode())
        if kind == "kill" and done == int(number):
            os.kill(owner, signal.SIGKILL)
        if kind == "full" and done >= int(number) and event in ADDING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if counted else -1
    sys.addaudithook(watch)


def _writes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Return True for an operation that writes below the folder."""
    if event not in (*ADDING, *REMOVING) or not isinstance(arguments[0], str | os.PathLike):
        return False
    if event == "open" and not arguments[2] & WRITING:
        return False
    return os.fspath(arguments[0]).startswith(folder)
