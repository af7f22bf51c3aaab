"""Write the measured kernels that come with the kit, and the steps that the law is fitted to.

`python scripts/freeze_kernels.py` needs the extra `silicon`; it takes a minute or two.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.kernel_latency import KernelTables
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.silicon import (
    FOLDER,
    LICENCE,
    PACKAGE,
    SYSTEMS,
    KernelDatabase,
    KernelEngine,
    MeasuredKernels,
    file_of,
    measured_kernels,
)

CARDS = ("a100-80", "h100", "l40s", "rtx-pro-6000")
MODELS = ("qwen3-32b", "qwen3-14b", "qwen3-8b", "llama3.1-8b", "qwen3-30b-a3b")
DRAFTS = ("qwen3-1.7b", "qwen3-0.6b", "llama3.2-1b")
SEVERAL = {"a100-80": 4, "h100": 4, "l40s": 8, "rtx-pro-6000": 4}
"""The number of cards that hold Llama-3.1-70B."""
UNMEASURED = {("llama3.2-1b", "a100-80")}
"""The database has no attention with heads of 64 numbers on that card."""
OTHER_ENGINES: tuple[KernelEngine, ...] = ("sglang", "trtllm")
STEPS = Path(__file__).parents[1] / "benchmarks" / "steps.csv"
FITTED_MODELS = ("qwen3-32b", "qwen3-8b", "llama3.1-8b")
REQUESTS, CONTEXTS, DRAFTED, PROMPTS = (
    (1, 2, 4, 8, 16, 32, 64),
    (512, 2048),
    (0, 1, 2, 4, 8, 16),
    (2048, 8192),
)
WIDTH = 120


def main() -> None:
    """Write one file per model and card, and the steps; print how far other engines are off."""
    FOLDER.mkdir(exist_ok=True)
    spread = _spread()
    for model, card, engine, members in _frozen():
        measured = measured_kernels(model, bundled_architectures()[model], card, engine, members)
        text = _toml(structs.replace(measured, spread=spread))
        file_of(model, card, engine, members).write_text(text, encoding="utf-8")
        print(f"{model} on {members} x {card} under {engine}")
    write_steps()


def write_steps() -> None:
    """Write the steps of three models on every card, and two prompts of each."""
    with STEPS.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Seconds of a step by measured kernels under vLLM: {PACKAGE}, {LICENCE}.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("card", "model", "requests", "context", "new", "seconds"))
        for card in SYSTEMS:
            for model in FITTED_MODELS:
                writer.writerows((card, model, *step) for step in _steps(model, card))


def _frozen() -> Iterator[tuple[str, str, KernelEngine, int]]:
    """Yield what comes with the kit: kernels of vLLM, and those of the other engines for one model and card."""
    for engine in OTHER_ENGINES:
        yield MODELS[0], CARDS[0], engine, 1
    for card in CARDS:
        for model in (*MODELS, *DRAFTS):
            if (model, card) not in UNMEASURED:
                yield model, card, "vllm", 1
        yield "llama3.1-70b", card, "vllm", SEVERAL[card]


def _steps(model: str, card: str) -> Iterator[tuple[int, int, int, str]]:
    database = KernelDatabase(bundled_architectures()[model], card, "vllm")
    for tokens in PROMPTS:
        yield 1, 0, tokens, f"{database.prompts(tokens).total_s:.5g}"
    for requests in REQUESTS:
        for context in CONTEXTS:
            for drafted in DRAFTED:
                yield (
                    requests,
                    context,
                    drafted + 1,
                    f"{database.step(requests, drafted, context).total_s:.5g}",
                )


def _spread() -> tuple[float, float]:
    """Return the factors on vLLM's steps between which nine of ten steps of the other engines lie."""
    ratios = []
    for card in CARDS:
        for model in MODELS:
            shapes = bundled_architectures()[model]
            own = KernelDatabase(shapes, card, "vllm")
            for engine in OTHER_ENGINES:
                try:
                    other = KernelDatabase(shapes, card, engine)
                except SkitError as error:
                    print(error)
                    continue
                ratios += [
                    other.step(*step).total_s / own.step(*step).total_s
                    for step in (
                        (requests, drafted, 512) for requests in REQUESTS for drafted in DRAFTED
                    )
                ]
    low, high = np.quantile(ratios, (0.05, 0.95))
    print(f"other engines take {low:.2f} to {high:.2f} of a step, {len(ratios)} steps")
    return round(float(low), 2), round(float(high), 2)


def _toml(measured: MeasuredKernels) -> str:
    """Return the file of some kernels, with many numbers to a line."""
    head = {
        name: getattr(measured, name) for name in ("model", "device", "dtype", "engine", "source")
    }
    lines = [f'{name} = "{value}"' for name, value in head.items()]
    lines += [
        f"tensor_parallel = {measured.tensor_parallel}",
        f"spread = {list(measured.spread)}",
        "",
        "[kernels]",
    ]
    tables = measured.kernels
    for name in KernelTables.__dataclass_fields__:
        value = getattr(tables, name)
        if name == "decode_s":
            lines += [f"{name} = [", *(f"  {_numbers(row)}," for row in value), "]"]
        else:
            lines.append(f"{name} = {value if isinstance(value, float) else _numbers(value)}")
    return "\n".join(lines) + "\n"


def _numbers(values: Sequence[float]) -> str:
    return fill(f"[{', '.join(f'{value:.5g}' for value in values)}]", WIDTH, subsequent_indent="  ")


if __name__ == "__main__":
    main()
