"""Fit the law of a step to measured kernels, and judge it on cards that it was not fitted to."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares
from scipy.stats import t as student

from benchmarks.common import Bound, Figure, Outcome, Setting
from specbench_kit.decoding.latency import BatchSums, sums_of
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, find_software

FILE = Path(__file__).with_suffix(".csv")
DTYPE = "bfloat16"
UNSEEN = Bound(most=10)
"""Percent by which the law may be off on average on a card that it was not fitted to."""
START, LEAST, MOST = (0.7, 0.8, 1.6, 30.0, 10.0), (0.1, 0.1, 1, 0, 0), (1, 1, 8, 300, 300)
"""Shares of peak and bandwidth, the corner, and microseconds per layer, of all steps and of wide ones."""
OUTLIER = 0.05
"""Deviation of a logarithm beyond which an outlier counts less than its square."""
QUANTILES = (0.05, 0.95)
Floats = NDArray[np.float64]


class Step(NamedTuple):
    """A step of measured kernels: each of the `requests` has `new` tokens after `context` cached ones."""

    card: str
    model: str
    requests: int
    context: int
    new: int
    seconds: float

    @property
    def sums(self) -> BatchSums:
        """The work of the step."""
        return sums_of([(self.new, self.context)] * self.requests)

    @property
    def roofline(self) -> Roofline:
        """The data sheet's limits for its model on its card."""
        return Roofline(find_device(self.card), bundled_architectures()[self.model], DTYPE)


@dataclass(frozen=True)
class Steps:
    """Steps as columns: seconds of operations and of traffic at the data sheet's full speed, and the measured ones."""

    operations_s: Floats
    traffic_s: Floats
    layers: Floats
    wide: Floats
    measured_s: Floats

    @classmethod
    def of(cls, steps: list[Step]) -> "Steps":
        """Return the columns of some steps."""
        rows = [
            (
                step.roofline.compute_s(step.sums),
                step.roofline.traffic_s(step.sums),
                step.roofline.architecture.layers,
                step.new > 1,
                step.seconds,
            )
            for step in steps
        ]
        return cls(*np.array(rows, dtype=np.float64).T)

    def law_s(self, numbers: Floats) -> Floats:
        """Return the seconds by the law, as `RoundedModel` has it."""
        compute, bandwidth, corner, layer_us, wide_us = numbers
        rounded_s = (
            (self.operations_s / compute) ** corner + (self.traffic_s / bandwidth) ** corner
        ) ** (1 / corner)
        idle_s: Floats = self.layers * (layer_us + wide_us * self.wide) * 1e-6
        seconds: Floats = rounded_s + idle_s
        return seconds

    def fit(self) -> Floats:
        """Return the numbers of the law that fit the logarithms of the measured seconds best."""

        def apart(numbers: Floats) -> Floats:
            ratios: Floats = np.log(self.law_s(numbers) / self.measured_s)
            return ratios

        found: Floats = least_squares(
            apart, START, bounds=(LEAST, MOST), loss="soft_l1", f_scale=OUTLIER
        ).x
        return found

    def off_percent(self, seconds: Floats) -> float:
        """Return by how many percent such predictions are off on average."""
        return float(100 * np.abs(seconds / self.measured_s - 1).mean())

    def off_log(self, seconds: Floats) -> Floats:
        """Return the logarithms of measured over predicted seconds."""
        logs: Floats = np.log(self.measured_s / seconds)
        return logs


def spread_on_card(steps: list[Step]) -> tuple[float, float]:
    """Return the factors between which nine of ten times lie of a model that the card's fit has not seen."""
    logs = []
    for model in dict.fromkeys(step.model for step in steps):
        own, others = (
            Steps.of([step for step in steps if (step.model == model) is same])
            for same in (True, False)
        )
        logs.append(own.off_log(own.law_s(others.fit())))
    low, high = np.exp(np.quantile(np.concatenate(logs), QUANTILES))
    return float(low), float(high)


def spread_on_new_card(logs: list[Floats]) -> tuple[float, float]:
    """Return the factors between which nine of ten times on a further card lie, from those of each card left out.

    Steps of one card are off together, so that there are only as many independent deviations as cards: the mean
    deviation of a further card follows Student's t, and steps lie around it as they do around the cards' own means.
    """
    means = np.array([card.mean() for card in logs])
    around = np.concatenate([card - card.mean() for card in logs])
    scale = means.std(ddof=1) * np.sqrt(1 + 1 / len(means))

    def beyond(log: float, quantile: float) -> float:
        return float(
            student.cdf((log - means.mean() - around) / scale, len(means) - 1).mean() - quantile
        )

    low, high = (float(np.exp(brentq(beyond, -3, 3, args=(quantile,)))) for quantile in QUANTILES)
    return low, high


@cache
def measured() -> list[Step]:
    """Return every step of the file, and the prompts, which have no context and are not fitted."""
    with FILE.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [
            Step(
                row["card"],
                row["model"],
                int(row["requests"]),
                int(row["context"]),
                int(row["new"]),
                float(row["seconds"]),
            )
            for row in rows
        ]


def run(_setting: Setting) -> Outcome:
    """Leave one card out after the other, and compare what the kit ships with the measured steps."""
    steps = [step for step in measured() if step.context]
    figures, notes, logs = [], [], []
    for card in dict.fromkeys(step.card for step in steps):
        own, others = (
            Steps.of([step for step in steps if (step.card == card) is same])
            for same in (True, False)
        )
        unseen_s, own_numbers = own.law_s(others.fit()), own.fit()
        shipped_s = np.array([_shipped_s(step) for step in steps if step.card == card])
        low, high = spread_on_card([step for step in steps if step.card == card])
        figures += [
            Figure(
                f"{card}: by the law fitted to the other cards",
                own.off_percent(unseen_s),
                "%",
                UNSEEN,
            ),
            Figure(
                f"{card}: by the law fitted to it", own.off_percent(own.law_s(own_numbers)), "%"
            ),
            Figure(
                f"{card}: as the software card '{KERNELS}' has it",
                own.off_percent(shipped_s),
                "%",
                UNSEEN,
            ),
            Figure(
                f"{card}: operations and traffic added up",
                own.off_percent(own.operations_s + own.traffic_s),
                "%",
            ),
        ]
        notes.append(f"{card}: {_numbers(own_numbers)}, models left out {low:.2f} to {high:.2f}")
        logs.append(own.off_log(unseen_s))
    every = Steps.of(steps)
    low, high = spread_on_new_card(logs)
    notes.append(f"all cards: {_numbers(every.fit())}, on a further card {low:.2f} to {high:.2f}")
    title = f"{len(steps)} steps of measured kernels, predicted from the data sheet: percent off on average"
    return Outcome(title, figures, notes)


def _shipped_s(step: Step) -> float:
    return step.roofline.estimate(find_software(KERNELS)).of_sums(step.sums)


def _numbers(numbers: Floats) -> str:
    compute, bandwidth, corner, layer_us, wide_us = numbers
    return (
        f"compute {compute:.3f}, bandwidth {bandwidth:.3f}, corner {corner:.2f}, {layer_us:.1f} us a layer, "
        f"{wide_us:.1f} us more for several tokens"
    )
