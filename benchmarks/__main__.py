"""`python -m benchmarks [name ...]`: run benchmarks, print tables and write results/benchmarks/<name>.json."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import (
    adaspec_ablation,
    against_transformers,
    bundled_pair,
    calibration,
    card_counts,
    forwards,
    gguf_types,
    known_pair,
    known_pair_batches,
    length,
    llama_cpp,
    loop_overhead,
    losslessness,
    peak_memory,
    peers,
    pipeline,
    pipeline_batches,
    same_method,
    serving,
    serving_log,
    settling,
    shapes,
    specedge,
    speedup,
    start_up,
    step_times,
    steps,
    widths,
    wire,
)
from benchmarks.common import Figure, Outcome, Setting, Skipped
from specbench_kit.runs import provenance

MODULES = (
    against_transformers,
    loop_overhead,
    speedup,
    forwards,
    widths,
    length,
    shapes,
    start_up,
    peak_memory,
    llama_cpp,
    gguf_types,
    peers,
    known_pair,
    known_pair_batches,
    bundled_pair,
    adaspec_ablation,
    losslessness,
    pipeline,
    pipeline_batches,
    serving,
    serving_log,
    settling,
    step_times,
    steps,
    specedge,
    calibration,
    same_method,
    wire,
    card_counts,
)
BENCHMARKS = {module.__name__.rpartition(".")[2]: module for module in MODULES}

WIDTH = 120


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = Setting(**{field.name: getattr(arguments, field.name) for field in fields(Setting)})
    console = Console(width=max(WIDTH, Console().width))
    console.print(Text(f"{setting}\n", style="dim"))
    short: list[str] = []
    for name in arguments.names or BENCHMARKS:
        try:
            outcome = BENCHMARKS[name].run(setting)
        except Skipped as reason:
            console.print(Text(f"{name}: skipped, {reason}\n"))
            continue
        _print(console, outcome)
        _write(arguments.out / f"{name}.json", setting, outcome)
        short += [f"{name}: {figure.label}" for figure in outcome.figures if figure.passes is False]
    _print_verdict(console, short)
    sys.exit(1 if short and arguments.check else 0)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"default: all of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--target", default=Setting.target, help="as in skit bench")
    parser.add_argument("--draft", default=Setting.draft, help="as in skit bench")
    parser.add_argument(
        "--prompts", type=int, default=Setting.prompts, help="GSM8K prompts (default %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=Setting.rounds, help="repetitions (default %(default)s)"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=Setting.max_new_tokens, help="default %(default)s"
    )
    parser.add_argument(
        "--threads", type=int, help="number of torch threads; by default torch decides"
    )
    parser.add_argument(
        "--device", default=Setting.device, help="as in skit bench (default %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks"), help="default %(default)s"
    )
    arguments = parser.parse_args(argv)
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"unknown benchmark '{name}'; known: {', '.join(BENCHMARKS)}")
    return arguments


def _print(console: Console, outcome: Outcome) -> None:
    table = Table(
        "", title=outcome.title, box=None, pad_edge=False, title_justify="left", title_style="bold"
    )
    for column in ("measured", "spread", "bound", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in outcome.figures:
        table.add_row(*_cells(figure))
    console.print(table)
    for note in outcome.notes:
        console.print(Text(note))
    console.print()


def _cells(figure: Figure) -> list[str]:
    spread = " – ".join(map(_number, figure.spread)) if figure.spread else ""
    verdict = {True: "[green]PASS[/]", False: "[bold red]FALLS SHORT[/]", None: ""}[figure.passes]
    return [
        figure.label,
        f"{_number(figure.value)} {figure.unit}",
        spread,
        str(figure.bound or ""),
        verdict,
    ]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def _print_verdict(console: Console, short: list[str]) -> None:
    if not short:
        console.print("[green]every bound holds[/]")
    for line in short:
        console.print(Text(f"falls short: {line}", style="bold red"))


def _write(path: Path, setting: Setting, outcome: Outcome) -> None:
    content: dict[str, Any] = {
        "title": outcome.title,
        "figures": [{**asdict(figure), "passes": figure.passes} for figure in outcome.figures],
        "notes": list(outcome.notes),
        "setting": {name: _without_folders(value) for name, value in asdict(setting).items()},
        "dataset": {"location": setting.dataset.location, "digest": setting.dataset.digest},
        **provenance.collect(sys.argv[1:]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    for name, data in outcome.files.items():
        (path.parent / name).write_bytes(data)


def _without_folders(value: Any) -> Any:
    return provenance.without_folders(value) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
