"""The physical limit: no forward is faster than its operations at peak, nor than its bytes at full bandwidth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Literal

from specbench_kit.decoding.latency import BatchSums, HostedModel, Row, WorkModel, sums_of
from specbench_kit.profilers import workload
from specbench_kit.profilers.architectures import Architecture, bundled_architectures
from specbench_kit.profilers.base import COEFFICIENTS, Form, Profile, terms
from specbench_kit.profilers.devices import BYTES, Device, bundled_device
from specbench_kit.profilers.interconnects import REDUCTIONS_PER_LAYER, Interconnect
from specbench_kit.profilers.software import Software
from specbench_kit.profilers.workload import Configuration

TOLERANCE = 0.05
"""By which a prediction may fall short of the limit."""
SLOW = 5.0
"""Times the limit that predictions for a GPU may be; single steps of today's software stay below that."""
DRAFT_STEP, VERIFY_STEP = (1,), (1, 5, 9)
"""New tokens per request in the steps that a context-form profile is fitted to."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a device, or several cards that share a model, need at least for its forwards.

    `device` is that of all cards together.
    """

    device: Device
    architecture: Architecture
    dtype: str

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        return self.architecture.parameters * BYTES[self.dtype]

    @property
    def per_forward_s(self) -> float:
        """Reading the weights once."""
        weights = self.architecture.layer_parameters + self.architecture.head_parameters
        return weights * BYTES[self.dtype] / self.device.bandwidth_bytes_per_s

    @property
    def per_token_s(self) -> float:
        """A multiplication and an addition with each weight, the output layer included."""
        return 2 * (self.architecture.layer_parameters + self.architecture.head_parameters) / self._peak

    def compute_s(self, sums: BatchSums) -> float:
        """All operations at peak; a token attends to itself too."""
        shapes = self.architecture
        flops = 2 * (shapes.layer_parameters * sums.linear + shapes.head_parameters * sums.logit_rows)
        return (flops + shapes.attention_flops * (sums.pairs + sums.linear)) / self._peak

    def traffic_s(self, sums: BatchSums) -> float:
        """Weights, and the KV that is read and written, at full bandwidth."""
        return self.per_forward_s + (sums.linear + sums.cached) * self._kv_s

    def floor_s(self, rows: Sequence[Row]) -> float:
        """Seconds that no implementation undercuts."""
        return self.floor_of(sums_of(rows))

    def floor_of(self, sums: BatchSums) -> float:
        """The same from a batch's sums."""
        return max(self.compute_s(sums), self.traffic_s(sums))

    def estimate(self, software: Software, members: int = 1, over: Interconnect | None = None) -> WorkModel:
        """What a forward takes with a software: operations and bytes one after the other at the shares that it reaches.

        Of several `members`, each layer's results are reduced `over` their interconnect.
        """
        shapes, reached = self.architecture, software.on(self.device.name)
        flop_s, kv_s = 1 / (self._peak * reached.compute), self._kv_s / reached.bandwidth
        reductions = REDUCTIONS_PER_LAYER * shapes.layers if over and members > 1 else 0
        per_byte_s = over.per_byte_s(members) / reached.interconnect if over else 0.0
        reduced_s = reductions * shapes.hidden_size * BYTES[self.dtype] * per_byte_s
        work = WorkModel(
            token_s=(2 * shapes.layer_parameters + shapes.attention_flops) * flop_s + kv_s + reduced_s,
            pair_s=shapes.attention_flops * flop_s,
            cached_s=kv_s,
            head_s=2 * shapes.head_parameters * flop_s,
            forward_s=self.per_forward_s / reached.bandwidth
            + (reached.step_s + shapes.layers * reached.layer_s)
            + reductions * (over.latency_s if over else 0.0),
        )
        if not reached.is_hosted:
            return work
        return HostedModel(**asdict(work), host_request_s=reached.request_s, host_s=shapes.layers * reached.launch_s)

    def bounds(self, form: Form) -> dict[str, float]:
        """The least that each coefficient can be where the others are at theirs.

        An interaction counts half: a prompt's tokens attend to what is before them.
        """
        per_token_s = 2 * self.architecture.layer_parameters / self._peak
        per_pair_s = self.architecture.attention_flops / self._peak
        work = (per_token_s, per_pair_s, self._kv_s, self._head_s, self.per_forward_s)
        limits = {
            "interactions": (per_token_s, per_pair_s / 2, self._kv_s, self.per_forward_s),
            "context": (per_pair_s, per_token_s, self.per_forward_s),
            "work": work,
            "hosted": (*work, 0.0, 0.0),
            "served": (*work[:-1], 0.0, work[-1]),
        }
        return dict(zip(COEFFICIENTS[form], limits[form], strict=True))

    @property
    def _peak(self) -> float:
        return self.device.peak(self.dtype)

    @property
    def _head_s(self) -> float:
        return 2 * self.architecture.head_parameters / self._peak

    @property
    def _kv_s(self) -> float:
        return self.architecture.kv_numbers * BYTES[self.dtype] / self.device.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class RooflineVerdict:
    """Whether a device can be as fast as a profile says.

    `impossible`: in some regime the predictions fall short of the limit by more than the tolerance on average.
    `doubtful`: only single ones do, as a straight line through a bent law can. `regimes` are mean prediction over
    mean limit, `short` the share of configurations that fall short, `coefficients` those below their own bounds,
    with these. `slow` are the regimes, large batches among them, where predictions are many times the limit.
    """

    kind: Literal["possible", "doubtful", "impossible", "unchecked"]
    reason: str = ""
    regimes: Mapping[str, float] = field(default_factory=dict)
    short: float = 0.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)


def roofline_of(profile: Profile) -> Roofline | str:
    """The limit of a profile's device and model, or why there is none."""
    device = profile.device_card or bundled_device(profile.device)
    shapes = profile.architecture or bundled_architectures().get(profile.model)
    if shapes is None:
        return f"no architecture card for {profile.model}" if profile.model else "the source names no model"
    if device is None:
        return f"no device card for {profile.device}" if profile.device else "the source names no device"
    if profile.dtype not in device.peak_flops:
        return f"no peak of {device.name} for {profile.dtype}" if profile.dtype else "the source names no dtype"
    return Roofline(device.with_cores(profile.cores).combined(profile.tensor_parallel), shapes, profile.dtype)


def domain(profile: Profile) -> tuple[Configuration, ...]:
    """The configurations that a profile is meant to predict."""
    if profile.form == "interactions" or (profile.form in ("work", "hosted", "served") and profile.role == "verifier"):
        return workload.verification()
    return workload.steps(DRAFT_STEP if profile.role == "drafter" else VERIFY_STEP)


@cache
def _sums(one: Configuration) -> BatchSums:
    return sums_of(one.rows)


def judge(profile: Profile) -> RooflineVerdict:
    """Compare a profile with its physical limit; a coefficient that was not given is taken to be at its bound."""
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        return RooflineVerdict("unchecked", roofline)
    bounds = roofline.bounds(profile.form)
    given = {**bounds, **profile.coefficients}
    predicted: dict[str, list[tuple[float, float]]] = {}
    for one in (*domain(profile), *workload.batches()):
        sums = _sums(one)
        seconds = sum(terms(profile.form, given, sums))
        predicted.setdefault(one.regime, []).append((seconds, roofline.floor_of(sums)))
    regimes = {name: sum(s for s, _ in pairs) / sum(f for _, f in pairs) for name, pairs in predicted.items()}
    slow = {name: ratio for name, ratio in regimes.items() if ratio > SLOW and not roofline.device.is_cpu}
    del predicted["batched"], regimes["batched"]
    ratios = [seconds / floor for pairs in predicted.values() for seconds, floor in pairs]
    short = sum(ratio < 1 - TOLERANCE for ratio in ratios) / len(ratios)
    if not short:
        return RooflineVerdict("possible", regimes=regimes, slow=slow)
    low = {
        name: (value, bounds[name])
        for name, value in profile.coefficients.items()
        if value < (1 - TOLERANCE) * bounds[name]
    }
    impossible = min(regimes.values()) < 1 - TOLERANCE
    return RooflineVerdict(
        "impossible" if impossible else "doubtful", regimes=regimes, short=short, coefficients=low, slow=slow
    )
