"""The options of `skit suite`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core.option import OUTPUT, RUN, SERVER, Option

Action = Literal["run", "check", "board"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions:
    """What to do with which suite, file or folder, and with which policies."""

    action: Annotated[
        Action,
        Option("run a suite, check a file of results, or make the board of a folder of such files.", argument=True),
    ]
    subject: Annotated[Path, Option("The suite (v1), the file or the folder.", argument=True)]
    methods: Annotated[
        tuple[str, ...],
        Option(
            "Policy to run: name or name:key=value,..., or 'all' for those of the kit; may be given several times.",
            RUN,
            flag="method",
        ),
    ] = ()
    servers: Annotated[
        tuple[str, ...],
        Option(
            "Running server in place of policies, NAME=KIND://HOST:PORT as in skit ab; given twice, first the one that "
            "does not speculate.",
            SERVER,
            flag="server",
        ),
    ] = ()
    hardware: Annotated[
        str, Option("What the servers run on, such as '1 x H100'; by default this machine, if they are here.", SERVER)
    ] = ""
    quick: Annotated[bool, Option("Take a fifth of the requests; the results compare with nothing.", RUN)] = False
    submit: Annotated[Path | None, Option("Folder into which one file with the results is written.", OUTPUT)] = None
    resume: Annotated[bool, Option("Run no policy again whose file is in the folder of --submit.", OUTPUT)] = False
    jobs: Annotated[int, Option("Number of processes; -1 for one on every core.", RUN)] = 1
    out: Annotated[
        Path | None,
        Option("Folder for the report's folder (default: results), or of the board's site (default: board).", OUTPUT),
    ] = None
