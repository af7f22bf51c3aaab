"""Write what batches do to speculation: `python scripts/batches_and_speculation.py --out FOLDER`.

The best draft length and its speedup over plain decoding, by measured kernels where there are such and by the law
elsewhere, beside a data sheet whose operations and traffic are added up.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import BatchSums, sums_of
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.silicon import find_kernels
from specbench_kit.profilers.software import KERNELS, find_software

CARDS = ("a100-80", "h100", "h200", "l40s", "rtx-pro-6000")
MODELS = ("qwen3-8b", "qwen3-32b", "qwen3-30b-a3b")
DRAFT, DTYPE, CONTEXT = "qwen3-0.6b", "bfloat16", 512
BATCHES, LONGEST = (1, 2, 4, 8, 16, 32, 64, 128), 8
ACCEPTANCE = 0.8
"""The probability that a drafted token is right, the same at every position."""
GAP_S = 25e-6
"""Seconds that the sum of operations and traffic idles per layer: what derived profiles assumed before the law."""
COLUMNS = (
    "model",
    "card",
    "source",
    "batch",
    "length",
    "speedup",
    "added_length",
    "added_speedup",
    "added_length_gains",
)
StepTime = Callable[[BatchSums], float]


class Choice(NamedTuple):
    """A draft length, 0 for plain decoding, and its speed over that of plain decoding."""

    length: int
    speedup: float

    def __str__(self) -> str:
        return f"{self.length}: {self.speedup:.2f}" if self.length else "–"


class Costs(NamedTuple):
    """What steps of the target and of the draft model take on one card."""

    target: StepTime
    draft: StepTime

    def speedup(self, length: int, batch: int) -> float:
        """Return the speed of rounds with so many drafted tokens over that of plain steps."""
        plain_s = self.target(sums_of([(1, CONTEXT)] * batch))
        tokens = (1 - ACCEPTANCE ** (length + 1)) / (1 - ACCEPTANCE)
        drafting_s = length * self.draft(sums_of([(1, CONTEXT)] * batch))
        verifying_s = self.target(sums_of([(length + 1, CONTEXT)] * batch)) if length else plain_s
        return tokens * plain_s / (drafting_s + verifying_s)

    def best(self, batch: int) -> Choice:
        """Return the fastest length."""
        return max(
            (Choice(length, self.speedup(length, batch)) for length in range(LONGEST + 1)),
            key=lambda c: c[1],
        )


def main() -> None:
    """Write the page and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    rows, tables, flips = [], [], []
    for model in MODELS:
        lines = []
        for card in CARDS:
            costs, added = _costs(model, card), Costs(_added(model, card), _added(DRAFT, card))
            source = "silicon" if find_kernels(model, card, "vllm") else "law"
            chosen = {batch: (costs.best(batch), added.best(batch)) for batch in BATCHES}
            lines.append(
                f"| {card}, {source} | {' | '.join(str(own) for own, _ in chosen.values())} |"
            )
            lines.append(f"| added up | {' | '.join(str(other) for _, other in chosen.values())} |")
            for batch, (own, other) in chosen.items():
                paid = costs.speedup(other.length, batch)
                rows.append((model, card, source, batch, *own, *other, paid))
                if (own.length > 0) != (other.length > 0) or paid < 0.9 * own.speedup:
                    flips.append(
                        f"- {model} on {card}, {batch} requests: {own.length} tokens gain {own.speedup:.2f}; added up "
                        f"{other.length}, with which they gain {paid:.2f}."
                    )
        head = f"| {model} | {' | '.join(f'{batch}' for batch in BATCHES)} |\n|{' --- |' * (len(BATCHES) + 1)}"
        tables.append("\n".join([head, *lines]))
    with (folder / "batches.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(
            tuple(f"{v:.4g}" if isinstance(v, float) else v for v in row) for row in rows
        )
    (folder / "README.md").write_text(_page(tables, flips), encoding="utf-8")


def _costs(model: str, card: str) -> Costs:
    return Costs(_step_time(model, card), _step_time(DRAFT, card))


def _step_time(model: str, card: str) -> StepTime:
    """Return the times of measured kernels if the kit has them, else those of the law."""
    if kernels := find_kernels(model, card, "vllm"):
        return KernelModel(kernels.kernels).of_sums
    return _roofline(model, card).estimate(find_software(KERNELS)).of_sums


def _added(model: str, card: str) -> StepTime:
    roofline = _roofline(model, card)
    gaps_s = GAP_S * roofline.architecture.layers
    return lambda sums: roofline.compute_s(sums) + roofline.traffic_s(sums) + gaps_s


def _roofline(model: str, card: str) -> Roofline:
    return Roofline(find_device(card), bundled_architectures()[model], DTYPE)


def _page(tables: list[str], flips: list[str]) -> str:
    legend = (
        f"The best number of drafted tokens, 0 to {LONGEST}, and its speed over plain decoding, by the number of "
        f"requests in a batch (columns). Drafts of {DRAFT} on the same card, each token right with probability "
        f"{ACCEPTANCE:g}, after {CONTEXT} cached tokens, in {DTYPE}, without the host's time. A dash: plain decoding "
        "is the fastest. The first line of each card is what derived profiles say now: sums of measured kernels (vLLM) "
        "(silicon), or the law fitted to them. The second is what they said before, a data sheet whose operations and "
        "traffic are added up; it knows no experts that a step leaves out."
    )
    flipped = "\n".join(flips) or "None."
    return "\n\n".join(
        [
            "# What batches do to speculation",
            legend,
            *tables,
            "## Verdicts that flip",
            "Whether to speculate at all differs, or the length that the sum chooses costs more than a tenth of the "
            "speed.",
            flipped,
            "Numbers: [batches.csv](batches.csv), by `python scripts/batches_and_speculation.py --out "
            "results/reference/batches`.\n",
        ]
    )


if __name__ == "__main__":
    main()
