"""The forms that a deployment's own coefficients have: those of profiles, and one that is never fitted."""

from collections.abc import Mapping

from specbench_kit.decoding.latency import LatencyModel, LeapModel
from specbench_kit.profilers import base

MODELS: Mapping[str, type[LatencyModel]] = {**base.MODELS, "leaps": LeapModel}
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {**base.COEFFICIENTS, "leaps": ("forward_s", "leap_s", "tile")}
