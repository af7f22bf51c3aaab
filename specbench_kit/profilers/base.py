"""The profile contract: how long a model's forwards take on a device, and where that is known from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Literal

from specbench_kit.decoding.latency import (
    BatchSums,
    ContextModel,
    HostedModel,
    InteractionModel,
    LatencyModel,
    Row,
    ServedModel,
    WorkModel,
    sums_of,
)
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.devices import Device

Form = Literal["interactions", "context", "work", "hosted", "served"]
Role = Literal["verifier", "drafter"]
Source = Literal["measured", "published", "roofline"]

MODELS: Mapping[str, type[InteractionModel | ContextModel | WorkModel | HostedModel | ServedModel]] = {
    "interactions": InteractionModel,
    "context": ContextModel,
    "work": WorkModel,
    "hosted": HostedModel,
    "served": ServedModel,
}
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {
    "interactions": ("a_s", "b_compute_s", "b_read_s", "c_s"),
    "context": ("alpha_s", "gamma_s", "delta_s"),
    "work": ("token_s", "pair_s", "cached_s", "head_s", "forward_s"),
    "hosted": ("token_s", "pair_s", "cached_s", "head_s", "forward_s", "host_request_s", "host_s"),
    "served": ("token_s", "pair_s", "cached_s", "head_s", "request_s", "forward_s"),
}
"""Seconds per unit of the feature at the same place; the last is per forward."""
HOST_TERMS = 2
"""The last ones of the form `hosted`."""
ROLES: tuple[Role, ...] = ("verifier", "drafter")
SOURCES: tuple[Source, ...] = ("measured", "published", "roofline")


def features(form: Form, rows: Sequence[Row]) -> tuple[float, ...]:
    """What each coefficient of a form is multiplied by for a batch."""
    return features_of(form, sums_of(rows))


def features_of(form: Form, sums: BatchSums) -> tuple[float, ...]:
    """The same from a batch's sums."""
    if form == "context":
        return sums.pairs, sums.linear, 1
    if form == "work":
        return sums.linear, sums.pairs, sums.cached, sums.logit_rows, 1
    if form == "hosted":
        return *features_of("work", sums), sums.requests, 1
    if form == "served":
        return sums.linear, sums.pairs, sums.cached, sums.logit_rows, sums.requests, 1
    return sums.linear, sums.interactions, sums.cached, 1


def terms(form: Form, coefficients: Mapping[str, float], sums: BatchSums) -> tuple[float, ...]:
    """Seconds that each coefficient brings to a batch; where device and host go side by side, the slower one's."""
    found = tuple(map(mul, coefficients.values(), features_of(form, sums)))
    if form != "hosted":
        return found
    device, host = found[:-HOST_TERMS], found[-HOST_TERMS:]
    if sum(device) < sum(host):
        return *(0.0 for _ in device), *host
    return *device, *(0.0 for _ in host)


@dataclass(frozen=True, slots=True)
class Profile:
    """One TOML file. `device` and `model` name cards where there are such; a card of one's own comes along.

    `coefficients` lacks those that a publication does not give. `model_hash` is set where real weights were
    measured, `cores` where a CPU was, `samples` is the CSV file beside it with every timing. `policy` holds the
    seconds per drafted token that a stop rule costs on a drafter. A derived profile names the `software` whose speed it
    stands for; `tensor_parallel` cards hold the model together.
    """

    name: str
    role: Role
    device: str
    model: str
    dtype: str
    source: Source
    form: Form
    coefficients: Mapping[str, float]
    reference: str = ""
    date: str = ""
    hardware: str = ""
    note: str = ""
    model_hash: str | None = None
    cores: int = 1
    software: str = ""
    tensor_parallel: int = 1
    samples: str | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    architecture: Architecture | None = None
    device_card: Device | None = None

    def latency(self) -> LatencyModel:
        """The latency model."""
        return MODELS[self.form](**self.latency_fields())

    def latency_fields(self) -> dict[str, float]:
        """Its coefficients; one that a publication does not give counts as no time."""
        return {name: self.coefficients.get(name, 0.0) for name in COEFFICIENTS[self.form]}

    @property
    def not_given(self) -> tuple[str, ...]:
        """Coefficients that the publication does not give."""
        return tuple(name for name in COEFFICIENTS[self.form] if name not in self.coefficients)

    @property
    def test_r2(self) -> float | None:
        """R2 on configurations that the coefficients were not fitted to, where the source says."""
        found = self.fit.get("test", {}).get("r2")
        return None if found is None else float(found)
