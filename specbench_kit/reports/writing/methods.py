"""The table of what the methods of a report were set to."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.metrics.setting import describe_inputs, describe_options
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.markup import code, table

Fields = Mapping[str, Any]


def section(runs: Sequence[Fields]) -> str:
    """A table of the methods' options and of what they found, each setting once."""
    known = [run for run in runs if run.get("options") or run.get("uses")]
    rows = [
        (code(str(run["method"])), describe_options(run) or ABSENT, describe_inputs(run) or ABSENT) for run in known
    ]
    return f"## Methods\n\n{table(['method', 'options', 'made ready with'], list(dict.fromkeys(rows)))}" if rows else ""
