"""`skit new`: something of one's own to start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """What is written, and where to."""

    kind: Annotated[Literal["method"], Option("What it is: method.", argument=True)]
    name: Annotated[str, Option("What it is called.", argument=True)]
    out: Annotated[Path, Option("Folder that its own folder is made in.")] = Path(".")


def new(asked: New) -> None:
    """Write a package with a method of your own, and its test: install it, and every command knows it."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.cli.scaffold import new_method

    console = Console()
    folder = new_method(asked.name, asked.out)
    for file in sorted(folder.iterdir()):
        say(console, f"written: {file}")
    say(console, f"next: pip install --editable {folder}")
    say(console, f"then: pytest {folder}; skit bench --method {asked.name} --method fixed-k --limit 20")
