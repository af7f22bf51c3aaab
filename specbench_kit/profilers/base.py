"""The profile contract: how long a model's forwards take on a device, and the source of that
knowledge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from operator import mul
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from specbench_kit.decoding.kernel_latency import KernelModel, KernelTables
from specbench_kit.decoding.latency import (
    ENGINE,
    BatchSums,
    ContextModel,
    InteractionModel,
    LatencyModel,
    RoundedModel,
    Row,
    ServedModel,
    WorkModel,
    sums_of,
)
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.cards import Size, Table, Text
from specbench_kit.profilers.devices import Device

Form = Literal["interactions", "context", "work", "served", "rounded", "kernels"]
Role = Literal["verifier", "drafter"]
Source = Literal["measured", "published", "roofline", "silicon", "calibrated"]
SOURCES: tuple[Source, ...] = get_args(Source)
"""Measured on the device, printed in a paper, by a data sheet, from measured kernels, or fitted to
a server's log.
"""
DERIVED: frozenset[Source] = frozenset({"roofline", "silicon"})
"""Sources of which nothing was measured on a device at hand."""

MODELS: Mapping[
    str, type[InteractionModel | ContextModel | WorkModel | ServedModel | RoundedModel]
] = {
    "interactions": InteractionModel,
    "context": ContextModel,
    "work": WorkModel,
    "served": ServedModel,
    "rounded": RoundedModel,
}
"""The latency models by form, except that of looked-up kernels, which is no function of
coefficients alone.
"""
COEFFICIENTS: Mapping[str, tuple[str, ...]] = {
    "interactions": ("a_s", "b_compute_s", "b_read_s", "c_s"),
    "context": ("alpha_s", "gamma_s", "delta_s"),
    "work": ("token_s", "pair_s", "cached_s", "head_s", "forward_s"),
    "served": ("token_s", "pair_s", "cached_s", "head_s", "request_s", "forward_s"),
    "rounded": tuple(field.name for field in fields(RoundedModel) if field.name not in ENGINE),
    "kernels": ("host_request_s", "host_s", "overlap"),
}
"""The names of each form's coefficients; of a sum in the order of `features_of`: seconds per unit
of that feature.
"""
DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "rounded": {
        field.name: field.default
        for field in fields(RoundedModel)
        if field.default is not MISSING and field.name not in ENGINE
    },
    "kernels": {
        field.name: field.default
        for field in fields(KernelModel)
        if field.default is not MISSING and field.name not in ENGINE
    },
}
"""The coefficients that a file may leave out, with their values then, by form."""
LOOKED_UP: frozenset[Form] = frozenset({"rounded", "kernels"})
"""Forms that are no sum of features, so that they are evaluated and never fitted by least
squares.
"""
LEAST_SERVED_R2 = 0.9
"""Least R2 of a server's profile on its test loads, each of which lasts less than a second, for the
fit to count.
"""


def model_of(form: Form, coefficients: Mapping[str, float]) -> LatencyModel:
    """Return the latency model of a form with coefficients by name."""
    return MODELS[form](**coefficients)  # type: ignore[arg-type]


def features(form: Form, rows: Sequence[Row]) -> tuple[float, ...]:
    """Return the factors that a form's coefficients are multiplied by for a batch."""
    return features_of(form, sums_of(rows))


def features_of(form: Form, sums: BatchSums) -> tuple[float, ...]:
    """Return the factors that a form's coefficients are multiplied by for a batch with these
    sums.
    """
    if form == "context":
        return sums.pairs, sums.linear, 1
    if form == "work":
        return sums.linear, sums.pairs, sums.cached, sums.logit_rows, 1
    if form == "served":
        return sums.linear, sums.pairs, sums.cached, sums.logit_rows, sums.requests, 1
    return sums.linear, sums.interactions, sums.cached, 1


def terms(form: Form, coefficients: Mapping[str, float], sums: BatchSums) -> tuple[float, ...]:
    """Return the seconds that each coefficient of a form that is a sum adds to a batch."""
    return tuple(map(mul, coefficients.values(), features_of(form, sums)))


class Corner(Struct, frozen=True, forbid_unknown_fields=True):
    """An end of the range of a derived profile: a factor on the card's time, and coefficients that
    are others there.
    """

    factor: Annotated[float, Meta(gt=0, le=100)] = 1.0
    coefficients: dict[str, float] = {}


class Profile(Struct, frozen=True):
    """A latency profile, as one TOML file holds it.

    `device` and `model` name bundled cards if there are such; other cards come along as `device_card` and
    `architecture`. `coefficients` lacks those that a publication does not give. `model_hash` is set if real weights
    were measured, `cores` if a CPU was. `samples` is the CSV file in the same folder with every timing. `policy` holds
    the seconds that a stop rule costs per drafted token, for drafters. A derived profile names the `software` whose
    speed it assumes. A model may be spread over `tensor_parallel` cards. `kernels` are the times of the form of that
    name. `fast` and `slow` are the ends of the range of a derived profile.
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
    fit: Table = {}
    policy: Table = {}
    architecture: Architecture | None = None
    device_card: Device | None = None
    kernels: KernelTables | None = None
    fast: Corner | None = None
    slow: Corner | None = None

    def __post_init__(self) -> None:
        if (self.form == "kernels") != (self.kernels is not None):
            raise ValueError("a table [kernels] and the form 'kernels' go together")
        for corner in filter(None, (self.fast, self.slow)):
            if self.form not in LOOKED_UP or corner.coefficients.keys() - COEFFICIENTS[self.form]:
                raise ValueError(
                    f"a range is that of coefficients of a form among {', '.join(sorted(LOOKED_UP))}"
                )

    def latency(self) -> LatencyModel:
        """Return the latency model; a coefficient that a publication does not give counts as 0."""
        return self._latency(self.coefficients)

    def range(self) -> tuple[LatencyModel, LatencyModel] | None:
        """Return the latency models at the fast and the slow end of the range, or None if the
        profile has none.
        """
        if self.fast is None or self.slow is None:
            return None
        return self._corner(self.fast), self._corner(self.slow)

    def _corner(self, corner: Corner) -> LatencyModel:
        latency = self._latency({**self.coefficients, **corner.coefficients})
        assert isinstance(latency, RoundedModel | KernelModel)
        return latency.scaled(corner.factor)

    def _latency(self, given: Mapping[str, float]) -> LatencyModel:
        if self.kernels is not None:
            return KernelModel.of(self.kernels, given)
        if self.form == "rounded":
            return RoundedModel.of(given)
        return model_of(self.form, {name: given.get(name, 0.0) for name in COEFFICIENTS[self.form]})

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
        """True if it is used where it is named only, since the machine was disturbed and nobody
        forced its use.
        """
        return bool(self.disturbances) and not self.fit.get("forced")

    @property
    def test_r2(self) -> float | None:
        """R2 on configurations that the coefficients were not fitted to, or None if the source does
        not state it.
        """
        r2 = self.fit.get("test", {}).get("r2")
        return None if r2 is None else float(r2)
