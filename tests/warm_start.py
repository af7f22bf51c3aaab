"""A process that has loaded what most commands load, and forks one that runs each command it is told.

A command spends most of a short test on loading torch and transformers. In the fork runs all of the command line, in a
process of its own, with the folder, environment and arguments that it was given.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, NoReturn

from file_faults import plant

LOADED = (
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "datasets",
    "sklearn.linear_model",
    "typer._adapters",
    "typer.rich_utils",
)
"""Beside all of the kit."""
NEED_TRITON = {
    f"specbench_kit.models.executors.kernels.{name}"
    for name in ("by_triton", "triton_attention", "triton_logits")
}
"""The modules that are imported on a GPU alone, where Triton is installed."""
AT_LOADING = ("HF_", "LC_", "MPL", "OMP_", "PYTHONHASHSEED", "TORCH", "TRANSFORMERS_")
"""What environment variables begin with that are read when Python or a library is loaded."""


class WarmStart:
    """The process, as those see it who give it commands."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(variables),
            start_new_session=True,  # a group that is ended as one, the command that is running included
        )

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Return what `subprocess.run` gives for `skit` with these arguments."""
        assert self.process.stdin
        assert self.process.stdout
        with TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            order = {
                "arguments": arguments,
                "env": dict(env),
                "cwd": cwd,
                "out": str(out),
                "err": str(err),
            }
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            patience = Timer(timeout, self.end)
            patience.start()
            try:
                code = self.process.stdout.readline()
            except (
                BaseException
            ):  # the test was timed out or interrupted: no other may read this command's end
                self.end()
                raise
            finally:
                patience.cancel()
            if not code:
                raise subprocess.TimeoutExpired(["skit", *arguments], timeout)
            return subprocess.CompletedProcess(
                ["skit", *arguments], int(code), out.read_text(), err.read_text()
            )

    def end(self) -> None:
        """Kill the process and the command that it runs."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


_running: list[WarmStart] = []


def warm_start(variables: Mapping[str, str]) -> WarmStart:
    """The process that is running, or a new one in this environment."""
    if not _running or _running[0].process.poll() is not None:
        _running[:] = [WarmStart(variables)]
    return _running[0]


def loads_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether libraries that are loaded in one environment are what the other would load."""
    return _at_loading(one) == _at_loading(other)


def _at_loading(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_LOADING)}


def _serve() -> None:
    sys.path.pop(0)  # this folder, which a command does not know
    atexit.register(_leave)
    kit = import_module("specbench_kit")
    for name in LOADED:
        with suppress(ModuleNotFoundError):  # older versions lack some
            import_module(name)
    for module in walk_packages(kit.__path__, "specbench_kit."):
        if module.name not in NEED_TRITON:
            import_module(module.name)
    gc.freeze()  # no fork looks through what is loaded, page after page, for what could be freed
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(order: Mapping[str, Any]) -> NoReturn:
    """Be `skit` as if it had been started with these arguments, in this environment and folder."""
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    plant(os.environ)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["skit", *order["arguments"]]
    _ending["code"] = 1
    try:
        import_module("specbench_kit.cli.main").main()
    except SystemExit as end:
        _ending["code"] = int(end.code or 0)
    sys.exit(_ending["code"])


_ending = {"code": 0}


def _leave() -> NoReturn:
    """The last thing that a process does: taking down all that is loaded takes longer than many a command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_ending["code"])


if __name__ == "__main__":
    _serve()
