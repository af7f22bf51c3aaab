"""One process per stage on this machine, which end with the process that started them."""

import os
import subprocess
import sys
from threading import Event, Thread

import torch

from specbench_kit.decoding.processes.group import LOOPBACK

LAST_WORDS_S = 3.0
"""For a process to end by itself, and for the news of its death to arrive."""


class Workers:
    """Processes that hold the stages. When one dies, the others are ended, which breaks every wait for them."""

    def __init__(self, stages: int, device: str, port: int) -> None:
        self.died, self.death = Event(), ""
        self._closing = False
        threads = max(1, torch.get_num_threads() // (stages + 1))
        self._processes = [_start(rank, stages + 1, device, port, threads) for rank in range(1, stages + 1)]
        for rank, process in enumerate(self._processes, 1):
            Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def close(self) -> None:
        """Wait for the stages to end; those that do not are killed."""
        self._closing = True
        for process in self._processes:
            try:
                process.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        code = process.wait()
        if self._closing:
            return
        self._closing = True
        reason = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f": {lines[-1]}" if lines else ""
        self.death = f"stage {rank} of {len(self._processes)} (process {process.pid}) {reason}{said}"
        self.died.set()
        for other in self._processes:
            other.kill()


def _start(rank: int, world: int, device: str, port: int, threads: int) -> subprocess.Popen[bytes]:
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "OMP_NUM_THREADS": threads}
    return subprocess.Popen(
        [sys.executable, "-m", "specbench_kit.decoding.processes.worker", str(port), device],
        env=os.environ | {name: str(value) for name, value in settings.items()} | {"GLOO_SOCKET_IFNAME": LOOPBACK},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,  # Ctrl-C is rank 0's to hear
    )
