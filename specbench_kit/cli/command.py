"""Typer commands made of functions whose parameters are options or dataclasses of options.

`def bench(settings: Given[BenchSettings], sources: Sources, as_json: JsonOption = False)` gets every option of both
dataclasses and its own. A dataclass parameter is constructed from the options that were given; `Given[...]` leaves
that to the function, for a dataclass which takes more than options.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, is_dataclass, make_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from specbench_kit.cli.command_option import CommandOption
from specbench_kit.cli.config_file import CONFIG_FIELDS, save_config
from specbench_kit.cli.usage import UsageError, usage_problem
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Given, options_in, select_fields
from specbench_kit.core.plain_text import one_line
from specbench_kit.core.without_effect import refuse_without_effect
from specbench_kit.studies.without_effect import RULES

WITHOUT_INPUT = "Input should be"
"""The beginning of those messages about a bad value that do not quote the value."""


def _show_all(context: typer.Context, requested: bool | None) -> None:
    """Print the help with all options and end the command: Typer calls this when it meets --help-all."""
    if requested and isinstance(context.command, Command):
        formatter = context.make_formatter()
        context.command.write_help(context, formatter, ())
        print(formatter.getvalue(), end="")
        raise typer.Exit


HELP_ALL_FIELD = (
    "help_all",
    bool,
    typer.Option(None, "--help-all", help="Show all options and exit.", callback=_show_all, is_eager=True),
)
"""Name, type and declaration of the option that shows all others."""


class Command(TyperCommand):
    """A command that runs `function` with its options, and takes --config and --save-config besides.

    Its help shows the options named in `first` and the `example`, and all options with --help-all.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., None],
        help_text: str,
        example: str = "",
        first: Sequence[str] = (),
    ) -> None:
        self.function = function
        self.example = example
        self.first = first
        self.options = {option.name: option for option in _options_of(function)}
        super().__init__(name, params=_parameters(self.options.values()), help=help_text)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the options that matter first or with all of them."""
        self.write_help(ctx, formatter, self.first)

    def write_help(self, ctx: Any, formatter: Any, first: Sequence[str]) -> None:
        """Write the help with the options of these names, or with all options if there are no names."""
        from specbench_kit.cli.command_help import first_options, help_lines

        parameters = self.get_params(ctx)
        shown = first_options(parameters, self.options, first)
        usage = [ctx.command_path, *self.collect_usage_pieces(ctx)]
        lines = help_lines(usage, self.help or "", self.example, shown, self.options, len(parameters) - len(shown))
        formatter.write("".join(f"{line}\n" for line in lines))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Process the parameters that were given and leave the others at None.

        Typer would convert None too, and imports pydantic for that: `skit list` would take half as long again.
        """
        if ctx.resilient_parsing:  # completion needs private state that only Typer's own method sets
            return super().parse_args(ctx, args)
        try:
            return self._parsed(ctx, args)
        except UsageError as error:
            advice = f"for example: {self.example}" if self.example else f"skit {self.name} --help shows its options"
            raise SkitError(f"skit {self.name}: {usage_problem(error)}; {advice}") from error

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        values, extra, order = self.make_parser(ctx).parse_args(args=args)
        # Eager parameters go first: --help ends the command, and --config provides values for those that follow.
        position = {id(parameter): number for number, parameter in enumerate(order)}
        parameters = sorted(self.get_params(ctx), key=lambda p: (not p.is_eager, position.get(id(p), len(order))))
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

    def given_values(self, ctx: Any) -> dict[str, object]:
        """Return the values of the given options by their names; raise SkitError for options without effect."""
        values = {
            name: option.read(ctx.params[name]) for name, option in self.options.items() if ctx.params[name] is not None
        }
        rules = RULES.get(self.name or "", ())
        refuse_without_effect(rules, values, lambda name, value: self.options[name].written(value))
        return values

    def invoke(self, ctx: Any) -> None:
        """Save the options if --save-config asks for it, then run the function."""
        if ctx.params["save_config"] is not None:
            save_config(Path(ctx.params["save_config"]), ctx)
        values = self.given_values(ctx)
        arguments: dict[str, object] = {}
        for name, kind in _parameter_types(self.function).items():
            if get_origin(kind) is Given:
                settings = get_args(kind)[0]
                arguments[name] = Given(settings, select_fields(settings, values))
            elif isinstance(kind, type) and is_dataclass(kind):
                arguments[name] = kind(**select_fields(kind, values))
            elif name in values:
                arguments[name] = values[name]
        self.function(**arguments)


def _parameter_types(function: Callable[..., None]) -> dict[str, Any]:
    hints = get_type_hints(function, include_extras=True)
    return {name: kind for name, kind in hints.items() if name != "return"}


def _options_of(function: Callable[..., None]) -> Iterator[CommandOption]:
    """Yield the options of a command in the order of its parameters and of their fields."""
    defaults = {name: parameter.default for name, parameter in signature(function).parameters.items()}
    for name, kind in _parameter_types(function).items():
        if get_origin(kind) is Annotated:
            option_type, option = get_args(kind)
            required = defaults[name] is Parameter.empty
            yield CommandOption(name, option_type, option, MISSING if required else defaults[name])
            continue
        settings = get_args(kind)[0] if get_origin(kind) is Given else kind
        for option_field, option_type, option in options_in(settings):
            required = option_field.default is MISSING and option_field.default_factory is MISSING
            yield CommandOption(option_field.name, option_type, option, MISSING if required else option_field.default)


def _parameters(options: Iterable[CommandOption]) -> list[Any]:
    """Return Typer's parameters for these options and for --config and --save-config.

    Typer reads parameters from the signature of a callable. That of a dataclass is made of its fields.
    """
    typer_fields = [option.typer_field() for option in options]
    form = make_dataclass("Options", [*typer_fields, *CONFIG_FIELDS, HELP_ALL_FIELD], kw_only=True)
    app = typer.Typer(add_completion=False)
    app.command()(form)
    return typer.main.get_command(app).params
