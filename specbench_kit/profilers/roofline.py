"""The physical limit: no forward is faster than its operations at peak, nor than its bytes at full
bandwidth.

The host beside a card adds the time that it takes to prepare a step, as far as both do not work in
parallel.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import ceil, sqrt
from statistics import NormalDist
from typing import Annotated, Literal

from msgspec import Meta, Struct, msgpack

from specbench_kit.core.errors import require
from specbench_kit.decoding.latency import BatchSums, RoundedModel, Row, sums_of
from specbench_kit.profilers import workload
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.base import COEFFICIENTS, LOOKED_UP, Form, Profile, terms
from specbench_kit.profilers.devices import (
    BYTES,
    EXCHANGES_PER_LAYER,
    REDUCTIONS_PER_LAYER,
    Device,
    Interconnect,
    bundled_device,
)
from specbench_kit.profilers.software import Software
from specbench_kit.profilers.variants import find_architecture
from specbench_kit.profilers.workload import Configuration

STEP_RANGE_S = (0.0, 3e-3)
"""The seconds per step that hosts of serving engines were seen to take, from none that shows to 3
ms.
"""


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of the host per step and per request of it, and the share of the shorter of both
    times that is hidden.

    With an `overlap` of 1 the slower of host and card decides; with 0 the card waits while the host
    prepares a step, as in engines that decide on a step after they have seen the tokens of the last
    one.
    """

    step_s: float = 0.0
    request_s: float = 0.0
    overlap: float = 0.0

    def __post_init__(self) -> None:
        require(self.step_s >= 0, f"--host-s must not be negative, but is {self.step_s:g}")
        require(
            self.request_s >= 0, f"--host-request-s must not be negative, but is {self.request_s:g}"
        )
        require(0 <= self.overlap <= 1, f"--overlap must be between 0 and 1, not {self.overlap:g}")

    def with_step_s(self, step_s: float) -> "Host":
        """Return a host that takes so many seconds per step."""
        return replace(self, step_s=step_s)


NO_HOST = Host()


TOLERANCE = 0.05
"""The share by which a prediction may fall short of the limit."""
SLOW = 5.0
"""The largest plausible ratio of prediction to limit on a GPU; single steps of today's software
stay below it.
"""
DRAFT_STEP = (1,)
VERIFY_STEP = (1, 5, 9)
"""The numbers of new tokens per request in the steps that a profile of the form `context` is fitted
to.
"""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time that a device, or several cards that share a model, need for its forwards.

    `device` combines all cards, of which there are `members`.
    """

    device: Device
    architecture: Architecture
    dtype: str
    members: int = 1

    @property
    def weight_bytes(self) -> int:
        """The size of all weights."""
        shapes = self.architecture
        layers = shapes.dense_parameters * self._weight_bytes
        layers += shapes.experts * shapes.expert_parameters * self._expert_weight_bytes
        tables = shapes.head_parameters * shapes.tables_held
        return round(layers + tables * self._table_bytes)

    @property
    def kv_token_bytes(self) -> float:
        """The size of one token's keys and values on all cards together, in layers that attend to
        all tokens.

        A card holds whole heads: where there are more cards than heads, or these do not divide,
        some are repeated.
        """
        return self._kv_bytes(self.architecture.kv_numbers)

    @property
    def windowed_kv_token_bytes(self) -> float:
        """The size of one token's keys and values, in layers with a window or a selection."""
        return self._kv_bytes(self.architecture.windowed_kv_numbers)

    @property
    def state_bytes(self) -> float:
        """The size of the states of one request, which engines hold in float32."""
        return float(self.architecture.state_numbers * BYTES["float32"])

    def held_token_bytes(self, context: int) -> float:
        """Return the size of what is held for a request of so many tokens, per token.

        Within a window no more than its tokens are held, and states do not grow.
        """
        # What a selection leaves out is held all the same.
        window = min(context, self.architecture.window or context)
        fixed = self.windowed_kv_token_bytes * window + self.state_bytes
        return self.kv_token_bytes + fixed / context

    def _kv_bytes(self, numbers: int) -> float:
        bits, heads = self.architecture.kv_bits, self.architecture.kv_heads
        repeated = self.members * ceil(heads / self.members) / heads
        return repeated * numbers * (BYTES[self.dtype] if bits is None else bits / 8)

    @property
    def per_forward_s(self) -> float:
        """The seconds for reading the weights once; of a mixture those that a single token
        needs.
        """
        return self._dense_s + self.architecture.active_experts * self._expert_s

    @property
    def per_token_s(self) -> float:
        """The seconds for a multiplication and an addition with each weight, the output layer
        included.
        """
        return self._matrix_flops / self._peak + 2 * self.architecture.head_parameters / self._peak

    def matrices_s(self, tokens: int) -> float:
        """Return the least seconds of the layers' matrices for so many tokens, without attention
        and output layer.
        """
        head_s = (
            self.architecture.head_parameters
            * self._table_bytes
            / self.device.bandwidth_bytes_per_s
        )
        return max(
            self.per_forward_s - head_s,
            self._matrix_flops * tokens / self._peak,
        )

    def compute_s(self, sums: BatchSums) -> float:
        """Return the seconds of all operations at peak; a token attends to itself too."""
        shapes = self.architecture
        flops = self._token_flops * sums.linear + 2 * shapes.head_parameters * sums.logit_rows
        in_window = min(sums.pairs, shapes.attended * sums.linear)
        flops += shapes.attention_flops * sums.pairs + shapes.windowed_attention_flops * in_window
        return flops / self._peak

    def traffic_s(self, sums: BatchSums) -> float:
        """Return the seconds for moving the weights, and the KV and states that are read and
        written, at full bandwidth.
        """
        in_window = min(sums.cached, self.architecture.attended * sums.requests)
        return (
            self.per_forward_s
            + (sums.linear + sums.cached) * self._kv_s
            + (sums.linear + in_window) * self._windowed_kv_s
            + sums.requests * self._state_s
        )

    def floor_s(self, rows: Sequence[Row]) -> float:
        """Return the seconds that no implementation undercuts."""
        return self.floor_of(sums_of(rows))

    def floor_of(self, sums: BatchSums) -> float:
        """Return the seconds that no implementation undercuts, for a batch with these sums."""
        return max(self.compute_s(sums), self.traffic_s(sums))

    def likely_of(self, sums: BatchSums) -> float:
        """Return the seconds of the limit where the tokens of a batch need different experts, as they
        do; `floor_of` has them all need the same ones.
        """
        experts = self.architecture.experts
        missed = 1 - self.architecture.active_experts / experts if experts else 1.0
        others = experts * (1 - missed**sums.linear) - self.architecture.active_experts
        return max(self.compute_s(sums), self.traffic_s(sums) + max(0.0, others) * self._expert_s)

    def estimate(
        self,
        software: Software,
        members: int = 1,
        interconnect: Interconnect | None = None,
        host: Host = NO_HOST,
        *,
        expert_parallel: bool = False,
    ) -> RoundedModel:
        """Return the latency model of a software: operations and traffic at the shares of the data
        sheet it achieves.

        Several `members` reduce each layer's results over their `interconnect`. If they are
        `expert_parallel`, each has experts of its own, to which tokens are sent, in place of a part
        of every expert, and the one with the most experts to read decides. The `host` takes time
        beside what the software takes there for each layer and each request.
        """
        shapes = self.architecture
        speed = software.on(self.device.name)
        flop_s = 1 / (self._peak * speed.compute)
        exchanged_s = 0.0
        waited_s = 0.0
        if interconnect and members > 1:
            reductions = REDUCTIONS_PER_LAYER - expert_parallel
            exchanges = EXCHANGES_PER_LAYER if expert_parallel else 0
            per_byte_s = reductions * interconnect.per_byte_s(members)
            per_byte_s += (
                interconnect.exchange_per_byte_s(members, shapes.active_experts)
                if expert_parallel
                else 0.0
            )
            exchanged_s = (
                shapes.layers
                * shapes.hidden_size
                * BYTES[self.dtype]
                * per_byte_s
                / speed.interconnect
            )
            waited_s = shapes.layers * (reductions + exchanges) * interconnect.latency_s
        return RoundedModel(
            token_s=self._token_flops * flop_s,
            pair_s=shapes.attention_flops * flop_s,
            head_s=2 * shapes.head_parameters * flop_s,
            weights_s=self._dense_s / speed.bandwidth,
            kv_s=self._kv_s / speed.bandwidth,
            forward_s=speed.step_s + shapes.layers * speed.layer_s + waited_s,
            wide_s=shapes.layers * speed.wide_layer_s,
            reduced_s=exchanged_s,
            experts_s=shapes.experts * self._expert_s / speed.bandwidth,
            host_request_s=speed.request_s + host.request_s,
            host_s=shapes.layers * speed.launch_s + host.step_s,
            missed=1 - shapes.active_experts / shapes.experts if shapes.experts else 0.0,
            uneven=_most_of(members) / sqrt(shapes.experts / members) if expert_parallel else 0.0,
            corner=speed.corner,
            overlap=host.overlap if speed.overlap is None else speed.overlap,
            windowed_pair_s=shapes.windowed_attention_flops * flop_s,
            windowed_kv_s=self._windowed_kv_s / speed.bandwidth,
            window=float(shapes.attended),
            state_s=self._state_s / speed.bandwidth,
            narrow=float(speed.narrow),
            narrow_token_s=self._token_flops / (self._peak * speed.narrow_compute)
            if speed.narrow
            else 0.0,
            wider_s=speed.wider * self._dense_s / speed.bandwidth,
        )

    def bounds(self, form: Form) -> dict[str, float]:
        """Return the least value of each coefficient if the others have theirs.

        An interaction counts half, because a prompt's token attends only to the tokens before it.
        """
        per_token_s = self._matrix_flops / self._peak
        per_pair_s = self.architecture.attention_flops / self._peak
        head_s = 2 * self.architecture.head_parameters / self._peak
        work = (per_token_s, per_pair_s, self._kv_s, head_s, self.per_forward_s)
        limits: dict[Form, tuple[float, ...]] = {
            "interactions": (per_token_s, per_pair_s / 2, self._kv_s, self.per_forward_s),
            "context": (per_pair_s, per_token_s, self.per_forward_s),
            "work": work,
            "served": (*work[:-1], 0.0, work[-1]),
        }
        if form in limits:
            return dict(zip(COEFFICIENTS[form], limits[form], strict=True))
        if form == "kernels":
            return {}
        terms = {"token_s": per_token_s, "pair_s": per_pair_s, "head_s": head_s}
        return {**terms, "weights_s": self._dense_s, "kv_s": self._kv_s}

    @property
    def _peak(self) -> float:
        return self.device.peak(self.dtype)

    @property
    def _matrix_flops(self) -> float:
        """The operations of a token in the layers' matrices, counted at the peak of the dtype: fewer
        where they are multiplied in numbers for which the device is faster.
        """
        low = self.architecture.computed_in
        faster = self.device.peak_flops.get(low, self._peak) / self._peak if low else 1.0
        return 2 * self.architecture.layer_parameters / faster

    @property
    def _token_flops(self) -> float:
        """The operations of a token in all layers; it attends to itself too."""
        shapes = self.architecture
        own = shapes.attention_flops + shapes.windowed_attention_flops + shapes.state_flops
        return self._matrix_flops + own

    @property
    def _weight_bytes(self) -> float:
        """The bytes of one weight of the layers."""
        bits = self.architecture.weight_bits
        return BYTES[self.dtype] if bits is None else bits / 8

    @property
    def _table_bytes(self) -> float:
        """The bytes of one weight of embeddings and output layer."""
        bits = self.architecture.table_bits
        return BYTES[self.dtype] if bits is None else bits / 8

    @property
    def _expert_weight_bytes(self) -> float:
        """The bytes of one weight of the experts."""
        bits = self.architecture.expert_bits
        return self._weight_bytes if bits is None else bits / 8

    @property
    def _dense_s(self) -> float:
        """The seconds for reading the weights that every token needs; the output layer is not
        quantised.
        """
        shapes = self.architecture
        size = (
            shapes.dense_parameters * self._weight_bytes
            + shapes.head_parameters * self._table_bytes
        )
        return size / self.device.bandwidth_bytes_per_s

    @property
    def _expert_s(self) -> float:
        """The seconds for reading one expert of every layer."""
        return (
            self.architecture.expert_parameters
            * self._expert_weight_bytes
            / self.device.bandwidth_bytes_per_s
        )

    @property
    def _kv_s(self) -> float:
        return self.kv_token_bytes / self.device.bandwidth_bytes_per_s

    @property
    def _windowed_kv_s(self) -> float:
        return self.windowed_kv_token_bytes / self.device.bandwidth_bytes_per_s

    @property
    def _state_s(self) -> float:
        """The seconds for reading and writing the states of a request."""
        return 2 * self.state_bytes / self.device.bandwidth_bytes_per_s


def _most_of(members: int) -> float:
    """Return by how many standard deviations the largest of so many normal numbers exceeds their
    mean (Blom 1958).
    """
    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


class LimitVerdict(Struct):
    """The comparison of a profile with the physical limit of its device."""

    kind: Annotated[
        Literal["possible", "doubtful", "impossible", "unchecked"],
        Meta(
            description="'impossible' if, in some regime, predictions fall short of the limit by more than "
            "the tolerance on average; 'doubtful' if only single predictions do, as those of a "
            "straight line through a bent law may; 'possible' if none does; 'unchecked' if the "
            "limit is not known"
        ),
    ]
    reason: Annotated[str, Meta(description="why the profile is unchecked; empty otherwise")] = ""
    regimes: Annotated[
        dict[str, float],
        Meta(description="mean prediction / mean limit, by regime of the workload"),
    ] = {}
    short: Annotated[
        float,
        Meta(
            description="share of the configurations that fall short of the limit by more than the tolerance"
        ),
    ] = 0.0
    coefficients: Annotated[
        list[str], Meta(description="names of coefficients below their own bounds")
    ] = []
    slow: Annotated[
        dict[str, float],
        Meta(
            description="regimes, large batches among them, in which predictions are many times the limit, "
            "with the ratio"
        ),
    ] = {}


def roofline_of(profile: Profile) -> Roofline | str:
    """Return the limit of a profile's device and model, or the reason why it is not known."""
    device = profile.device_card or bundled_device(profile.device)
    shapes = profile.architecture or find_architecture(profile.model)
    if shapes is None:
        return (
            f"no architecture card for {profile.model}"
            if profile.model
            else "the source names no model"
        )
    if device is None:
        return (
            f"no device card for {profile.device}"
            if profile.device
            else "the source names no device"
        )
    if profile.dtype not in device.dtypes:
        return (
            f"no peak of {device.name} for {profile.dtype}"
            if profile.dtype
            else "the source names no dtype"
        )
    members = profile.tensor_parallel
    return Roofline(
        device.with_cores(profile.cores).combined(members), shapes, profile.dtype, members
    )


def domain(profile: Profile) -> tuple[Configuration, ...]:
    """Return the configurations that a profile is meant to predict."""
    if profile.form == "interactions" or (profile.form != "context" and profile.role == "verifier"):
        return workload.verification()
    return workload.steps(DRAFT_STEP if profile.role == "drafter" else VERIFY_STEP)


@cache
def _sums(configuration: Configuration) -> BatchSums:
    return sums_of(configuration.rows)


@dataclass(frozen=True)
class _Question:
    """A profile and its physical limit, which are equal to others of the same content."""

    content: bytes
    profile: Profile = field(compare=False)
    roofline: Roofline = field(compare=False)


def judge(profile: Profile) -> LimitVerdict:
    """Compare a profile with its physical limit; a coefficient that is not given is taken to be at
    its bound.
    """
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        return LimitVerdict("unchecked", roofline)
    content = msgpack.encode((profile, roofline))
    return deepcopy(_verdict(_Question(content, profile, roofline)))


# A study builds its deployments anew for every point, and each of them asks of the same profiles.
@lru_cache(maxsize=256)
def _verdict(question: _Question) -> LimitVerdict:
    profile, roofline = question.profile, question.roofline
    bounds = roofline.bounds(profile.form)
    coefficients = {**bounds, **profile.coefficients}
    latency = profile.latency()
    predicted: dict[str, list[tuple[float, float]]] = {}
    likely: dict[str, list[tuple[float, float]]] = {}
    for configuration in (*domain(profile), *workload.batches()):
        sums = _sums(configuration)
        is_sum = profile.form not in LOOKED_UP
        seconds = sum(terms(profile.form, coefficients, sums)) if is_sum else latency.of_sums(sums)
        predicted.setdefault(configuration.regime, []).append((seconds, roofline.floor_of(sums)))
        likely.setdefault(configuration.regime, []).append((seconds, roofline.likely_of(sums)))
    regimes = {name: _times_floor(pairs) for name, pairs in predicted.items()}
    slow = {
        name: ratio
        for name, pairs in likely.items()
        if (ratio := _times_floor(pairs)) > SLOW and not roofline.device.is_cpu
    }
    # Large batches lie beyond what was measured: they tell whether a profile is slow, not whether
    # it is possible.
    del predicted["batched"], regimes["batched"]
    ratios = [seconds / floor for pairs in predicted.values() for seconds, floor in pairs]
    short = sum(ratio < 1 - TOLERANCE for ratio in ratios) / len(ratios)
    if not short:
        return LimitVerdict("possible", regimes=regimes, slow=slow)
    low = sorted(
        name
        for name, value in profile.coefficients.items()
        if value < (1 - TOLERANCE) * bounds.get(name, 0.0)
    )
    impossible = min(regimes.values()) < 1 - TOLERANCE
    return LimitVerdict(
        "impossible" if impossible else "doubtful",
        regimes=regimes,
        short=short,
        coefficients=low,
        slow=slow,
    )


def _times_floor(steps: Sequence[tuple[float, float]]) -> float:
    """Return how many times the physical limit all steps take together; each is its seconds and its
    limit.
    """
    return sum(seconds for seconds, _ in steps) / sum(floor_s for _, floor_s in steps)
