"""Compare modelled forwards of a large model on several cards with the measurements of others."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from benchmarks.common import Bound, Figure, Outcome, Setting
from specbench_kit.decoding.latency import Row
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import BYTES, find_device, find_interconnect
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, Software, find_software

FILE = Path(__file__).with_suffix(".toml")
MODEL, DTYPE, CONTEXT = "llama2-70b", "float16", 512 + 128 // 2
INTERCONNECTS = {"a100-80": "nvlink3", "h100": "nvlink4"}
SOFTWARE = "vllm-2023"
FITTED_ON = (2, 8)
"""Numbers of cards to whose times the software card was fitted, except prompts of fewer than `SHORT` tokens."""
SHORT = 512
OPERATORS_MS = {1: 1.072, 16: 1.1145, 64: 1.125, 128: 1.297, 4096: 29.253}
"""Milliseconds of the four matrix products of one layer on one A100 by tokens: medians of Vidur's measurements.

github.com/microsoft/vidur, data/profiling/compute/a100/meta-llama/Llama-2-70b-hf/mlp.csv (MIT).
"""
MEANS, EACH = Bound(0.95, 1.05), Bound(0.9, 1.1)
PROMPTS = Bound(0.9, 1.1)


class Step(NamedTuple):
    """A measured forward; `kind` is decode or prompt, `size` the number of requests or of prompt tokens."""

    card: str
    cards: int
    kind: str
    size: int
    measured_s: float

    @property
    def rows(self) -> list[Row]:
        """The new and the cached tokens of each request."""
        return [(1, CONTEXT)] * self.size if self.kind == "decode" else [(self.size, 0)]

    def modelled_s(self, software: Software) -> float:
        """Return the seconds by the roofline of `cards` cards."""
        roofline = Roofline(
            find_device(self.card).combined(self.cards), bundled_architectures()[MODEL], DTYPE
        )
        over = find_interconnect(INTERCONNECTS[self.card])
        return roofline.estimate(software, self.cards, over).seconds(self.rows)

    @property
    def is_fitted(self) -> bool:
        """True if the software card was fitted to this forward."""
        return self.cards in FITTED_ON and (self.kind == "decode" or self.size >= SHORT)


def run(_setting: Setting) -> Outcome:
    """Compare the law of measured kernels, and the software card, with the measurements."""
    steps = list(measured())
    software, sheet = find_software(SOFTWARE), find_software(KERNELS)
    figures: list[Figure] = []
    for card in INTERCONNECTS:
        for cards in sorted({step.cards for step in steps}):
            chosen = [step for step in steps if (step.card, step.cards) == (card, cards)]
            figures += _figures(
                f"{cards} x {card}", chosen, software, sheet, held_out=cards not in FITTED_ON
            )
    title = f"{MODEL} by {software.title}, as Splitwise measured it: modelled over measured"
    fitted = " and ".join(map(str, FITTED_ON))
    notes = [f"the software card is fitted to {fitted} cards; prompts of {SHORT} tokens or more"]
    return Outcome(title, [*figures, *_operators(software, sheet)], notes)


def _operators(software: Software, sheet: Software) -> Iterator[Figure]:
    """Compare with held-out times of another source, without attention and the gaps between kernels."""
    device, shapes = find_device("a100-80"), bundled_architectures()[MODEL]
    parameters = shapes.layer_parameters / shapes.layers
    for name, reached in {
        SOFTWARE: software.on(device.name),
        "measured kernels": sheet.on(device.name),
    }.items():
        read_s = parameters * BYTES[DTYPE] / (device.bandwidth_bytes_per_s * reached.bandwidth)
        token_s = 2 * parameters / (device.peak(DTYPE) * reached.compute)
        corner = reached.corner
        ratios = [
            1e3 * (read_s**corner + (tokens * token_s) ** corner) ** (1 / corner) / measured_ms
            for tokens, measured_ms in OPERATORS_MS.items()
        ]
        yield Figure(
            f"a layer's matrices by Vidur, {name}: mean",
            mean(ratios),
            "x",
            None,
            (min(ratios), max(ratios)),
        )


def measured() -> Iterator[Step]:
    """Yield every forward of the file."""
    for card, over in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        for cards, kinds in over.items():
            for kind, times in kinds.items():
                for size, milliseconds in times.items():
                    yield Step(card, int(cards), kind, int(size), milliseconds / 1e3)


def _figures(
    label: str, steps: list[Step], software: Software, sheet: Software, *, held_out: bool
) -> Iterator[Figure]:
    """Yield means and extremes, with bounds for held-out numbers of cards."""
    name = f"{label}, {'held out' if held_out else 'fitted'}"
    for kind, bound in {"decode": MEANS, "prompt": PROMPTS}.items():
        chosen = [
            step for step in steps if step.kind == kind and (kind == "decode" or step.size >= SHORT)
        ]
        ratios = [step.modelled_s(software) / step.measured_s for step in chosen]
        alone = mean(step.modelled_s(sheet) / step.measured_s for step in chosen)
        spread = min(ratios), max(ratios)
        yield Figure(
            f"{name}: {kind}, mean", mean(ratios), "x", bound if held_out else None, spread
        )
        if kind == "decode" and held_out:
            yield Figure(f"{name}: {kind}, least", spread[0], "x", EACH)
            yield Figure(f"{name}: {kind}, most", spread[1], "x", EACH)
        yield Figure(f"{label}, the law of measured kernels: {kind}, mean", alone, "x")
