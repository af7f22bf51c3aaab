"""The report that compares the runs of one command, in a folder of its own."""

from collections.abc import Sequence
from pathlib import Path

from specbench_kit.metrics.comparison import Comparison, compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.comparison.files import write_reports
from specbench_kit.runs.folder import unused_folder
from specbench_kit.studies.bench.outputs.conclusion import Conclusion


def report_jointly(out: Path, conclusions: Sequence[Conclusion]) -> tuple[Path, Comparison] | None:
    """Write the report into a new folder below `out`; return None if fewer than two runs have any records."""
    begun = []
    for conclusion in conclusions:
        requests = conclusion.summary["requests"]
        if requests["finished"] or requests["failed"]:
            begun.append(conclusion.directory.path)
    if len(begun) < 2:
        return None
    # force: an interruption can leave runs on different prompts; the report then says so.
    runs, problems = load_runs(begun)
    comparison = compare(runs, force=True, problems=problems)
    datasets = "-".join(dict.fromkeys(conclusion.directory.run["dataset"]["name"] for conclusion in conclusions))
    folder = unused_folder(out, "bench", datasets, {"runs": [path.name for path in begun]})
    write_reports(
        comparison, folder, hint="the runs themselves are complete; make room, then write the report with skit report"
    )
    return folder, comparison
