"""Starts one process per stage on this machine; they end with the process that started them."""

import os
import subprocess
import sys
from threading import Event, Thread

import torch

from specbench_kit.decoding.processes.group import LOOPBACK

LAST_WORDS_S = 3.0
"""Time for a process to end by itself, and for the news of its death to arrive."""


class Workers:
    """The processes that hold the stages. When one dies, the others are ended, which breaks every wait for them."""

    def __init__(self, stages: int, device: str, port: int) -> None:
        self.died, self.death = Event(), ""
        self._closing = False
        threads = max(1, torch.get_num_threads() // (stages + 1))
        self._processes = []
        for rank in range(1, stages + 1):
            settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": stages + 1, "OMP_NUM_THREADS": threads}
            environment = {name: str(value) for name, value in settings.items()} | {"GLOO_SOCKET_IFNAME": LOOPBACK}
            process = subprocess.Popen(
                [sys.executable, "-m", "specbench_kit.decoding.processes.worker", str(port), device],
                env=os.environ | environment,
                stdin=subprocess.PIPE,  # never written to: a worker ends when it closes
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for rank 0 alone, which then ends the others in order
            )
            self._processes.append(process)
        for rank, process in enumerate(self._processes, 1):
            Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def close(self) -> None:
        """Wait for the stages to end, and kill those that do not."""
        self._closing = True
        for process in self._processes:
            try:
                process.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process ends; if it was not told to, note why and kill the others."""
        assert process.stderr is not None
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        code = process.wait()
        if self._closing:
            return
        self._closing = True  # the others die of the kill below, which is not worth a message
        reason = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last_line = f": {lines[-1]}" if lines else ""
        self.death = f"stage {rank} of {len(self._processes)} (process {process.pid}) {reason}{last_line}"
        self.died.set()
        for worker in self._processes:
            worker.kill()
