"""`skit measure-ranks`: how often the target's token is the draft model's b-th likeliest, for the method sequoia."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, say
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import DECODING, OUTPUT, Option, select_fields
from specbench_kit.studies.bench.settings import BenchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What is measured, and where the table goes."""

    limit: common.Limit = None
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    batch_size: common.BatchSize = 8
    temperature: Annotated[float, Option("At which the target answers; 0 is greedy.", DECODING)] = 0.0
    seed: common.Seed = 0
    save_to: Annotated[Path | None, Option("Folder for the table, instead of your own.", OUTPUT)] = None


def measure_ranks(asked: Ranking, prompts: DatasetOptions, as_json: options.JsonOption = False) -> None:
    """Measure a pair's rank-wise acceptance, by which sequoia shapes its tree, and keep it for the pair."""
    from rich.console import Console

    shared = select_fields(BenchSettings, asdict(asked))
    settings = BenchSettings(methods=("autoregressive",), argv=command_line(), **shared)
    console = Console(stderr=as_json)
    loaded = load_dataset(prompts, asked.limit, asked.seed, console)
    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.predictors import ranks
    from specbench_kit.studies.recording.ranks import measure

    with counting_bar("ranking") as report:
        table = measure(settings, loaded, report)
    path = ranks.save(table, asked.save_to)
    if as_json:
        print(json.dumps({"file": str(path), **asdict(table)}))
        return
    for depth, row in enumerate((table.shares, *table.by_depth)):
        place = f"after {depth - 1} of rank 1" if depth else "all tokens"
        say(console, f"{place}: " + " ".join(f"{share:.3f}" for share in row[:8]))
    falling = [f"{share:.4f}" for share in sorted(table.shares, reverse=True)[:16] if share > 1e-4]
    say(console, f"without the models: --target synthetic --draft synthetic:ranks={'+'.join(falling)}")
    say(console, f"ranks: {path} ({table.count} tokens, temperature {table.temperature:g})")
