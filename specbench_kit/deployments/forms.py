"""The forms of latency models that a deployment may describe: those of profiles, and one more."""

from collections.abc import Mapping

from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, LeapModel
from specbench_kit.profilers import base

MODELS: Mapping[str, type[LatencyModel]] = {**base.MODELS, "leaps": LeapModel, "kernels": KernelModel}
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {
    **{form: names for form, names in base.COEFFICIENTS.items() if form in base.MODELS},
    "leaps": ("forward_s", "leap_s", "tile"),
}
"""The coefficients of each form that a deployment may hold itself; kernels come by a profile alone."""
