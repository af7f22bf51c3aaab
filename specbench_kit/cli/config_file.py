"""`--config options.toml`: options of a command from a file, and `--save-config`, which writes such a file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import typer

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.runs.folder import write_text

USER_SOURCES = ("COMMANDLINE", "DEFAULT_MAP")
"""Names of Typer's parameter sources for values that the user gave."""
PRESETS = Path(__file__).with_name("presets")
"""Option files that ship with the kit and are given by name, such as the sampling settings of papers."""
NOT_IN_FILES = ("config", "save_config", "help", "help_all")


def apply_config(context: typer.Context, path: Path | str | None) -> Path | str | None:
    """Make the values of an option file the defaults of the command: Typer calls this when it meets --config."""
    if path is not None and not context.resilient_parsing:
        parameters = {_option_name(parameter): parameter for parameter in context.command.params}
        context.default_map = read_options(Path(path), parameters)
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
    ("save_config", Path, typer.Option(None, help="Write the given options to a file for --config, then run.")),
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


def read_options(path: Path, parameters: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of an option file by the names of Typer's parameters; `parameters` maps option names to them.

    Raise SkitError for a file that is not TOML, for unknown options and for values of another kind.
    """
    bundled = PRESETS / f"{path}.toml"
    path = bundled if path.parent == Path() and bundled.is_file() else path
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SkitError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}; --config takes a TOML file of options") from None
    options = {name: parameter for name, parameter in parameters.items() if name not in NOT_IN_FILES}
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
    """Return a list for an option of several values, else one value; true and false are for switches alone."""
    several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not several:
        raise SkitError(f"{where} takes one value, not a list")
    switch = getattr(parameter, "is_flag", False)
    for item in values:
        if isinstance(item, dict | list):
            raise SkitError(f"{where} must be a text, a number, true or false")
        if isinstance(item, bool) is not switch:
            raise SkitError(f"{where} must be {'true or false' if switch else 'a text or a number'}, not {item!r}")
    return values if several else value
