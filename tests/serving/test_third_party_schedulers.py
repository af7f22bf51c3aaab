"""A scheduler of another distribution is found through its entry point."""

import json
import subprocess
import sys
from pathlib import Path

from plug_ins import install

MODULE = '''
"""Last come, first served."""

from dataclasses import dataclass

from specbench_kit.serving.schedulers.base import Queue, Scheduler


@dataclass(frozen=True)
class Lifo(Scheduler):
    """The newest first."""

    most: int = 3
    source = "elsewhere"

    def queue(self, estimator, limits):
        return LifoQueue(self.most, estimator, limits)


class LifoQueue(Queue):
    def __init__(self, most, estimator, limits):
        super().__init__(estimator, limits)
        self.most, self.stack = most, []

    def __len__(self):
        return len(self.stack)

    def add(self, request):
        self.stack.append(request)

    def next_batch(self, now_s):
        batch = self.new_batch()
        while self.stack and len(batch.requests) < self.most and batch.fits(self.stack[-1]):
            batch.add(self.stack.pop())
        return batch.decision()
'''

PROGRAM = """
import json
from scenes import scenario
from specbench_kit.serving.schedulers.base import schedulers
from specbench_kit.serving.simulation import simulate

result = simulate(scenario(scheduler="lifo:most=2"))
print(json.dumps({"known": list(schedulers.all()), "largest": result.batches["size"].max()}))
"""


def test_it_runs_beside_the_others(tmp_path: Path) -> None:
    install(
        tmp_path,
        "elsewhere_lifo",
        MODULE,
        "specbench_kit.schedulers",
        ["lifo = elsewhere_lifo:Lifo"],
    )
    program = f"import sys; sys.path[:0] = {[str(tmp_path), str(Path(__file__).parent)]}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    printed = json.loads(done.stdout)
    assert {
        "fcfs",
        "static",
        "edf",
        "wisp-paper",
        "wisp-promise",
        "knapsack",
        "prefill-first",
        "lifo",
    } <= set(printed["known"])
    assert printed["largest"] == 2
