"""A comparison that several tests of reports only read."""

import pytest
from run_builders import write_methods

from specbench_kit.reports.comparison import Comparison, compare
from specbench_kit.reports.run_data import load_runs


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Four methods on the same twelve prompts."""
    out = tmp_path_factory.mktemp("runs")
    write_methods(out)
    return compare(load_runs([out])[0])
