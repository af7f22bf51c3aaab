"""The forms of latency models that a deployment's own coefficients may have: those of profiles, and one more."""

from collections.abc import Mapping

from specbench_kit.decoding.latency import LatencyModel, LeapModel
from specbench_kit.profilers import base

MODELS: Mapping[str, type[LatencyModel]] = {**base.MODELS, "leaps": LeapModel}
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {**base.COEFFICIENTS, "leaps": ("forward_s", "leap_s", "tile")}
