"""`skit reproduce`: experiments of papers, with published numbers next to ours."""

from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import JsonOption, command_line, print_json, say_report
from specbench_kit.cli.interrupts import kept_when_interrupted
from specbench_kit.core.common_options import Out
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OUTPUT, RUN, Option, WithoutEffect
from specbench_kit.core.without_effect import beside

IN_FOLDER = WithoutEffect(beside("to"), "--to names the folder itself; leave out one of them")


def reproduce(
    names: Annotated[
        tuple[str, ...],
        Option(
            "Experiments from `skit list experiments`, a paper such as wisp, or all; or field, or one of its tables, "
            "for what others measured on servers.",
            argument=True,
        ),
    ] = (),
    changed: Annotated[
        tuple[str, ...],
        Option(
            'Change an input: seeds=5. May be given several times; a list is written as \'scheduler=["fcfs", "edf"]\', '
            "or entry by entry: --set scheduler=fcfs --set scheduler=edf.",
            RUN,
            flag="set",
        ),
    ] = (),
    sensitivity: Annotated[
        bool,
        Option(
            "Also vary each input that the paper does not state, over its plausible range.", RUN
        ),
    ] = True,
    out: Annotated[Out, IN_FOLDER] = Path("results"),
    to: Annotated[
        Path | None,
        Option("Write the pages into this folder instead of a new one below --out.", OUTPUT),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the experiments and print ours next to the published numbers."""
    if not names:
        raise SkitError(
            "skit reproduce: name an experiment, as in skit reproduce specedge/figure-10, a paper or all; "
            "skit list experiments shows them, with the time that each takes"
        )
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.field.tables import is_of_field
    from specbench_kit.studies.reproduction.grid import parse_changes
    from specbench_kit.studies.reproduction.report import print_results
    from specbench_kit.studies.reproduction.reproduction import run

    console = Console(stderr=as_json)
    if any(map(is_of_field, names)):
        from specbench_kit.studies.field.run import predict

        require(
            sensitivity,
            "--no-sensitivity has no effect on tables of the field, whose predictions state their range; leave it out",
        )
        kept = "the tables that are finished are kept; --to with their folder adds the others"
        with kept_when_interrupted(lambda: kept), stepping_bar() as report:
            study = predict(names, changed, out, to, report, command_line())
        study.kind.print(console, study)
        say_report(console, study.folder, study.kind.page)
        if as_json:
            print_json({"run_dirs": [str(study.folder)], "summary": study.result})
        return
    kept = "the numbers of finished experiments are kept, --to with their folder adds the others"
    with kept_when_interrupted(lambda: kept), stepping_bar() as report:
        outcome = run(names, parse_changes(changed), sensitivity, out, to, report, command_line())
    print_results(console, outcome.experiments)
    say_report(console, outcome.folder, "README")
    if as_json:
        content = {
            "run_dirs": [str(outcome.folder)],
            "summary": {"experiments": outcome.experiments},
        }
        print_json(content)
