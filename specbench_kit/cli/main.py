"""The `skit` command, and the one place where errors become one line."""

import sys
import traceback
from contextlib import suppress
from shutil import get_terminal_size
from typing import Annotated

import typer

from specbench_kit.cli.exit_codes import FAULT, INTERRUPTED, REFUSED
from specbench_kit.cli.group import CommandGroup
from specbench_kit.cli.interrupts import hear_interrupts
from specbench_kit.cli.outputs import Outputs
from specbench_kit.cli.usage import UsageError, usage_problem
from specbench_kit.core.errors import Interrupted, MethodError, SkitError
from specbench_kit.core.extras import missing_module_line
from specbench_kit.core.plain_text import one_line, wrapped
from specbench_kit.core.registry import plug_in_problem
from specbench_kit.core.version import __version__

GUIDE = """Benchmark speculative-decoding policies for edge-cloud LLM serving on one engine.

  skit bench --method fixed-k                  benchmark one method on the best pair here, with a report
  skit bench --method all --limit 20           compare all methods
  skit bench --method wisp --deployment wan    the same tokens, with the time of a wide-area link
  skit compare results/A results/B             compare runs; --fail-if turns it into a check
  skit train-predictor                         train a rejection predictor and see if it pays off
  skit profile-verifier --gpu a100             measure or derive how long a device takes to verify
  skit simulate, skit capacity                 many devices that share one verification server
  skit suite run v1 --method threshold         rank a policy in fixed cells, in a minute and without a model
  skit new method my-rule                      create a package with a policy of your own and its test
  skit serve, skit bench --server              a target here, devices that draft over the network
  skit ab plain=vllm://A spec=vllm://B         compare two running servers, such as speculation on and off
  skit why plain=vllm://A spec=vllm://B        say why speculation is slow or fast there, and what to try
  skit load, skit validate                     load a real server, and check the simulator against it
  skit reproduce wisp/table-2                  published numbers next to ours
  skit list                                    methods, datasets, deployments and other names
  skit doctor                                  check the installation and the machine

skit --help lists all commands, skit help COMMAND what matters first of one, skit COMMAND --help-all all of its
options, --help=link those on a subject.
"""

FIRST_TAB = '[[ $zsh_eval_context[-1] == loadautofunc ]] && %(complete_func)s "$@"\n'
"""At the first tab in a terminal, zsh loads the script to complete a word; Typer's only defines the
function then.
"""

with suppress(
    ImportError, KeyError
):  # the scripts are Typer's own, which may come to lie elsewhere
    from typer._completion_shared import _completion_scripts

    _completion_scripts["zsh"] += FIRST_TAB

app = typer.Typer(
    name="skit",
    cls=CommandGroup,
    help="Benchmark speculative-decoding policies for edge-cloud LLM serving on one engine.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would take longer than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"specbench-kit {__version__}")
        raise typer.Exit


TRACEBACK = "--traceback"
"""May stand anywhere in a command line, as every command can meet an error."""


def _refer_to_traceback(_: bool) -> None:
    """Do nothing: the option is taken out of the command line before it is read."""


TracebackOption = Annotated[
    bool,
    typer.Option(
        TRACEBACK,
        help="Print the traceback of an error in another package's method or dataset too. It may stand anywhere.",
        callback=_refer_to_traceback,
    ),
]
VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
]


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context, version: VersionOption = False, traceback: TracebackOption = False
) -> None:
    del version, traceback  # a callback has printed the one, and `main` has taken the other out
    if context.invoked_subcommand is None:
        print(GUIDE, end="")


def main() -> None:
    """Run the command line to its exit code; bad input ends with one line on stderr."""
    outputs = Outputs()
    with_traceback = TRACEBACK in sys.argv[1:]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != TRACEBACK]
    code = _run(with_traceback)
    lost = outputs.lost()
    # A verdict stays one, and a refusal too: only a success is none whose output nobody can read.
    if lost is not None and code == 0:
        code = _refuse(f"cannot write to standard output: {lost}; files of the command are written")
    sys.exit(code)


def _run(with_traceback: bool) -> int:
    """Run the command and return its exit code. No error of ours or of a library may end with that
    of a verdict.
    """
    try:
        with hear_interrupts():
            # Typer would end with 1 after an EOFError.
            code = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise Interrupted("interrupted")
        return int(code or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None and REFUSED)
    except (Interrupted, KeyboardInterrupt) as error:
        return _refuse(str(error) or "interrupted", INTERRUPTED)
    except MethodError as error:
        # Its cause is what failed inside the policies; of those of other processes only the line is
        # known.
        return (
            _refuse(str(error))
            if error.__cause__ is None
            else _refuse_plug_in(str(error), with_traceback)
        )
    except SkitError as error:
        return _refuse(str(error))
    except UsageError as error:
        return _refuse(usage_problem(error))
    except ModuleNotFoundError as error:
        if line := missing_module_line(error.name or ""):
            return _refuse(line)
        return _fail(error, with_traceback)
    except OSError as error:
        return _refuse(one_line(str(error)))
    except Exception as error:
        return _fail(error, with_traceback)


def _refuse(message: str, code: int = REFUSED) -> int:
    line = f"error: {message}"
    parts = wrapped(line, get_terminal_size().columns) if sys.stderr.isatty() else [line]
    print(*parts, sep="\n", file=sys.stderr)
    return code


def _fail(error: Exception, with_traceback: bool) -> int:
    """Say where the code of another package failed, in a line for its author; else admit a fault of
    the kit.
    """
    problem = plug_in_problem(error)
    return _admit_fault() if problem is None else _refuse_plug_in(problem, with_traceback)


def _refuse_plug_in(problem: str, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exc()
    return _refuse(problem if with_traceback else f"{problem}; {TRACEBACK} shows the way there")


def _admit_fault() -> int:
    traceback.print_exc()
    return _refuse("this is a fault of skit: please report it with the lines above", FAULT)
