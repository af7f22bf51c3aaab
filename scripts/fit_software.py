"""Fit the efficiencies and times of a software card to measured forwards: `python scripts/fit_software.py`."""

from itertools import product

import numpy as np
from scipy.optimize import least_squares

from benchmarks.step_times import INTERCONNECTS, Step, measured
from specbench_kit.profilers.software import AchievedSpeed, Software

STARTS = product((0.5, 0.8), (0.5, 0.8), (0.1, 0.5), (3e-4, 5e-4), (1e-4, 3e-4), (1.6,))
"""Shares of compute, bandwidth and interconnect; seconds per layer and per request on the host; the corner."""
NAMES = ("compute", "bandwidth", "interconnect", "launch_s", "request_s", "corner")
LEAST, MOST, SCALE = (0.1, 0.1, 0.02, 0, 0, 1), (1, 1, 1, 5e-3, 5e-3, 8), (1, 1, 1, 1e-4, 1e-4, 1)
OUTLIER = 0.05
"""Deviation of a logarithm beyond which an outlier counts less than its square."""


def main() -> None:
    """Fit and print the numbers for every card."""
    starts = list(STARTS)
    for card in INTERCONNECTS:
        steps = [step for step in measured() if step.card == card and step.is_fitted]
        found = [_fitted(start, steps) for start in starts]
        _, best = min(found)
        print(
            card,
            ", ".join(f"{name} = {value:.3g}" for name, value in zip(NAMES, best, strict=True)),
        )


def _fitted(start: tuple[float, ...], steps: list[Step]) -> tuple[float, list[float]]:
    """Return the cost and the numbers of a robust fit to the logarithms of the ratios."""

    def apart(numbers: np.ndarray) -> list[float]:
        software = Software(
            "",
            "",
            "",
            anywhere=AchievedSpeed(
                **dict(zip(NAMES, map(float, numbers), strict=True)),  # type: ignore[arg-type]
                overlap=1.0,
            ),
        )
        return [float(np.log(step.modelled_s(software) / step.measured_s)) for step in steps]

    found = least_squares(
        apart, start, bounds=(LEAST, MOST), x_scale=SCALE, loss="soft_l1", f_scale=OUTLIER
    )
    return float(found.cost), found.x.tolist()


if __name__ == "__main__":
    main()
