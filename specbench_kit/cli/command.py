"""Typer commands made of functions whose parameters are options or dataclasses of options.

`def bench(settings: Given[BenchSettings], sources: Sources, as_json: JsonOption = False)` gets every option of both
dataclasses and its own. A dataclass parameter is constructed from the options that were given; `Given[...]` leaves
that to the function, for a dataclass which takes more than options.

Every command takes `--config options.toml`, options from a file, and `--save-config`, which writes
such a file. Of its help, `--help` shows the options that matter with an example, `--help-all` all,
and `--help=TEXT` those with the text.
"""

import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, is_dataclass, make_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tomli_w
import typer
from typer.core import TyperCommand

from specbench_kit.cli.command_option import CommandOption
from specbench_kit.cli.usage import UsageError, usage_problem
from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.option import (
    DECODING,
    DEPLOYMENT,
    MODELS,
    OUTPUT,
    RUN,
    SERVER,
    Given,
    Option,
    OptionValues,
    options_in,
    select_fields,
)
from specbench_kit.core.plain_text import one_line
from specbench_kit.core.without_effect import refuse_without_effect
from specbench_kit.runs.folder import write_text

USER_SOURCES = ("COMMANDLINE", "DEFAULT_MAP")
"""Names of Typer's parameter sources for values that the user gave."""
PRESETS = Path(__file__).with_name("presets")
"""Option files that ship with the kit and are given by name, such as the sampling settings of
papers.
"""
NOT_IN_FILES = ("config", "save_config", "help", "help_all")


def apply_config(context: typer.Context, path: Path | str | None) -> Path | str | None:
    """Make the values of an option file the defaults of the command: Typer calls this when it meets
    --config.
    """
    if path is not None and not context.resilient_parsing:
        parameters = {_option_name(parameter): parameter for parameter in context.command.params}
        context.default_map = dict(read_options(Path(path), parameters))
    return path


CONFIG_FIELDS = [
    (
        "config",
        Path,
        typer.Option(
            None,
            help="TOML file with options such as batch_size = 8, or a bundled one by name: first-run and known-pair "
            "(those of `make bench`), or the sampling settings of a paper, specpipe-sampling and specedge-sampling. "
            "Options on the command line take precedence.",
            callback=apply_config,
            is_eager=True,
        ),
    ),
    (
        "save_config",
        Path,
        typer.Option(None, help="Write the given options to a file for --config, then run."),
    ),
]
"""Names, types and declarations of the two options that every command takes."""


def save_config(path: Path, context: typer.Context) -> None:
    """Write the options that the command line or a file gave, by their names."""
    names = {str(parameter.name): _option_name(parameter) for parameter in context.command.params}
    options = {
        names[name]: _toml_value(value)
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name))
        and source.name in USER_SOURCES
        and names[name] not in NOT_IN_FILES
    }
    write_text(path, tomli_w.dumps(options))


def read_options(path: Path, parameters: Mapping[str, Any]) -> OptionValues:
    """Return the values of an option file by the names of Typer's parameters; `parameters` maps
    option names to them.

    Raise SkitError for a file that is not TOML, for unknown options and for values of another kind.
    """
    bundled = PRESETS / f"{path}.toml"
    path = bundled if path.parent == Path() and bundled.is_file() else path
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SkitError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise SkitError(
            f"cannot read {path}: {error.strerror}; --config takes a TOML file of options"
        ) from None
    options = {
        name: parameter for name, parameter in parameters.items() if name not in NOT_IN_FILES
    }
    values: dict[str, object] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in options:
            hint = did_you_mean(name, options) or f"; known: {', '.join(sorted(options))}"
            raise SkitError(f"{path}: unknown option '{key}'{hint}")
        values[options[name].name] = _checked_value(f"{path}: {key}", value, options[name])
    return values


def _option_name(parameter: Any) -> str:
    """Return the long name of an option, or the name of an argument, as keys of files spell it."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return (max(flags, key=len)[2:] if flags else str(parameter.name)).replace("-", "_")


def _toml_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_toml_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _checked_value(where: str, value: object, parameter: Any) -> object:
    """Return a list for an option of several values, else one value; true and false are for
    switches alone.
    """
    several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not several:
        raise SkitError(f"{where} takes one value, not a list")
    switch = getattr(parameter, "is_flag", False)
    for item in values:
        if isinstance(item, dict | list):
            raise SkitError(f"{where} must be a text, a number, true or false")
        if isinstance(item, bool) is not switch:
            raise SkitError(
                f"{where} must be {'true or false' if switch else 'a text or a number'}, not {item!r}"
            )
    return values if several else value


PANELS = (RUN, MODELS, DECODING, DEPLOYMENT, SERVER, OUTPUT)
"""The headings that stand first, in this order; those of single commands follow."""
OTHER = "Other"
"""The heading of options that every command has."""
WIDEST = 100
"""Characters of a line on a wide terminal, since longer lines are hard to read."""


MANY_OPTIONS = 15
"""Options from which the help of a command shows those that matter first."""


def first_options(parameters: Sequence[Any], options: Mapping[str, CommandOption]) -> list[Any]:
    """Return the parameters of a command with many that matter first: what is required, then the
    others in the order of their headings. Of any other command return all parameters.
    """
    if len(parameters) < MANY_OPTIONS:
        return list(parameters)
    by_heading = [one for members in _by_panel(parameters, options).values() for one in members]
    first = [one for one in by_heading if one.name in options and options[one.name].option.first]
    return sorted(first, key=lambda one: not one.required)


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

    from specbench_kit.reports.terminal_table import wrapped_lines

    width = min(shutil.get_terminal_size().columns, WIDEST)
    yield from (line.plain for line in wrapped_lines(Text(" ".join(("Usage:", *usage))), width))
    for paragraph in text.split("\n\n"):
        yield ""
        yield from (line.plain for line in wrapped_lines(Text(paragraph), width, indent=""))
    if example:
        yield from ("", "Example:")
        yield from (f"  {line.plain}" for line in wrapped_lines(Text(example), width - 2))
    groups = (
        {"Options that matter first": list(parameters)}
        if left_out
        else _by_panel(parameters, options)
    )
    for heading, members in groups.items():
        yield from ("", *_option_lines(heading, members, options, width))
    if left_out:
        line = f"--help-all shows {left_out} more options, and --help=TEXT those on a subject, as in --help=output."
        yield from ("", *(part.plain for part in wrapped_lines(Text(line), width, indent="")))


def matching_lines(
    text: str, parameters: Sequence[Any], options: Mapping[str, CommandOption]
) -> Iterator[str]:
    """Yield the lines of those options whose heading, name or meaning has the text, in any case;
    nothing for none.
    """
    sought, width = text.casefold(), min(shutil.get_terminal_size().columns, WIDEST)
    for heading, members in _by_panel(parameters, options).items():
        matching = []
        for parameter in members:
            texts = (heading, *parameter.opts, _meaning(parameter))
            if any(sought in part.casefold() for part in texts):
                matching.append(parameter)
        if matching:
            yield from _option_lines(heading, matching, options, width)


def _option_lines(
    heading: str, parameters: Sequence[Any], options: Mapping[str, CommandOption], width: int
) -> Iterator[str]:
    """Yield a heading and, below it, how each option is given beside what it means."""
    from rich.text import Text

    from specbench_kit.reports.terminal_table import TerminalColumn, table_lines

    yield f"{heading}:"
    names = [Text(f"  {_declaration(parameter, options)}") for parameter in parameters]
    meanings = [Text(_meaning(parameter)) for parameter in parameters]
    columns = [TerminalColumn(names, is_number=False), TerminalColumn(meanings, is_number=False)]
    yield from (line.plain for line in table_lines(columns, width))


def _by_panel(
    parameters: Sequence[Any], options: Mapping[str, CommandOption]
) -> dict[str, list[Any]]:
    """Return the parameters by their headings: arguments, usual headings, those of the command, and
    the rest.
    """
    groups: dict[str, list[Any]] = {"Arguments": [], **{panel: [] for panel in PANELS}}
    for parameter in parameters:
        option = options[parameter.name].option if parameter.name in options else None
        heading = (
            OTHER if option is None else "Arguments" if option.argument else option.panel or OTHER
        )
        groups.setdefault(heading, []).append(parameter)
    groups[OTHER] = groups.pop(OTHER, [])
    return {heading: members for heading, members in groups.items() if members}


def _declaration(parameter: Any, options: Mapping[str, CommandOption]) -> str:
    """Return how a parameter is given: `--limit <integer>`, `--sample/--no-sample`, or an
    argument's name.
    """
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    names = [*parameter.opts, *parameter.secondary_opts]
    kind = (
        options[parameter.name].value_name
        if parameter.name in options
        else ""
        if parameter.is_flag
        else "path"
    )
    value = f" <{kind}>" if kind else ""
    return "/".join(sorted(names, key=lambda name: (name.startswith("--no-"), -len(name)))) + value


def _meaning(parameter: Any) -> str:
    default = getattr(parameter, "show_default", False)
    note = (
        "required"
        if parameter.required
        else f"default: {default}"
        if isinstance(default, str)
        else ""
    )
    return " ".join(filter(None, (parameter.help, note and f"[{note}]")))


WITHOUT_INPUT = "Input should be"
"""The beginning of those messages about a bad value that do not quote the value."""

HELP_ON = "--help="
"""The beginning of an argument that asks for the options on a subject."""


def _show_all(context: typer.Context, requested: bool | None) -> None:
    """Print the help with all options and end the command: Typer calls this when it meets
    --help-all.
    """
    if requested and isinstance(context.command, Command):
        formatter = context.make_formatter()
        context.command.write_help(context, formatter)
        print(formatter.getvalue(), end="")
        raise typer.Exit


HELP_ALL_FIELD = (
    "help_all",
    bool,
    typer.Option(
        None, "--help-all", help="Show all options and exit.", callback=_show_all, is_eager=True
    ),
)
"""Name, type and declaration of the option that shows all others."""


class Command(TyperCommand):
    """A command that runs `function` with its options, and takes --config and --save-config
    besides.

    Its help shows the options that are marked as `FIRST` and the `example`; --help-all shows all
    options, and --help=TEXT those whose heading, name or meaning has the text.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        help_text: str,
        example: str = "",
    ) -> None:
        self.function = function
        self.example = example
        self.options = {option.name: option for option in options_of(function)}
        super().__init__(name, params=_parameters(self.options.values()), help=help_text)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the options that matter first."""
        self.write_help(ctx, formatter, first_options(self.get_params(ctx), self.options))

    def write_help(self, ctx: Any, formatter: Any, shown: Sequence[Any] = ()) -> None:
        """Write the help with these parameters, or with all of them if none are given."""
        parameters = self.get_params(ctx)
        shown = shown or parameters
        usage = [ctx.command_path, *self.collect_usage_pieces(ctx)]
        lines = help_lines(
            usage, self.help or "", self.example, shown, self.options, len(parameters) - len(shown)
        )
        formatter.write("".join(f"{line}\n" for line in lines))

    def _show_matching(self, ctx: Any, text: str) -> None:
        """Print the options whose heading, name or meaning has the text, and end the command."""
        lines = list(matching_lines(text, self.get_params(ctx), self.options))
        if not lines:
            raise SkitError(
                f"skit {self.name} --help={one_line(text)}: no option has this text; --help-all shows all"
            )
        print(*lines, sep="\n")
        raise typer.Exit

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Process the parameters that were given and leave the others at None.

        Typer would convert None too, and imports pydantic for that: `skit list` would take half as
        long again.
        """
        if (
            ctx.resilient_parsing
        ):  # completion needs private state that only Typer's own method sets
            return super().parse_args(ctx, args)
        for argument in args:
            if argument.startswith(HELP_ON):
                self._show_matching(ctx, argument.removeprefix(HELP_ON))
        try:
            return self._parsed(ctx, args)
        except UsageError as error:
            advice = (
                f"for example: {self.example}"
                if self.example
                else f"skit {self.name} --help shows its options"
            )
            raise SkitError(f"skit {self.name}: {usage_problem(error)}; {advice}") from error

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        values, extra, order = self.make_parser(ctx).parse_args(args=args)
        # Eager parameters go first: --help ends the command, and --config provides values for those
        # that follow.
        position = {id(parameter): number for number, parameter in enumerate(order)}
        parameters = sorted(
            self.get_params(ctx), key=lambda p: (not p.is_eager, position.get(id(p), len(order)))
        )
        for parameter in parameters:
            value, source = parameter.consume_value(ctx, values)
            if value is None and not parameter.required:
                ctx.params[parameter.name] = None
                ctx.set_parameter_source(parameter.name, source)
                continue
            try:
                parameter.handle_parse_result(ctx, values, extra)
            except typer.BadParameter as error:
                if error.message.startswith(WITHOUT_INPUT):
                    error.message = f"{error.message.partition(',')[0]}, not '{value}'"
                raise
        if extra:
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(map(one_line, extra))})")
        ctx.args = extra
        return extra

    def given_values(self, ctx: Any) -> OptionValues:
        """Return the values of the given options by their names; raise SkitError for options
        without effect.
        """
        values = {
            name: option.read(ctx.params[name])
            for name, option in self.options.items()
            if ctx.params[name] is not None
        }
        options = {name: option.option for name, option in self.options.items()}
        refuse_without_effect(
            options, values, lambda name, value: self.options[name].written(value)
        )
        return values

    def invoke(self, ctx: Any) -> None:
        """Save the options if --save-config asks for it, then run the function."""
        if ctx.params["save_config"] is not None:
            save_config(Path(ctx.params["save_config"]), ctx)
        values = self.given_values(ctx)
        arguments: dict[str, object] = {}
        for name, kind, _ in _parameters_of(self.function):
            if get_origin(kind) is Given:
                settings = get_args(kind)[0]
                arguments[name] = Given(settings, select_fields(settings, values))
            elif isinstance(kind, type) and is_dataclass(kind):
                arguments[name] = kind(**select_fields(kind, values))
            elif name in values:
                arguments[name] = values[name]
        try:
            self.function(**arguments)
        except OSError as error:
            # A broken pipe, such as that of a lost server, would otherwise end in Typer, with 1.
            raise SkitError(str(error)) from error


def _parameters_of(function: Callable[..., None]) -> Iterator[tuple[str, Any, Sequence[object]]]:
    """Yield the name and the type of each parameter, and what stands beside the type."""
    for name, kind in get_type_hints(function, include_extras=True).items():
        if name != "return":
            bare, *metadata = get_args(kind) if get_origin(kind) is Annotated else (kind,)
            yield name, bare, metadata


def options_of(function: Callable[..., None]) -> Iterator[CommandOption]:
    """Yield the options of a command in the order of its parameters and of their fields."""
    defaults = {
        name: parameter.default for name, parameter in signature(function).parameters.items()
    }
    for name, kind, metadata in _parameters_of(function):
        for own in (mark for mark in metadata if isinstance(mark, Option)):
            required = defaults[name] is Parameter.empty
            option, default = own.beside(name, metadata), MISSING if required else defaults[name]
            yield CommandOption(name, kind, option, default)
        settings = get_args(kind)[0] if get_origin(kind) is Given else kind
        if not (isinstance(settings, type) and is_dataclass(settings)):
            continue
        for option_field, option_type, option in options_in(settings):
            required = option_field.default is MISSING and option_field.default_factory is MISSING
            yield CommandOption(
                option_field.name,
                option_type,
                option.beside(option_field.name, metadata),
                MISSING if required else option_field.default,
            )


def _parameters(options: Iterable[CommandOption]) -> list[Any]:
    """Return Typer's parameters for these options and for --config and --save-config.

    Typer reads parameters from the signature of a callable. That of a dataclass is made of its
    fields.
    """
    typer_fields = [option.typer_field() for option in options]
    form = make_dataclass("Options", [*typer_fields, *CONFIG_FIELDS, HELP_ALL_FIELD], kw_only=True)
    app = typer.Typer(add_completion=False)
    app.command()(form)
    return typer.main.get_command(app).params
