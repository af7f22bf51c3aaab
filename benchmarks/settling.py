"""Stop simulations of a queue early, as a search for capacity does: how often does their interval miss the true rate?

The queue has one server, arrivals at random and equal service times (M/D/1); a customer that stays for too long counts
as a late response. Its long run is known, and a run of it costs next to nothing.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.common import Bound, Figure, Outcome, Setting
from specbench_kit.metrics.statistics import Array
from specbench_kit.studies.serving.capacity import (
    CONFIDENCE,
    FEWEST_RESPONSES,
    FEWEST_TURNS,
    LOOKS,
    violation_interval,
)

RUNS = 400
LOADS = (0.5, 0.7, 0.8)
CUSTOMERS = 4000
RATES = (0.02, 0.057, 0.1, 0.2)
"""True shares of late customers; the promise is that at most `EPSILON` are."""
EPSILON = 0.05
LONG = 1_000_000
WARM_UP = 2000
MISSED = Bound(most=8.25)
"""Per cent: of 400 runs whose interval misses in 5%, more than 8.25% do in one case of a thousand."""


def stays_s(rng: np.random.Generator, load: float, customers: int) -> tuple[Array, Array]:
    """Return when customers arrive, and for how many service times they stay, in their order (Lindley's recursion)."""
    arrivals_s = np.cumsum(rng.exponential(1 / load, customers + WARM_UP))
    before_s = np.arange(customers + WARM_UP)
    ends_s = np.maximum.accumulate(arrivals_s - before_s) + before_s + 1
    return arrivals_s[WARM_UP:] - arrivals_s[WARM_UP], (ends_s - arrivals_s)[WARM_UP:]


def settle(
    arrivals_s: Array, stay_s: Array, limit_s: float, until_s: float
) -> tuple[float, float, float, float]:
    """Return rate, interval and share of the time of one run that looks at its customers as `try_load` does."""
    rate, low, high, spent = 0.0, 0.0, 1.0, 0.0
    for before, share in zip((0.0, *LOOKS), LOOKS[:-1], strict=False):
        seconds = share * until_s
        due = arrivals_s + np.minimum(stay_s, limit_s) <= seconds
        lateness = np.where(arrivals_s + stay_s <= seconds, stay_s / limit_s, np.inf)[due]
        lasted_s = np.minimum(stay_s[due], seconds - arrivals_s[due])
        turns = seconds / float(lasted_s.mean()) if due.any() else 0.0
        enough = turns >= FEWEST_TURNS and len(lateness) >= FEWEST_RESPONSES
        if share < 1 and not enough:
            continue
        alpha = (1 - CONFIDENCE) * (share - before) / LOOKS[-1]
        rate, low, high = violation_interval(lateness, turns, alpha)
        spent = share
        if enough and (low > EPSILON or high <= EPSILON):
            break
    return rate, low, high, spent


def case(load: float) -> list[Figure]:
    """Return, for every true rate, how many runs miss it, err about the promise, settle, and how long they last."""
    rng = np.random.default_rng([7, int(100 * load)])
    _, long_s = stays_s(rng, load, LONG)
    runs = [stays_s(rng, load, CUSTOMERS) for _ in range(RUNS)]
    figures = []
    for target in RATES:
        limit_s = float(np.quantile(long_s, 1 - target))
        true_rate = float((long_s > limit_s).mean())
        found = np.asarray([settle(*run, limit_s, CUSTOMERS / load) for run in runs])
        rate, low, high, spent = found.T
        settled = (low > EPSILON) | (high <= EPSILON)
        wrong = settled & ((rate <= EPSILON) != (true_rate <= EPSILON))
        name = f"load {load:g}, {true_rate:.1%} late"
        shares: Sequence[tuple[str, Array, Bound | None]] = (
            ("intervals that miss", (low > true_rate) | (high < true_rate), MISSED),
            ("settled on the wrong side", wrong, MISSED),
            ("settled", settled, None),
            ("mean share of the time", spent, None),
        )
        figures += [
            Figure(f"{title}: {name}", 100 * float(values.mean()), "%", bound)
            for title, values, bound in shares
        ]
    return figures


def run(setting: Setting) -> Outcome:  # noqa: ARG001
    """Check that early stops miss the true rate in no more runs than they may, over all looks together."""
    with ProcessPoolExecutor() as pool:
        figures = [figure for of_load in pool.map(case, LOADS) for figure in of_load]
    note = f"{RUNS} runs of {CUSTOMERS} customers each; settled: the interval lies on one side of {EPSILON:.0%}."
    return Outcome("Early stops of runs whose responses wait together", figures, [note])
