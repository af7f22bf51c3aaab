"""Run the fast tests several times on a machine that is busy in every way, and list those that fail now and then.

    python scripts/flaky.py [RUNS] [PYTEST ARGUMENTS]

Beside the tests two processes compute, one writes to the disk without a pause, and one holds the memory but 6 GB. The
tests ignore Ctrl-C, as under a shell or supervisor that starts them in the background. Exit code 1 if any test fails.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

ROOT = Path(__file__).parents[1]
CACHES = ROOT / "build" / "flaky"
FAST = ("-n", "logical", "--maxprocesses", "4", "-m", "not docs and not slow and not nightly")
RUNS = 5
FREE_BYTES = 6e9

COMPUTE = "while True: pass"
HOLD = "import sys, signal; held = b'1' * int(sys.argv[1]); signal.pause()"
WRITE = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
"""


@contextmanager
def load() -> Iterator[None]:
    """Keep processors, memory and disk busy."""
    with TemporaryDirectory() as folder:
        spare = max(0, int(psutil.virtual_memory().available - FREE_BYTES))
        codes = [(COMPUTE,), (COMPUTE,), (HOLD, str(spare)), (WRITE, str(Path(folder, "written")))]
        busy = [subprocess.Popen([sys.executable, "-c", *code]) for code in codes]
        try:
            yield
        finally:
            for process in busy:
                process.kill()
                process.wait()


def failures(number: int, options: Sequence[str]) -> list[str]:
    """Run the tests once and return the names of those that failed."""
    cache = CACHES / str(number)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--cache-clear",
        "-o",
        f"cache_dir={cache}",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=_ignore_ctrl_c, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    return list(json.loads((cache / "v/second-attempt/tracebacks").read_text(encoding="utf-8")))


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(arguments: Sequence[str]) -> int:
    """Run the tests under load and return the exit code."""
    runs = int(arguments[0]) if arguments else RUNS
    failed: Counter[str] = Counter()
    with load():
        for number in range(runs):
            failed.update(failures(number, arguments[1:] or FAST))
    for test, times in failed.most_common():
        print(f"failed {times} of {runs} times: {test} (tracebacks: {CACHES.relative_to(ROOT)})")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
