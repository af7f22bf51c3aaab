"""`skit measure-ranks`: how often the target's token is the draft model's 1st, 2nd, ... choice, for
method sequoia.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from msgspec import to_builtins

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    print_json,
    say,
    say_target,
)
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import DECODING, FIRST, OUTPUT, Option, select_fields
from specbench_kit.studies.recording.settings import RecordingSettings

SHOWN_RANKS = 8
SYNTHETIC_RANKS = 16
"""Number of rates that the printed command for a synthetic pair keeps, leaving out those below
LEAST_RATE.
"""
LEAST_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """The models and prompts to measure, and the folder of the table."""

    limit: Annotated[common.Limit, FIRST] = None
    target: Annotated[common.Target, FIRST] = "auto"
    draft: Annotated[common.Draft, FIRST] = "auto"
    device: Annotated[common.TorchDevice, FIRST] = "auto"
    dtype: common.Dtype = "auto"
    executor: common.ExecutorName = "auto"
    max_new_tokens: Annotated[common.MaxNewTokens, FIRST] = 128
    batch_size: Annotated[common.BatchSize, FIRST] = 8
    temperature: Annotated[
        float, Option("Sampling temperature of the target; 0 is greedy.", DECODING), FIRST
    ] = 0.0
    seed: common.Seed = 0
    save_to: Annotated[
        Path | None,
        Option("Folder for the table; the default is your own below $SKIT_HOME.", OUTPUT),
        FIRST,
    ] = None


def measure_ranks(
    options: RankOptions, dataset: DatasetOptions, as_json: Annotated[JsonOption, FIRST] = False
) -> None:
    """Measure the rates, save them for the pair and print them."""
    from rich.console import Console

    shared = select_fields(RecordingSettings, asdict(options))
    settings = RecordingSettings(argv=command_line(), **shared)
    console = Console(stderr=as_json)
    prompts = load_dataset(dataset, options.limit, options.seed, console)
    say_target(console, options.target)
    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.predictors import ranks
    from specbench_kit.studies.recording.ranks import measure

    with counting_bar("ranking") as report:
        table = measure(settings, prompts, report)
    path = ranks.save(table, options.save_to)
    if as_json:
        print_json({"file": str(path), **to_builtins(table)})
        return
    # The first row is the rate over all tokens; row n of by_depth is that n tokens after the last
    # first choice.
    for depth, row in enumerate((table.shares, *table.by_depth)):
        label = f"after {depth - 1} of rank 1" if depth else "all tokens"
        say(console, f"{label}: " + " ".join(f"{share:.3f}" for share in row[:SHOWN_RANKS]))
    largest = sorted(table.shares, reverse=True)[:SYNTHETIC_RANKS]
    rates = "+".join(f"{share:.4f}" for share in largest if share > LEAST_RATE)
    say(console, f"without the models: --target synthetic --draft synthetic:ranks={rates}")
    say(console, f"ranks: {path} ({table.count} tokens, temperature {table.temperature:g})")
