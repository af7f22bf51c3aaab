"""A process that has loaded what most commands load, and forks one that runs each command it is told.

A command spends most of a short test on loading torch and transformers. In the fork runs all of the command line, in a
process of its own, with the folder, environment and arguments that it was given.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, NoReturn

LOADED = (
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "datasets",
    "sklearn.linear_model",
    "specbench_kit.bench.campaign",
    "specbench_kit.cli.main",
    "specbench_kit.reports.comparison.document",
)
AT_LOADING = ("HF_", "LC_", "MPL", "OMP_", "TORCH", "TRANSFORMERS_")
"""What environment variables begin with that are read when a library is loaded."""


class WarmStart:
    """The process, as those see it who give it commands."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(variables)
        )

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` gives for `skit` with these arguments."""
        assert self.process.stdin
        assert self.process.stdout
        with TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            order = {"arguments": arguments, "env": dict(env), "cwd": cwd, "out": str(out), "err": str(err)}
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            patience = Timer(timeout, self.process.kill)
            patience.start()
            code = self.process.stdout.readline()
            patience.cancel()
            if not code:
                _started.cache_clear()
                raise subprocess.TimeoutExpired(["skit", *arguments], timeout)
            return subprocess.CompletedProcess(["skit", *arguments], int(code), out.read_text(), err.read_text())


@cache
def _started(at_loading: frozenset[tuple[str, str]]) -> WarmStart:
    other = {name: value for name, value in os.environ.items() if not name.startswith(AT_LOADING)}
    return WarmStart(other | dict(at_loading))


def warm_start(env: Mapping[str, str]) -> WarmStart:
    """The process for commands with this environment: one for all that load their libraries alike."""
    return _started(frozenset((name, value) for name, value in env.items() if name.startswith(AT_LOADING)))


def _serve() -> None:
    sys.path.pop(0)  # this folder, which a command does not know
    for name in LOADED:
        import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(order: Mapping[str, Any]) -> NoReturn:
    """Be `skit` as if it had been started with these arguments, in this environment and folder."""
    for number, place in enumerate((os.devnull, order["out"], order["err"])):
        os.dup2(os.open(place, os.O_RDWR | os.O_CREAT, 0o600), number)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["skit", *order["arguments"]]
    import_module("specbench_kit.cli.main").main()
    sys.exit()


if __name__ == "__main__":
    _serve()
