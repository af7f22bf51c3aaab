"""`skit new`: a package of your own to start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOptions:
    """The kind and name of the plug-in, and the folder for its package."""

    kind: Annotated[Literal["method"], Option("Kind of plug-in: method.", argument=True)]
    name: Annotated[str, Option("Name of the plug-in.", argument=True)]
    out: Annotated[Path, Option("Folder in which the package's folder is created.")] = Path(".")


def new(options: NewOptions) -> None:
    """Write the package and print the next steps."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.cli.scaffold import new_method

    console = Console()
    folder = new_method(options.name, options.out)
    for file in sorted(folder.iterdir()):
        say(console, f"written: {file}")
    say(console, f"next: pip install --editable {folder}")
    say(console, f"then: pytest {folder}; skit bench --method {options.name} --method fixed-k --limit 20")
