"""`skit suite`: run a frozen suite, check a file of its results, and make its board."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from specbench_kit.cli.common import JsonOption, command_line, print_json, say, say_report
from specbench_kit.cli.exit_codes import FAILED
from specbench_kit.core.errors import require
from specbench_kit.core.option import OUTPUT, RUN, SERVER, Option, OptionValues, WithoutEffect
from specbench_kit.core.without_effect import beside

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.suite.definition import Suite

Action = Literal["run", "check", "board"]


def _with(*actions: Action) -> Callable[[OptionValues], str]:
    """Return the case in which the action is one of these."""
    return lambda given: f"with {given['action']}" if given.get("action") in actions else ""


_not_run = _with("check", "board")
NO_POLICIES = WithoutEffect(_not_run, "only run takes policies; leave it out")
NO_SERVERS = WithoutEffect(_not_run, "only run measures servers; leave it out")
MODELLED = WithoutEffect(
    lambda given: "" if given.get("servers") else "without --server",
    "policies are modelled; leave it out",
)
ONE_AFTER_ANOTHER = WithoutEffect(
    beside("servers", "--server"), "servers are measured one after the other; leave it out"
)
CHECKED = WithoutEffect(_with("check"), "a check writes nothing; leave it out")
ON_A_BOARD = WithoutEffect(_with("board"), "a board runs nothing; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """What to do with which suite, file or folder, and with which policies."""

    action: Annotated[
        Action,
        Option(
            "run a suite, check a file of results, or make the board of a folder of such files.",
            argument=True,
        ),
    ]
    subject: Annotated[Path, Option("The suite (v1), the file or the folder.", argument=True)]
    methods: Annotated[
        tuple[str, ...],
        Option(
            "Policy to run: name or name:key=value,..., or 'all' for those of the kit; may be given several times.",
            RUN,
            flag="method",
        ),
        NO_POLICIES,
    ] = ()
    servers: Annotated[
        tuple[str, ...],
        Option(
            "Running server in place of policies, NAME=KIND://HOST:PORT as in skit ab; given twice, first the one that "
            "does not speculate.",
            SERVER,
            flag="server",
        ),
        NO_SERVERS,
    ] = ()
    hardware: Annotated[
        str,
        Option(
            "What the servers run on, such as '1 x H100'; by default this machine, if they are here.",
            SERVER,
        ),
        NO_SERVERS,
        MODELLED,
    ] = ""
    quick: Annotated[
        bool,
        Option("Take a fifth of the requests; the results compare with nothing.", RUN),
        NO_POLICIES,
    ] = False
    submit: Annotated[
        Path | None,
        Option("Folder into which one file with the results is written.", OUTPUT),
        NO_POLICIES,
    ] = None
    resume: Annotated[
        bool,
        Option("Run no policy again whose file is in the folder of --submit.", OUTPUT),
        NO_POLICIES,
        ONE_AFTER_ANOTHER,
    ] = False
    jobs: Annotated[
        int,
        Option("Number of processes; -1 for one on every core.", RUN),
        ONE_AFTER_ANOTHER,
        ON_A_BOARD,
    ] = 1
    out: Annotated[
        Path | None,
        Option(
            "Folder for the report's folder (default: results), or of the board's site (default: board).",
            OUTPUT,
        ),
        CHECKED,
    ] = None


def suite(options: SuiteOptions, as_json: JsonOption = False) -> None:
    """Do what the action says."""
    from rich.console import Console

    console = Console(stderr=as_json)
    {"run": _run, "check": _check, "board": _board}[options.action](options, console, as_json)


def _run(options: SuiteOptions, console: "Console", as_json: bool) -> None:
    require(
        bool(options.methods or options.servers),
        "no policy: give at least one --method, or --server twice",
    )
    require(not (options.methods and options.servers), "give --method or --server, not both")
    require(
        not (options.quick and options.submit),
        "--submit takes results that compare with others, which those of --quick do not: leave out one of them",
    )
    require(
        options.submit is not None or not options.resume,
        "--resume goes with --submit: it reads that folder",
    )
    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.studies.suite.definition import load
    from specbench_kit.studies.suite.files import save
    from specbench_kit.studies.suite.run import report_results, run_named

    suite = load(str(options.subject), options.quick)
    if options.servers:
        _measure(suite, options, console, as_json)
        return
    results = []
    submitted = []
    with counting_bar(f"suite {options.subject}") as report:
        finished = options.submit if options.resume else None
        for result in run_named(suite, options.methods, options.jobs, report, finished):
            results.append(result)
            if options.submit is not None:
                submitted.append(save(result, options.submit))
    study = report_results(suite, results, options.out or Path("results"), command_line(), console)
    say_report(console, study.folder)
    for path in submitted:
        say(console, f"submission: {path}")
    if as_json:
        print_json({"run_dirs": [str(study.folder)], "summary": study.kind.content(study.result)})


def _measure(suite: "Suite", options: SuiteOptions, console: "Console", as_json: bool) -> None:

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.reports import render_terminal
    from specbench_kit.studies.suite.files import save_measured
    from specbench_kit.studies.suite.report import measured_table
    from specbench_kit.studies.suite.run import measure_servers, require_hardware

    require_hardware(options.servers, options.hardware)
    with stepping_bar() as progress:
        measured = measure_servers(
            suite,
            options.servers,
            options.hardware,
            options.out or Path("results"),
            command_line(),
            progress,
            lambda line: say(console, line, style="yellow"),
        )
    render_terminal.show(console, measured_table([measured.result]))
    say_report(console, measured.folder)
    if options.submit is not None:
        say(console, f"submission: {save_measured(measured.result, options.submit)}")
    if as_json:
        document = {"run_dirs": [str(measured.folder)], "summary": measured.result}
        print_json(document)


def _check(options: SuiteOptions, console: "Console", as_json: bool) -> None:
    import typer

    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.studies.suite.files import read

    result = read(options.subject)
    # It loads models and data, for which a wrong file need not wait.
    from specbench_kit.studies.suite.run import check

    with counting_bar("running again") as report:
        found = check(result, options.jobs, report)
    for line in found.differences:
        say(console, line)
    if not found.differences:
        fleets = f" and {found.fleets} fleets" if found.fleets else ""
        numbers = (
            f"all {found.numbers:,} numbers of {result.policy.spec} in {found.cells} cells{fleets}"
        )
        say(
            console,
            f"{options.subject}: {numbers} come out to the last digit; its outputs are the target's answers, and it "
            "was not trained on the suite's prompts",
        )
    if as_json:
        print_json({"differences": list(found.differences), "numbers": found.numbers})
    if found.differences:
        raise typer.Exit(FAILED)


def _board(options: SuiteOptions, console: "Console", as_json: bool) -> None:
    from specbench_kit.studies.suite.run import make_board

    page = make_board(options.subject, options.out or Path("board"))
    say(console, f"board: {page}")
    if as_json:
        print_json({"board": str(page)})
