"""One option of a command, as Typer declares it, as its help shows it, and as a shell completes its
values.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import GenericAlias
from typing import Literal, get_args, get_origin

import typer

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Option, inner_type

VALUE_NAMES: Mapping[object, str] = {bool: "", int: "integer", float: "number", Path: "path"}
"""What the help calls values of these types; others are texts."""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option of a command: its parameter name, type, metadata and default (MISSING if it is
    required).
    """

    name: str
    type: object
    option: Option
    default: object

    @property
    def value_name(self) -> str:
        """What the help calls a value: two choices or its kind; empty for a switch."""
        kind = inner_type(self.type)
        if get_origin(kind) is Literal and len(get_args(kind)) == 2:
            return "|".join(get_args(kind))
        if self.option.parse is None and get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        return VALUE_NAMES.get(kind, "text")

    def typer_field(self) -> tuple[str, object, object]:
        """Return the name, type and declaration of the Typer parameter.

        Its default is None, so that options which were given can be told from the others; the help
        shows the default.
        """
        kind = inner_type(self.type)
        if self.option.parse is not None or get_origin(kind) is Literal:
            kind = str
        elif get_origin(kind) is tuple:
            kind = GenericAlias(list, get_args(kind)[:1])
        default = ... if self.default is MISSING else None
        if self.option.argument:
            completer = completer_of(self.name)
            argument = typer.Argument(
                default, help=self.option.help, show_default=False, autocompletion=completer
            )
            return self.name, kind, argument
        flag = self.option.shown_name(self.name)
        switch = f"{flag}/--no-{flag[2:]}" if self.type is bool and self.default is True else flag
        declaration = typer.Option(
            default,
            switch,
            help=self.option.help,
            show_default=_shown_default(self.default, flag),
            rich_help_panel=self.option.panel or None,
            autocompletion=completer_of(flag),
        )
        return self.name, kind, declaration

    def written(self, value: object) -> str:
        """Return how the option is written to get this value, without the value: `--limit` or
        `--no-sample`.
        """
        flag = self.option.shown_name(self.name)
        return f"--no-{flag[2:]}" if value is False and self.default is True else flag

    def read(self, value: object) -> object:
        """Return the field's value for the one that Typer read from the command line or a file."""
        if self.option.parse is not None and isinstance(value, str):
            return self.option.parse(value)
        choices = get_args(self.type)
        if get_origin(self.type) is Literal and value not in choices:
            raise SkitError(
                f"{self.option.shown_name(self.name)} must be {' or '.join(choices)}, not '{value}'"
            )
        kind = inner_type(self.type)
        if isinstance(value, list | tuple):
            element = get_args(kind)[0] if get_origin(kind) is tuple else None
            return tuple(_as_path(part) if element is Path else part for part in value)
        return _as_path(value) if kind is Path else value


def _as_path(value: object) -> object:
    """Return the path for its text: before version 0.29 Typer made paths only for functions that it
    calls itself.
    """
    return Path(value) if isinstance(value, str) else value


def _shown_default(default: object, flag: str) -> str | bool:
    """Return a default as it would be written on the command line, or False if there is none to
    show.
    """
    if isinstance(default, tuple):
        return ",".join(str(_shown_default(value, flag)) for value in default) or False
    if default is None or default is MISSING or default is False or default == "":
        return False
    if default is True:
        return flag[2:]
    return f"{default:g}" if isinstance(default, float) else str(default)


KIND_OF: Mapping[str, str] = {
    "--method": "methods",
    "--dataset": "datasets",
    "--deployment": "deployments",
    "--target": "models",
    "--draft": "models",
    "--replay": "traces",
    "--trace": "traces",
    "--system": "systems",
    "--scheduler": "schedulers",
    "--router": "routers",
    "--preset": "presets",
    "--software": "software",
    "--profile": "profiles",
    "--estimator-profile": "profiles",
    "names": "experiments",
    "kind": "kinds",
}
"""What `skit list` calls the names that an option or an argument takes."""

Completer = Callable[[str], list[tuple[str, str]]]


def completer_of(shown_name: str) -> Completer | None:
    """Return the function that completes an option's value; None for options that take no names."""
    if shown_name not in KIND_OF:
        return None

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [
            (name, summary)
            for name, summary in _names(KIND_OF[shown_name])
            if name.startswith(incomplete)
        ]

    return complete


def _names(kind: str) -> list[tuple[str, str]]:
    """Return names with what they stand for."""
    from specbench_kit.cli.listing import kinds

    if kind == "kinds":
        return [(name, "") for name in kinds()]
    return [(str(entry["name"]), str(entry["summary"])) for entry in kinds()[kind]()]
