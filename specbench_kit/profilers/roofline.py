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
"""The share by which a prediction may fall short of the limit."""
SLOW = 5.0
"""The largest plausible ratio of prediction to limit on a GPU; single steps of today's software stay below it."""
DRAFT_STEP, VERIFY_STEP = (1,), (1, 5, 9)
"""The numbers of new tokens per request in the steps that a profile of the form `context` is fitted to."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time that a device, or several cards that share a model, need for its forwards.

    `device` combines all cards.
    """

    device: Device
    architecture: Architecture
    dtype: str

    @property
    def weight_bytes(self) -> int:
        """The size of all weights."""
        return self.architecture.parameters * BYTES[self.dtype]

    @property
    def per_forward_s(self) -> float:
        """The seconds for reading the weights once."""
        weights = self.architecture.layer_parameters + self.architecture.head_parameters
        return weights * BYTES[self.dtype] / self.device.bandwidth_bytes_per_s

    @property
    def per_token_s(self) -> float:
        """The seconds for a multiplication and an addition with each weight, the output layer included."""
        return 2 * (self.architecture.layer_parameters + self.architecture.head_parameters) / self._peak

    def compute_s(self, sums: BatchSums) -> float:
        """Return the seconds of all operations at peak; a token attends to itself too."""
        shapes = self.architecture
        flops = 2 * (shapes.layer_parameters * sums.linear + shapes.head_parameters * sums.logit_rows)
        return (flops + shapes.attention_flops * (sums.pairs + sums.linear)) / self._peak

    def traffic_s(self, sums: BatchSums) -> float:
        """Return the seconds for moving the weights and the KV that is read and written, at full bandwidth."""
        return self.per_forward_s + (sums.linear + sums.cached) * self._kv_s

    def floor_s(self, rows: Sequence[Row]) -> float:
        """Return the seconds that no implementation undercuts."""
        return self.floor_of(sums_of(rows))

    def floor_of(self, sums: BatchSums) -> float:
        """Return the seconds that no implementation undercuts, for a batch with these sums."""
        return max(self.compute_s(sums), self.traffic_s(sums))

    def estimate(self, software: Software, members: int = 1, interconnect: Interconnect | None = None) -> WorkModel:
        """Return the latency model of a software: operations and traffic add up, at the shares that it achieves.

        Several `members` reduce each layer's results over their `interconnect`.
        """
        shapes, speed = self.architecture, software.on(self.device.name)
        flop_s, kv_s = 1 / (self._peak * speed.compute), self._kv_s / speed.bandwidth
        reductions = REDUCTIONS_PER_LAYER * shapes.layers if interconnect and members > 1 else 0
        per_byte_s = interconnect.per_byte_s(members) / speed.interconnect if interconnect else 0.0
        reduced_s = reductions * shapes.hidden_size * BYTES[self.dtype] * per_byte_s
        work = WorkModel(
            token_s=(2 * shapes.layer_parameters + shapes.attention_flops) * flop_s + kv_s + reduced_s,
            pair_s=shapes.attention_flops * flop_s,
            cached_s=kv_s,
            head_s=2 * shapes.head_parameters * flop_s,
            forward_s=self.per_forward_s / speed.bandwidth
            + (speed.step_s + shapes.layers * speed.layer_s)
            + reductions * (interconnect.latency_s if interconnect else 0.0),
        )
        if not speed.is_hosted:
            return work
        return HostedModel(**asdict(work), host_request_s=speed.request_s, host_s=shapes.layers * speed.launch_s)

    def bounds(self, form: Form) -> dict[str, float]:
        """Return the least value of each coefficient if the others have theirs.

        An interaction counts half, because a prompt's token attends only to the tokens before it.
        """
        per_token_s = 2 * self.architecture.layer_parameters / self._peak
        per_pair_s = self.architecture.attention_flops / self._peak
        head_s = 2 * self.architecture.head_parameters / self._peak
        work = (per_token_s, per_pair_s, self._kv_s, head_s, self.per_forward_s)
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
    def _kv_s(self) -> float:
        return self.architecture.kv_numbers * BYTES[self.dtype] / self.device.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class RooflineVerdict:
    """The comparison of a profile with the physical limit of its device.

    `impossible`: in some regime, the predictions fall short of the limit by more than the tolerance on average.
    `doubtful`: only single predictions do, as those of a straight line through a bent law may. `regimes` are mean
    prediction over mean limit, `short` is the share of configurations that fall short, `coefficients` are those below
    their own bounds, with the bounds. `slow` are the regimes, large batches among them, where predictions are many
    times the limit.
    """

    kind: Literal["possible", "doubtful", "impossible", "unchecked"]
    reason: str = ""
    regimes: Mapping[str, float] = field(default_factory=dict)
    short: float = 0.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)


def roofline_of(profile: Profile) -> Roofline | str:
    """Return the limit of a profile's device and model, or the reason why it is not known."""
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
    """Return the configurations that a profile is meant to predict."""
    if profile.form == "interactions" or (profile.form in ("work", "hosted", "served") and profile.role == "verifier"):
        return workload.verification()
    return workload.steps(DRAFT_STEP if profile.role == "drafter" else VERIFY_STEP)


@cache
def _sums(configuration: Configuration) -> BatchSums:
    return sums_of(configuration.rows)


def judge(profile: Profile) -> RooflineVerdict:
    """Compare a profile with its physical limit; a coefficient that is not given is taken to be at its bound."""
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        return RooflineVerdict("unchecked", roofline)
    bounds = roofline.bounds(profile.form)
    coefficients = {**bounds, **profile.coefficients}
    predicted: dict[str, list[tuple[float, float]]] = {}
    for configuration in (*domain(profile), *workload.batches()):
        sums = _sums(configuration)
        seconds = sum(terms(profile.form, coefficients, sums))
        predicted.setdefault(configuration.regime, []).append((seconds, roofline.floor_of(sums)))
    regimes = {name: sum(s for s, _ in pairs) / sum(f for _, f in pairs) for name, pairs in predicted.items()}
    slow = {name: ratio for name, ratio in regimes.items() if ratio > SLOW and not roofline.device.is_cpu}
    # Large batches lie beyond what was measured: they tell whether a profile is slow, not whether it is possible.
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
