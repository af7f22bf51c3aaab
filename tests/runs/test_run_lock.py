"""A run directory has one writer at a time, for as long as that process lives."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.line_file import lock, unlock

HOLDER = (
    "import sys; from pathlib import Path\n"
    "from specbench_kit.runs.line_file import lock\n"
    "lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()\n"
)


def test_another_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            SkitError, match="is being written by another skit: wait until it has ended"
        ):
            lock(tmp_path)
        holder.send_signal(signal.SIGKILL)
    lock(tmp_path)
    lock(tmp_path)
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert "SkitError" in done.stderr
    unlock(tmp_path)
    assert list(tmp_path.iterdir()) == []
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("held\n", 0)
