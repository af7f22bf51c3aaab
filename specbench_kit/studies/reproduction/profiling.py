"""Experiments on latency estimators: a profile's own times, disturbed, and what a fit to them finds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench_kit.core.progress import CountCallback
from specbench_kit.profilers.base import MODELS
from specbench_kit.profilers.fit import Fit, Observation, fit
from specbench_kit.profilers.loading import load
from specbench_kit.profilers.workload import verification
from specbench_kit.studies.reproduction.averages import averaged
from specbench_kit.studies.reproduction.serving import Rows


@dataclass(frozen=True)
class Disturbed:
    """A profile whose times of WISP's 173 configurations differ from it by normal noise of so many seconds.

    A spread of `noise_share` of each time comes on top.
    """

    profile: str
    noise_s: float
    noise_share: float = 0.0

    def fitted(self, seed: int) -> Fit:
        """The same form, fitted to one draw."""
        profile, random = load(self.profile), np.random.default_rng(seed)
        model = MODELS[profile.form](**profile.coefficients)
        times = [(one, model.seconds(one.rows)) for one in verification()]
        drawn = random.normal(size=(len(times), 2))
        observations = [
            Observation(one, max(0.0, seconds + a * self.noise_s + b * self.noise_share * seconds))
            for (one, seconds), (a, b) in zip(times, drawn, strict=True)
        ]
        return fit(profile.form, observations, seed)


def profile(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """What the fits of every series find, on average over so many draws."""
    rows: Rows = []
    for done, (label, one) in enumerate(options["series"].items()):
        told(done, len(options["series"]))
        fits = [_found(Disturbed(**one).fitted(seed)) for seed in range(options["seeds"])]
        rows.append({"series": label, **averaged(fits)})
    told(len(rows), len(rows))
    return rows


def _found(one: Fit) -> dict[str, Any]:
    """Its description, with the widths of the intervals."""
    described = one.describe()
    chosen = ("coefficients", "train", "test", "cross_validation", "shares")
    widths = {name: high - low for name, (low, high) in one.intervals.items()}
    return {**{name: described[name] for name in chosen}, "widths": widths}
