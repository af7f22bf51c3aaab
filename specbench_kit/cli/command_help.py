"""The help of one command: the options that matter first with an example by --help, all options by --help-all."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench_kit.cli.command_option import CommandOption
from specbench_kit.core.option import DECODING, DEPLOYMENT, MODELS, OUTPUT, RUN, SERVER

PANELS = (RUN, MODELS, DECODING, DEPLOYMENT, SERVER, OUTPUT)
"""The headings that stand first, in this order; those of single commands follow."""
OTHER = "Other"
"""The heading of options that every command has."""
WIDEST = 100
"""Characters of a line on a wide terminal, since longer lines are hard to read."""


def first_options(parameters: Sequence[Any], options: Mapping[str, CommandOption], names: Sequence[str]) -> list[Any]:
    """Return the parameters with these option names, without dashes, in this order; all parameters for no names."""
    by_name = {
        options[parameter.name].option.shown_name(parameter.name).removeprefix("--"): parameter
        for parameter in parameters
        if parameter.name in options
    }
    return [by_name[name] for name in names] or list(parameters)


def help_lines(
    usage: Sequence[str],
    text: str,
    example: str,
    parameters: Sequence[Any],
    options: Mapping[str, CommandOption],
    left_out: int,
) -> Iterator[str]:
    """Yield the lines of a help that fit the terminal, and never cut a word.

    `left_out` is the number of options that only --help-all shows; then the others come in their given order, else
    under their headings.
    """
    from rich.text import Text

    from specbench_kit.reports.terminal_table import TerminalColumn, table_lines, wrapped_lines

    width = min(shutil.get_terminal_size().columns, WIDEST)
    yield from (line.plain for line in wrapped_lines(Text(" ".join(("Usage:", *usage))), width))
    for paragraph in text.split("\n\n"):
        yield ""
        yield from (line.plain for line in wrapped_lines(Text(paragraph), width, indent=""))
    if example:
        yield from ("", "Example:")
        yield from (f"  {line.plain}" for line in wrapped_lines(Text(example), width - 2))
    groups = {"Options that matter first": list(parameters)} if left_out else _by_panel(parameters, options)
    for heading, members in groups.items():
        yield from ("", f"{heading}:")
        names = [Text(f"  {_declaration(parameter, options)}") for parameter in members]
        meanings = [Text(_meaning(parameter)) for parameter in members]
        columns = [TerminalColumn(names, is_number=False), TerminalColumn(meanings, is_number=False)]
        yield from (line.plain for line in table_lines(columns, width))
    if left_out:
        yield from ("", f"--help-all shows {left_out} more options.")


def _by_panel(parameters: Sequence[Any], options: Mapping[str, CommandOption]) -> dict[str, list[Any]]:
    """Return the parameters by their headings: arguments, usual headings, those of the command, and the rest."""
    groups: dict[str, list[Any]] = {"Arguments": [], **{panel: [] for panel in PANELS}}
    for parameter in parameters:
        option = options[parameter.name].option if parameter.name in options else None
        heading = OTHER if option is None else "Arguments" if option.argument else option.panel or OTHER
        groups.setdefault(heading, []).append(parameter)
    groups[OTHER] = groups.pop(OTHER, [])
    return {heading: members for heading, members in groups.items() if members}


def _declaration(parameter: Any, options: Mapping[str, CommandOption]) -> str:
    """Return how a parameter is given: `--limit <integer>`, `--sample/--no-sample`, or an argument's name."""
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    names = [*parameter.opts, *parameter.secondary_opts]
    kind = options[parameter.name].value_name if parameter.name in options else "" if parameter.is_flag else "path"
    value = f" <{kind}>" if kind else ""
    return "/".join(sorted(names, key=lambda name: (name.startswith("--no-"), -len(name)))) + value


def _meaning(parameter: Any) -> str:
    default = getattr(parameter, "show_default", False)
    note = "required" if parameter.required else f"default: {default}" if isinstance(default, str) else ""
    return " ".join(filter(None, (parameter.help, note and f"[{note}]")))
