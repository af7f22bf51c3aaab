"""What `skit bench` prints of a run, and what `skit import` prints of one of another tool."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.bench.conclusion import Conclusion


def print_run(console: "Console", conclusion: "Conclusion") -> None:
    """Print a run as a comparison of one method, or that there is nothing to compare."""
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.document import Paragraph

    study = conclusion.study()
    if study is not None:
        study.kind.print(console, study)
        return
    file = conclusion.directory.path / "requests.jsonl"
    reason = f"{file} holds no finished request: there is nothing to report."
    render_terminal.show(console, [Paragraph(reason)])
