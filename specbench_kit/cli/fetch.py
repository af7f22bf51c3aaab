"""`skit fetch`: download a named pair of real models."""

from dataclasses import dataclass
from typing import Annotated

from specbench_kit.core.option import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """The pair to fetch."""

    name: Annotated[
        str,
        Option("Name of the pair from `skit list models`, such as qwen2.5-coder.", argument=True),
    ]


def fetch(options: FetchOptions) -> None:
    """Download the models of a named pair, convert GGUF files to bf16, and say how to use the
    pair.
    """
    from rich.console import Console

    from specbench_kit.cli.common import say
    from specbench_kit.cli.interrupts import kept_when_interrupted
    from specbench_kit.cli.progress import download_bar
    from specbench_kit.core.errors import did_you_mean, require
    from specbench_kit.models.fetching import fetch as download
    from specbench_kit.models.named import NAMED_PAIRS

    hint = did_you_mean(options.name, NAMED_PAIRS)
    require(
        options.name in NAMED_PAIRS,
        f"unknown model '{options.name}'{hint}; known: {', '.join(NAMED_PAIRS)}",
    )
    pair = NAMED_PAIRS[options.name]
    console = Console()
    kept = "what was downloaded is kept, and the same command continues"
    with kept_when_interrupted(lambda: kept), download_bar() as report:
        folders = download(pair, lambda step: say(console, step), report)
    for model, folder in zip(pair.models, folders, strict=True):
        say(console, f"{model.title}: {folder}")
    say(
        console,
        f"next: skit bench --target {pair.name} --method {'fixed-k' if pair.draft else 'suffix'} --limit 6",
    )
