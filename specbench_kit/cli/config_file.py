"""`--config options.toml`: options of a command from a file, which `--save-config` writes."""

import tomllib
from collections.abc import Mapping
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer

from specbench_kit.cli.declared import Command, with_signature
from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.runs.folder import write_text

GIVEN = ("COMMANDLINE", "DEFAULT_MAP")
"""Where the value of an option comes from that a user gave."""
PRESETS = Path(__file__).with_name("presets")
"""Files that ship with the kit and go by their names: how papers sample."""
NEVER = ("config", "save_config", "help")


def configurable(command: Command) -> Command:
    """The command with options --config and --save-config."""

    @wraps(command)
    def run(
        *, command_line: typer.Context, config: Path | None = None, save_config: Path | None = None, **values: Any
    ) -> None:
        del config  # read when it was met, before all other options
        if save_config is not None:
            _save(save_config, command_line)
        command(**values)

    read = typer.Option(
        help="A TOML file of options by their names, as in batch_size = 8; the command line goes before it. Or what a "
        "paper samples with: specpipe-sampling, specedge-sampling.",
        callback=_take,
        is_eager=True,
    )
    written = typer.Option(help="Write the options that were given as a file for --config, then go on.")
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, asked])
        for name, asked in (("config", read), ("save_config", written))
    ]
    told = Parameter("command_line", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    with_signature(run, [told, *signature(command).parameters.values(), *more])
    return run


def _save(path: Path, context: typer.Context) -> None:
    """What the command line or a file gave, by the options' names."""
    names = {str(one.name): _name(one) for one in context.command.params}
    given = {
        names[name]: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) and source.name in GIVEN and names[name] not in NEVER
    }
    write_text(path, tomli_w.dumps({name: _plain(value) for name, value in given.items()}))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _take(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None and not context.resilient_parsing:
        context.default_map = read_options(path, {_name(one): one for one in context.command.params})
    return path


def read_options(path: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file by the parameters that they are for; `known` are those of the command by option."""
    bundled = PRESETS / f"{path}.toml"
    path = bundled if path.parent == Path() and bundled.is_file() else path
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SkitError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}; --config takes a TOML file of options") from None
    options = {name: one for name, one in known.items() if name not in NEVER}
    values: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in options:
            raise SkitError(f"{path}: unknown option '{key}'{_hint(name, options)}")
        values[options[name].name] = _checked(f"{path}: {key}", value, options[name])
    return values


def _name(parameter: Any) -> str:
    """An option's long name, or an argument's own."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return (max(flags, key=len)[2:] if flags else str(parameter.name)).replace("-", "_")


def _hint(name: str, options: Mapping[str, Any]) -> str:
    return did_you_mean(name, options) or f"; known: {', '.join(sorted(options))}"


def _checked(where: str, value: Any, parameter: Any) -> Any:
    """A list for an option that takes several, else one value; yes and no for a switch alone."""
    several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not several:
        raise SkitError(f"{where} takes one value, not a list")
    switch = getattr(parameter, "is_flag", False)
    for one in values:
        if isinstance(one, dict | list):
            raise SkitError(f"{where} must be a text, a number, true or false")
        if isinstance(one, bool) is not switch:
            raise SkitError(f"{where} must be {'true or false' if switch else 'a text or a number'}, not {one!r}")
    return values if several else value
