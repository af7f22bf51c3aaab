"""How fast the server verified during a load, compared with a profile of it, and how evenly."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_overhead import answers_leaving
from specbench_kit.studies.load.drive import DrivenLoad


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """Measured verification times over the profile's, and the server's own estimates over the profile's.

    Both are ratios of sums over the batches behind the warm-up; None without batches. `steps` are the ratios of single
    batches, one list for each number of requests: all of a list are equal where nothing else runs on the server.
    """

    slower: float | None
    estimate: float | None
    steps: list[list[float]]

    @property
    def scatter(self) -> float | None:
        """The standard deviation over the mean of the times of equal batches; None without batches."""
        # A wrong time of the profile for batches of some size does not count as scatter.
        deviations = [np.log(ratios) - np.log(ratios).mean() for ratios in self.steps]
        return float(np.sqrt(np.expm1(np.concatenate(deviations).var()))) if deviations else None


def server_speed(scenario: Scenario, load: DrivenLoad, overhead: Mapping[str, float]) -> ServerSpeed:
    """Return the speed of the server by the profile that the scenario's verifier has.

    The profile is asked for every batch, because a server without it has estimates of its own. Its time includes one
    answer sent per request. It is corrected by the answers of the previous batch that were really being sent when each
    batch began.
    """
    batches, verifier = load.result.batches, scenario.deployment.verifier
    started_s, ended_s, estimated_end_s, size = (
        batches[name] for name in ("started_s", "ended_s", "expected_s", "size")
    )
    profile_s = np.array([verifier.pass_s(rows) for rows in load.batch_rows])
    # The answers of a batch may be missing where the load ended, and another client may have had a part in one.
    counted = (started_s >= scenario.warmup_s) & (size == list(map(len, load.batch_rows)))
    steps = defaultdict[int, list[float]](list)
    for index in np.flatnonzero(counted & (profile_s > 0)).tolist():
        steps[len(load.batch_rows[index])].append(float((ended_s[index] - started_s[index]) / profile_s[index]))
    leaving = answers_leaving(size[:-1], started_s[1:] - ended_s[:-1], overhead["frame_s"])
    corrected_s = profile_s[1:] + overhead["answer_s"] * (leaving - size[1:])
    return ServerSpeed(
        _ratio((ended_s - started_s)[1:][counted[1:]], corrected_s[counted[1:]]),
        _ratio((estimated_end_s - started_s)[counted], profile_s[counted]),
        list(steps.values()),
    )


def _ratio(seconds: Floats, profile_s: Floats) -> float | None:
    return float(seconds.sum() / profile_s.sum()) if profile_s.sum() > 0 else None
