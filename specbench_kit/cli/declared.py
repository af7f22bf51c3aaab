"""Commands whose options are the fields of settings, where each is declared once."""

from collections.abc import Callable
from dataclasses import MISSING, Field
from functools import wraps
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Given, Option, declared_in, part

__all__ = ["Given", "options_of", "part"]

Command = Callable[..., None]


def options_of(*settings: type) -> Callable[[Command], Command]:
    """Decorator: a command takes the options of these dataclasses besides its own.

    It gets those that were given in its first argument, by the fields' names and with their types.
    """
    declared = {field.name: (field, kind, option) for one in settings for field, kind, option in declared_in(one)}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> None:
            found = {name: values.pop(name) for name in declared}
            given = {
                name: _read(name, *declared[name][1:], value) for name, value in found.items() if value is not None
            }
            command(given, **values)

        own = list(signature(command).parameters.values())[1:]
        with_signature(run, [*(_parameter(*one) for one in declared.values()), *own])
        return run

    return decorate


def with_signature(command: Command, parameters: list[Parameter]) -> None:
    """Let a command be taken to have these parameters, all of them by name."""
    named = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = signature(command).replace(parameters=named)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in named}


def _parameter(field: Field[Any], kind: Any, option: Option) -> Parameter:
    """Nothing is its default, so that what is given is known; what the field's default is, the help says."""
    required = field.default is MISSING and field.default_factory is MISSING
    given = _given(kind, option)
    asked = _asked_by_place(option) if option.argument else _asked_by_name(field, kind, option)
    annotation = Annotated[given if required else given | None, asked]  # type: ignore[valid-type]
    return Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=Parameter.empty if required else None, annotation=annotation
    )


def _asked_by_place(option: Option) -> Any:
    return typer.Argument(help=option.help, show_default=False)


def _asked_by_name(field: Field[Any], kind: Any, option: Option) -> Any:
    flag = f"--{(option.flag or field.name).replace('_', '-')}"
    two_way = kind is bool and field.default is True
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if two_way else flag,
        help=option.help,
        show_default=_words(field.default, flag),
        rich_help_panel=option.panel or None,
    )


def _given(kind: Any, option: Option) -> Any:
    """What the command line holds for a field."""
    (inner,) = (one for one in get_args(kind) if one is not NoneType) if NoneType in get_args(kind) else (kind,)
    if option.parse is not None or get_origin(inner) is Literal:
        return str
    if get_origin(inner) is tuple:
        return list[get_args(inner)[0]]  # type: ignore[misc]
    return inner


def _read(name: str, kind: Any, option: Option, value: Any) -> Any:
    if option.parse is not None:
        return option.parse(value)
    if get_origin(kind) is Literal and value not in get_args(kind):
        shown = name if option.argument else f"--{name}"
        raise SkitError(f"{shown} must be {' or '.join(get_args(kind))}, not '{value}'")
    return tuple(value) if isinstance(value, list) else value


def _words(default: Any, flag: str) -> str | bool:
    """A default as it would be given; False where there is none to tell."""
    if isinstance(default, tuple):
        return ",".join(str(_words(one, flag)) for one in default) or False
    if default is None or default is MISSING or default is False or default == "":
        return False
    if default is True:
        return flag[2:]
    return f"{default:g}" if isinstance(default, float) else str(default)
