"""Time and peak memory of a real process: `python -m benchmarks.process COMMAND ...` prints one line of JSON.

A child process inherits the peak memory of its parent, so this small process starts the command.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Usage:
    """Wall-clock seconds and peak resident memory in bytes."""

    seconds: float
    peak_bytes: int


def measure(command: list[str]) -> Usage:
    """Run a command without the user's datasets; RuntimeError with its stderr if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "SKIT_DATA_DIR"}
    launcher = [sys.executable, "-m", "benchmarks.process", *command]
    done = subprocess.run(launcher, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return Usage(**json.loads(done.stdout))


def main() -> None:
    started_s = perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = perf_counter() - started_s
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": usage.ru_maxrss * unit}))
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
