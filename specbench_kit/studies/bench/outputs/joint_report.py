"""The report that sets the runs of one command side by side, in a folder of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench_kit.metrics.comparison import Comparison, compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.comparison.document import write_reports
from specbench_kit.runs.folder import unused_folder
from specbench_kit.studies.bench.outputs.conclusion import Conclusion


def report_jointly(out: Path, conclusions: Sequence[Conclusion]) -> tuple[Path, Comparison] | None:
    """Write it into a new folder below `out`; nothing where fewer than two runs have finished any request."""
    runs = [conclusion.directory for conclusion in conclusions]
    begun = [conclusion.directory.path for conclusion in conclusions if _has_records(conclusion.summary)]
    if len(begun) < 2:
        return None
    # By force, because an interruption can leave runs on different prompts; the report then says so.
    found, problems = load_runs(begun)
    comparison = compare(found, force=True, problems=problems)
    datasets = "-".join(dict.fromkeys(run.run["dataset"]["name"] for run in runs))
    folder = unused_folder(out, "bench", datasets, {"runs": [path.name for path in begun]})
    write_reports(comparison, folder, hint="every run is kept; make room, then have it made by skit report")
    return folder, comparison


def _has_records(summary: dict[str, Any]) -> bool:
    return bool(summary["requests"]["finished"] or summary["requests"]["failed"])
