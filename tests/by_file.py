"""Which process gets which tests where several share them, and what becomes of the tests of a process that crashes."""

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

DIVISIBLE = {"test_method_contract.py", "test_readme.py"}
"""Files whose tests may run in different processes; those of any other share what they have prepared."""


class ByFile(LoadScopeScheduling):
    """Hand out whole files, those with most tests first, and single tests of `DIVISIBLE` files at the end.

    The single tests fill the time in which other processes finish their last file. `--dist worksteal` would do so too,
    but a stolen test makes its file's fixtures anew: models, runs and servers that take longer than the test.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if Path(file).name in DIVISIBLE else file

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a process crashed in, and hand out the tests that it has left.

        xdist would hand out the crashed test too, which crashes one process after another, and files that are finished,
        for which a process waits without end.
        """
        files = self.assigned_work.pop(node)
        unfinished = [
            (file, test)
            for file, tests in files.items()
            for test, is_done in tests.items()
            if not is_done
        ]
        if not unfinished:
            return None
        file, crashed = unfinished[0]
        files[file][crashed] = True
        self.workqueue.update(
            {file: tests for file, tests in files.items() if not all(tests.values())}
        )
        for worker in self.nodes:
            self._reschedule(worker)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more tests, or tell it that there are no more.

        A process begins a test when it knows the next one or that there is none, so that a single test is not enough.
        One that takes the place of a crashed process has to collect the tests before it can be given any.
        """
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
