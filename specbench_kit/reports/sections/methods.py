"""The section on the options of a report's methods."""

from collections.abc import Sequence

from specbench_kit.metrics.setting import describe_inputs, describe_options
from specbench_kit.reports.document import Blocks, Heading, Table, code
from specbench_kit.reports.stored import RunFile
from specbench_kit.reports.writing.formatting import ABSENT


def section(runs: Sequence[RunFile]) -> Blocks:
    """Return a table of the methods' options and of what they loaded or measured, each setting once."""
    rows = dict.fromkeys(
        (code(str(run["method"])), describe_options(run) or ABSENT, describe_inputs(run) or ABSENT)
        for run in runs
        if run.get("options") or run.get("uses")
    )
    return [Heading("Methods"), Table(("method", "options", "made ready with"), list(rows))] if rows else []
