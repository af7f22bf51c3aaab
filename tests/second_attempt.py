"""What failed in a run of all tests is tried once more, alone: `pytest --last-failed --second-attempt`.

The first run keeps the traceback of every failure in pytest's cache. The second passes only if each of those tests
passes now, and prints it under FLAKY with the traceback of its first failure.
"""

import pytest
from _pytest.terminal import TerminalReporter

KEPT = "second-attempt/tracebacks"


class Attempt:
    """The outcomes of this run, and the failures of the run before if this is the second attempt."""

    def __init__(self, config: pytest.Config) -> None:
        self.cache = config.cache
        self.is_second = config.getoption("second_attempt")
        self.first_failures: dict[str, str] = self.cache.get(KEPT, {}) if self.is_second else {}
        self.failures: dict[str, str] = {}
        self.passed: set[str] = set()
        self.collected = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collected = self.collected and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.setdefault(report.nodeid, report.longreprtext)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def flaky(self) -> dict[str, str]:
        """Return the first tracebacks of the tests that failed at first and pass now."""
        passed = self.passed - self.failures.keys()
        return {
            test: traceback for test, traceback in self.first_failures.items() if test in passed
        }

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Keep the first failures; fail a second attempt that did not find each of them again and pass it.

        A run that could not collect all tests is not worth a second attempt: it ends as it would without xdist.
        """
        if not self.is_second:
            self.cache.set(KEPT, self.failures)
        if not self.collected:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        elif (
            self.is_second
            and exitstatus == pytest.ExitCode.OK
            and self.flaky() != self.first_failures
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if flaky := self.flaky():
            terminalreporter.section("FLAKY: failed at first, passed alone", yellow=True)
            for test, traceback in flaky.items():
                terminalreporter.write_sep("_", test, yellow=True)
                terminalreporter.write_line(traceback)
        for test in sorted(self.first_failures.keys() - self.passed - self.failures.keys()):
            terminalreporter.write_line(
                f"FAILED {test} - it failed at first and was not run again", red=True
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    description = "This run tries again what failed in the one before: goes with --last-failed."
    parser.addoption("--second-attempt", action="store_true", help=description)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # of xdist, whose outcomes another process hears of
    if hasattr(config, "cache") and not is_worker:
        config.pluginmanager.register(Attempt(config), "second-attempt-outcomes")
