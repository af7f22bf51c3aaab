"""The fit of a software's speed on one card to the first requests of a log."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from msgspec import structs
from scipy.optimize import least_squares

from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.latency import RoundedModel
from specbench_kit.profilers.interconnects import Interconnect
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import AchievedSpeed, Software
from specbench_kit.studies.calibration.replay import ServedLog, agreement

FITTED = ("compute", "bandwidth", "step_s", "request_s")
"""The numbers that are fitted: shares of peak and bandwidth, and seconds of the host per step and per request."""
LEAST, MOST = (0.2, 0.2, 0.0, 0.0), (1.0, 1.0, 0.02, 0.001)
ITERATIONS, STEP, INSIDE = 12, 0.02, 0.05
"""Iterations, the step of a derivative, and how far inside its bounds each number begins."""
EVALUATIONS = ITERATIONS * (len(FITTED) + 1)
"""The most simulations that a fit takes: one per iteration, and one for each number that is fitted."""
TAIL_WEIGHT = 0.5
"""How much a tail counts beside a mean: it is the time of a few requests."""
SINGLE_WEIGHT = 0.5
"""How much the times of all single requests of a metric count beside its mean."""


@dataclass(frozen=True, slots=True)
class Server:
    """The card, or the cards, and the model of a log, by their data sheet; with `expert_parallel`, as in `estimate`."""

    roofline: Roofline
    cards: int = 1
    interconnect: Interconnect | None = None
    expert_parallel: bool = False

    def latency(self, speed: AchievedSpeed) -> RoundedModel:
        """Return what a step takes if the software reaches this speed."""
        software = Software("log", "log", "", anywhere=speed)
        return self.roofline.estimate(software, self.cards, self.interconnect, expert_parallel=self.expert_parallel)


def fit_speed(
    served: ServedLog, fitted: int, server: Server, start: AchievedSpeed, report: CountCallback
) -> AchievedSpeed:
    """Return the speed at which the simulated times of a log's first requests are closest to its measured ones.

    The corner and the idle time per layer stay those of measured kernels, with which the fit starts.
    """
    done, part, first = 0, served.during_first(fitted), slice(fitted)

    def apart(scaled: Sequence[float]) -> list[float]:
        nonlocal done
        done += 1
        report(min(done, EVALUATIONS), EVALUATIONS)
        simulated = part.simulated(server.latency(_speed(start, scaled)))
        metrics = agreement(simulated, part.measured, first)
        means, tails = [log(metric.mean) for metric in metrics], [log(metric.tail) for metric in metrics]
        # Single requests tell apart what their means leave open: a long prompt from a long answer.
        single = [np.log(simulated[name][first] / measured_s[first]) for name, measured_s in part.measured.items()]
        single_weight = SINGLE_WEIGHT / fitted**0.5
        return [*means, *(TAIL_WEIGHT * tail for tail in tails), *(single_weight * np.concatenate(single)).tolist()]

    # A number at its bound leaves a search no way out. Steps of derivatives are relative, so that the scale is 1 to 2.
    beginning = [
        1 + min(max((getattr(start, name) - low) / (high - low), INSIDE), 1 - INSIDE)
        for name, low, high in zip(FITTED, LEAST, MOST, strict=True)
    ]
    found = least_squares(apart, beginning, bounds=(1, 2), diff_step=STEP, max_nfev=ITERATIONS, xtol=1e-4, ftol=1e-4)
    return _speed(start, found.x)


def _speed(start: AchievedSpeed, scaled: Sequence[float]) -> AchievedSpeed:
    """Return the speed with the fitted numbers, which the search scales to 1 to 2."""
    values = {
        name: float(low + (scale - 1) * (high - low))
        for name, scale, low, high in zip(FITTED, scaled, LEAST, MOST, strict=True)
    }
    return structs.replace(start, **values)
