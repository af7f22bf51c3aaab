"""The profile contract: how long a model's forwards take on a device, and the source of that knowledge."""

from collections.abc import Mapping, Sequence
from operator import mul
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from specbench_kit.core.typed_json import JsonObject
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
from specbench_kit.profilers.cards import Size, Text
from specbench_kit.profilers.devices import Device

Form = Literal["interactions", "context", "work", "hosted", "served"]
Role = Literal["verifier", "drafter"]
Source = Literal["measured", "published", "roofline"]
SOURCES: tuple[Source, ...] = get_args(Source)

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
"""The names of each form's coefficients, in the order of `features_of`: seconds per unit of that feature."""
LEAST_SERVED_R2 = 0.9
"""Least R2 of a server's profile on its test loads, each of which lasts less than a second, for the fit to count."""
HOST_TERMS = 2
"""The last two terms of the form `hosted` are the host's."""


def features(form: Form, rows: Sequence[Row]) -> tuple[float, ...]:
    """Return the factors that a form's coefficients are multiplied by for a batch."""
    return features_of(form, sums_of(rows))


def features_of(form: Form, sums: BatchSums) -> tuple[float, ...]:
    """Return the factors that a form's coefficients are multiplied by for a batch with these sums."""
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
    """Return the seconds that each coefficient adds to a batch.

    In the form `hosted`, device and host work in parallel: the terms of the faster of the two are 0.
    """
    seconds = tuple(map(mul, coefficients.values(), features_of(form, sums)))
    if form != "hosted":
        return seconds
    device, host = seconds[:-HOST_TERMS], seconds[-HOST_TERMS:]
    if sum(device) < sum(host):
        return *(0.0 for _ in device), *host
    return *device, *(0.0 for _ in host)


class Profile(Struct, frozen=True):
    """A latency profile, as one TOML file holds it.

    `device` and `model` name bundled cards if there are such; other cards come along as `device_card` and
    `architecture`. `coefficients` lacks those that a publication does not give. `model_hash` is set if real weights
    were measured, `cores` if a CPU was. `samples` is the CSV file in the same folder with every timing. `policy` holds
    the seconds that a stop rule costs per drafted token, for drafters. A derived profile names the `software` whose
    speed it assumes. A model may be spread over `tensor_parallel` cards.
    """

    name: Text
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
    cores: Size = 1
    software: str = ""
    tensor_parallel: Annotated[int, Meta(ge=1, le=1024)] = 1
    samples: str | None = None
    fit: JsonObject = {}
    policy: JsonObject = {}
    architecture: Architecture | None = None
    device_card: Device | None = None

    def latency(self) -> LatencyModel:
        """Return the latency model; a coefficient that a publication does not give counts as 0."""
        return MODELS[self.form](**{name: self.coefficients.get(name, 0.0) for name in COEFFICIENTS[self.form]})

    @property
    def not_given(self) -> tuple[str, ...]:
        """The names of the coefficients that the publication does not give."""
        return tuple(name for name in COEFFICIENTS[self.form] if name not in self.coefficients)

    @property
    def disturbances(self) -> tuple[str, ...]:
        """How the machine was disturbed while the profile was measured; empty if it was quiet."""
        return tuple(map(str, self.fit.get("disturbed") or ()))

    @property
    def must_be_named(self) -> bool:
        """True if it is used where it is named only, since the machine was disturbed and nobody forced its use."""
        return bool(self.disturbances) and not self.fit.get("forced")

    @property
    def test_r2(self) -> float | None:
        """R2 on configurations that the coefficients were not fitted to, or None if the source does not state it."""
        r2 = self.fit.get("test", {}).get("r2")
        return None if r2 is None else float(r2)
