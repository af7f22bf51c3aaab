"""Experiments of the command `profile`: how well a fit recovers a profile from its own times with noise."""

from dataclasses import dataclass

import numpy as np

from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.profilers.base import MODELS
from specbench_kit.profilers.fit import Fit, Observation, fit
from specbench_kit.profilers.loading import load
from specbench_kit.profilers.workload import verification
from specbench_kit.studies.reproduction.averages import averaged
from specbench_kit.studies.reproduction.rows import Rows


@dataclass(frozen=True)
class NoisyProfile:
    """A profile whose times of WISP's 173 configurations carry normal noise.

    `noise_s` is the standard deviation in seconds; `noise_share` adds noise in proportion to each time.
    """

    profile: str
    noise_s: float
    noise_share: float = 0.0

    def fit(self, seed: int) -> Fit:
        """Return a fit of the profile's own form to one draw of noisy times."""
        profile, random = load(self.profile), np.random.default_rng(seed)
        model = MODELS[profile.form](**profile.coefficients)
        times = [(configuration, model.seconds(configuration.rows)) for configuration in verification()]
        noise = random.normal(size=(len(times), 2))
        observations = [
            Observation(configuration, max(0.0, seconds + a * self.noise_s + b * self.noise_share * seconds))
            for (configuration, seconds), (a, b) in zip(times, noise, strict=True)
        ]
        return fit(profile.form, observations, seed)


def profile(options: JsonObject, report: CountCallback) -> Rows:
    """Return what the fits of every series find, averaged over `seeds` draws, with the widths of their intervals."""
    rows: Rows = []
    for done, (label, entry) in enumerate(options["series"].items()):
        report(done, len(options["series"]))
        descriptions = []
        for seed in range(options["seeds"]):
            fitted = NoisyProfile(**entry).fit(seed)
            widths = {name: high - low for name, (low, high) in fitted.intervals.items()}
            described = fitted.describe()
            parts = ("coefficients", "train", "test", "cross_validation", "shares")
            descriptions.append({**{part: described[part] for part in parts}, "widths": widths})
        rows.append({"series": label, **averaged(descriptions)})
    report(len(rows), len(rows))
    return rows
