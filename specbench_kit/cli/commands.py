"""Where each command is: its module is loaded when it is asked for, and until then its source tells its help."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "bench": "bench:bench",
    "rerun": "rerun:rerun",
    "serve": "serve:serve",
    "load": "load:load",
    "validate": "load:validate",
    "report": "report:report",
    "compare": "compare:compare",
    "import": "interchange:import_run",
    "export": "interchange:export_run",
    "record": "record:record",
    "train-predictor": "train_predictor:train_predictor",
    "train-head": "train_head:train_head",
    "profile-verifier": "profile_verifier:profile_verifier",
    "profile-drafter": "profile_drafter:profile_drafter",
    "profile-server": "profile_server:profile_server",
    "measure-ranks": "measure_ranks:measure_ranks",
    "sweep": "sweep:sweep",
    "tune": "tune:tune",
    "batch-sizes": "batch_sizes:batch_sizes",
    "simulate": "simulate:simulate",
    "capacity": "capacity:capacity",
    "reproduce": "reproduce:reproduce",
    "list": "listing:list_entries",
    "new": "new:new",
    "doctor": "doctor:doctor",
}
"""Modules beside this one and functions in them."""
WRONG_TYPE = "Input should be"
"""How messages begin that do not tell the input."""


class Quick:
    """No option that is left out is checked: the library that Typer does it with takes long to load."""

    def get_params(self, ctx: Any) -> Any:
        """Typer's own options too."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if not isinstance(one.process_value, partial):
                optional = not (one.required or one.nargs != 1 or getattr(one, "multiple", False))
                one.process_value = partial(_checked, one.process_value, optional)
        return found


def _checked(check: Callable[[Any, Any], Any], optional: bool, context: Any, value: Any) -> Any:
    if value is None and optional:
        return None
    try:
        return check(context, value)
    except typer.BadParameter as error:
        if error.message.startswith(WRONG_TYPE):
            error.message = f"{error.message.partition(',')[0]}, not '{value}'"
        raise


class Command(Quick, TyperCommand):
    """One command."""


class Commands(Quick, TyperGroup):
    """All commands by name; only the one that is run has its options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What help and completion show of it."""
        known = super().get_command(ctx, cmd_name)
        if known is not None and known.help is None:
            known.help = _help(cmd_name)
        return known

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """All that is said of each, which else would be cut at the line's end."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.get_command(ctx, name).help) for name in self.commands])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is run."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and load_command(known.name or ""), rest


def load_command(name: str) -> Any:
    """A command with its options, as Typer makes it of the function."""
    from specbench_kit.cli.config_file import configurable

    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(configurable(resolve_name(f"{__package__}.{COMMANDS[name]}")))
    return typer.main.get_command(alone)


def _help(name: str) -> str:
    """The first paragraph of the docstring, read without loading the module and all that its options need."""
    module, _, function = COMMANDS[name].partition(":")
    source = (files(__package__) / f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    return inspect.cleandoc(found[1]).partition("\n\n")[0] if found else ""
