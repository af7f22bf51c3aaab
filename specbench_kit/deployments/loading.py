"""Deployments on disk: bundled ones by name, the user's own by path, with fields replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields as struct_fields

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import Amount, Written, shown
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, RoundedModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.description import COEFFICIENTS, MODELS, describe
from specbench_kit.deployments.fields import (
    Value,
    find_profile,
    origin,
    parse_field,
    power_of,
    replace_fields,
)
from specbench_kit.deployments.server_scene import names_a_scene, parse_scene
from specbench_kit.profilers import cards
from specbench_kit.profilers.base import DEFAULTS, Profile, Role
from specbench_kit.profilers.cards import Size, Table, Text
from specbench_kit.profilers.devices import bundled_devices
from specbench_kit.profilers.engine_costs import (
    FAST,
    SLOW,
    TYPICAL,
    find_engine_costs,
    launched_for,
)
from specbench_kit.profilers.roofline import Roofline, roofline_of
from specbench_kit.profilers.software import KERNELS
from specbench_kit.runs.deployment import HandOver, Link, Placement

LOCAL = "local"
"""The name of this machine as it is: measured, and described by no file."""
LIBRARY = Path(__file__).with_name("library")


@dataclass(frozen=True)
class Definition:
    """The content of a deployment's TOML file; `changes` are the fields that were replaced in it,
    for messages.
    """

    path: Path
    label: str
    content: Table
    changes: tuple[str, ...] = ()

    @property
    def sweep(self) -> Mapping[str, Sequence[Value]]:
        """The values that the file proposes to sweep over, by field."""
        self.build()  # which checks the content
        sweep: Mapping[str, Sequence[Value]] = self.content.get("sweep", {})
        return sweep

    def replace(self, values: Mapping[str, Value]) -> "Definition":
        """Return the definition with other values of fields such as `link.rtt_s`."""
        changes = tuple(f"{key}={value}" for key, value in values.items())
        content = replace_fields(self.content, values, self.path.parent)
        return Definition(self.path, self.label, content, self.changes + changes)

    def build(self) -> Deployment:
        """Return the deployment; raise SkitError with the file and the key that is wrong."""
        changes = f" with {' and '.join(self.changes)}" if self.changes else ""
        return parse(self.content, self.path.parent, f"the deployment {self.label}{changes}")


def load(name: str, replaced: Sequence[str] = ()) -> Deployment | None:
    """Return the deployment of that name or in that .toml file, with `key=value` fields replaced.

    None stands for this machine.
    """
    values = dict(map(parse_field, replaced))
    if name != LOCAL:
        return find(name).replace(values).build()
    if values:
        raise SkitError(
            "--set replaces fields of a modelled deployment: choose one with --deployment"
        )
    return None


def find(name: str) -> Definition:
    """Return the definition of a bundled deployment, of a server in one line, or the one in a .toml
    file.
    """
    if names_a_scene(name):
        return Definition(Path(), name, parse_scene(name).content())
    if cards.names_a_file(name):
        path = Path(name).expanduser()
        return Definition(path, name, cards.read_toml(path))
    definitions = bundled()
    if name not in definitions:
        if name in bundled_devices():
            raise SkitError(
                f"'{name}' is a device and no deployment: skit profile-verifier --gpu {name} --target qwen3-0.6b "
                "derives the step times of a model on it, and --set drafter.profile=NAME puts them into a "
                "deployment, such as --deployment phone"
            )
        raise cards.unknown_name(
            "deployment", name, [LOCAL, *definitions], ", or give a .toml file"
        )
    return definitions[name]


@cache
def bundled() -> dict[str, Definition]:
    """Return every deployment that ships with the kit, by name."""
    files = sorted(LIBRARY.glob("*.toml"), key=lambda path: path.stem)
    return {path.stem: Definition(path, path.stem, cards.read_toml(path)) for path in files}


OWN = "coefficients in the deployment itself"
OWN_PRICE = "as the deployment says"
HOST = ("host_s", "host_request_s", "overlap")
"""The fields of a derived latency model that are those of the machine beside the card."""
PAIR_BYTES = 8
PROBABILITY_BYTES = 2
"""Sizes of a candidate token with its probability, and of one of the probabilities of a whole
vocabulary.
"""


class _DeploymentTable(Struct):
    name: Text
    description: Text
    source: Text
    drafter: Table
    verifier: Table
    link: Table = {}
    sweep: Table = {}
    colocated: Table | None = None


class _ModelTable(Struct):
    device: Text
    profile: Text | None = None
    coefficients: Table | None = None


class _EndpointTable(_ModelTable):
    """`engine` names the costs of a serving engine around each forward. `host_s`, `host_request_s` and
    `overlap` replace those of a derived latency, at both ends of its range too.
    """

    engine: Text | None = None

    price_per_hour: Amount = 0.0
    power_w: Amount | None = None
    host_s: Amount | None = None
    host_request_s: Amount | None = None
    overlap: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def host(self) -> dict[str, float]:
        """The fields of the host that are given."""
        given = {
            "host_s": self.host_s,
            "host_request_s": self.host_request_s,
            "overlap": self.overlap,
        }
        return {name: value for name, value in given.items() if value is not None}


class _DrafterTable(_EndpointTable):
    placement: Placement = "edge"
    predictor_s: Amount | None = None


class _VerifierTable(_EndpointTable):
    stages: Size = 1
    hand_over: Table = {}


@dataclass(frozen=True, slots=True)
class _LinkTable(Link):
    """A link whose `payload` may name what is sent up with each drafted token, in place of
    `draft_bytes`.

    That is its id alone, the `top` candidates, the probabilities of the whole `vocabulary`, or a
    hidden state.
    """

    payload: Literal["ids", "topk", "full", "hidden"] | None = None
    vocabulary: Size | None = None
    top: Size | None = None

    def __post_init__(self) -> None:
        if self.loss and not self.retry_s:
            raise ValueError("loss needs retry_s, the time until a lost message is sent again")
        if self.payload and self.draft_bytes:
            raise ValueError("payload stands in place of draft_bytes: give one of them")
        needed = {"topk": "top", "full": "vocabulary", "hidden": "state_bytes"}.get(
            self.payload or ""
        )
        if needed and not getattr(self, needed):
            raise ValueError(f"the payload '{self.payload}' needs {needed}")

    def link(self) -> Link:
        """Return the link, with the size of the payload."""
        sizes = {
            "topk": PAIR_BYTES * (self.top or 0),
            "full": PROBABILITY_BYTES * (self.vocabulary or 0),
            "hidden": self.state_bytes,
        }
        values = {field.name: getattr(self, field.name) for field in fields(Link)}
        return Link(
            **{**values, "draft_bytes": float(sizes.get(self.payload or "", self.draft_bytes))}
        )


def parse(content: Table, folder: Path, label: str) -> Deployment:
    """Return the deployment that a file in `folder` describes; `label` names the file in errors."""
    table = cards.parse_table(_DeploymentTable, content, label)
    for key, values in table.sweep.items():
        if not isinstance(values, list) or not values:
            raise SkitError(
                f"{label}, [sweep]: {key} must be a list of values, not {shown(values)}"
            )
    drafter = cards.parse_table(_DrafterTable, table.drafter, f"{label}, [drafter]")
    verifier = cards.parse_table(_VerifierTable, table.verifier, f"{label}, [verifier]")
    colocated = None
    if table.colocated is not None:
        model = cards.parse_table(_ModelTable, table.colocated, f"{label}, [colocated]")
        colocated = _endpoint(model, folder, f"{label}, [colocated]", "drafter")
    return Deployment(
        name=table.name,
        description=table.description,
        source=table.source,
        drafter=_endpoint(drafter, folder, f"{label}, [drafter]", "drafter"),
        verifier=_endpoint(verifier, folder, f"{label}, [verifier]", "verifier"),
        link=cards.parse_table(_LinkTable, table.link, f"{label}, [link]").link(),
        placement=drafter.placement,
        predictor_s=drafter.predictor_s,
        predictor_origin="" if drafter.predictor_s is None else OWN_PRICE,
        colocated=colocated,
    )


def _with_host(latency: LatencyModel, host: Mapping[str, float], label: str) -> LatencyModel:
    """Return a derived latency model beside another host; raise SkitError for a model that knows no
    host.
    """
    if not isinstance(latency, RoundedModel | KernelModel):
        raise SkitError(
            f"{label}: {' and '.join(host)} belong to derived profiles alone, which say what the card takes"
        )
    return replace(latency, **{name: host.get(name, getattr(latency, name)) for name in HOST})


def profile_in(table: Table, folder: Path, label: str, role: Role) -> Profile | None:
    """Return the profile that a model's table in a deployment names or derives; None where it holds
    coefficients.
    """
    kind = _VerifierTable if role == "verifier" else _DrafterTable
    return _profile_of(cards.parse_table(kind, table, label), folder, label, role)


def _profile_of(table: _ModelTable, folder: Path, label: str, role: Role) -> Profile | None:
    require(
        (table.profile is None) != (table.coefficients is None),
        f"{label} needs a profile or a table of coefficients, and not both",
    )
    if table.profile is None:
        return None
    engine = table.engine if isinstance(table, _EndpointTable) else None
    software = find_engine_costs(engine).software if engine else KERNELS
    return find_profile(table.profile, folder, f"{label}: profile", role, software)


def _endpoint(table: _ModelTable, folder: Path, label: str, role: Role) -> Endpoint:
    """Return the endpoint with the latency of its profile, or of the coefficients in its place."""
    profile = _profile_of(table, folder, label, role)
    if profile is not None:
        endpoint = Endpoint(
            table.device,
            profile.latency(),
            origin=origin(profile),
            power_w=power_of(profile),
            range=profile.range(),
        )
    else:
        own = table.coefficients or {}
        defaults = DEFAULTS.get(str(own.get("form")))
        form, numbers = cards.parse_coefficients(
            COEFFICIENTS, own, f"{label}, coefficients", defaults=defaults
        )
        endpoint = Endpoint(table.device, MODELS[form](**numbers), origin=OWN)
    if isinstance(table, _EndpointTable):
        power_w = endpoint.power_w if table.power_w is None else table.power_w
        endpoint = replace(endpoint, price_per_hour=table.price_per_hour, power_w=power_w)
        if table.engine is not None:
            endpoint = under_engine(endpoint, table.engine, profile, label, role)
        if table.host:
            endpoint = _beside_host(endpoint, table.host, label)
    if isinstance(table, _VerifierTable):
        hand_over = cards.parse_table(HandOver, table.hand_over, f"{label}, hand_over")
        endpoint = replace(endpoint, stages=table.stages, hand_over=hand_over)
    return endpoint


def _beside_host(endpoint: Endpoint, host: Mapping[str, float], label: str) -> Endpoint:
    """Return an endpoint with fields of the host replaced, at both ends of its range too."""

    def both(
        models: tuple[LatencyModel, LatencyModel] | None,
    ) -> tuple[LatencyModel, LatencyModel] | None:
        return models and (
            _with_host(models[0], host, label),
            _with_host(models[1], host, label),
        )

    speculating = endpoint.speculating
    return replace(
        endpoint,
        latency=_with_host(endpoint.latency, host, label),
        range=both(endpoint.range),
        speculating=speculating and _with_host(speculating, host, label),
        speculating_range=both(endpoint.speculating_range),
    )


def under_engine(
    endpoint: Endpoint, engine: str, profile: Profile | None, label: str, role: Role
) -> Endpoint:
    """Return an endpoint with what an engine adds to each forward, in place of its profile's host."""
    costs = find_engine_costs(engine)
    roofline = None if profile is None else roofline_of(profile)
    layers = roofline.architecture.layers if isinstance(roofline, Roofline) else 0
    require(
        bool(layers) or not any(costs.layer_s),
        f"{label}: the engine {engine} takes time for each layer, and nothing says how many there are",
    )
    low, high = endpoint.range or (endpoint.latency, endpoint.latency)
    described = f"{endpoint.origin}; beside {costs.title}: {costs.source}"
    if role == "drafter":
        launched = launched_for(profile.model if profile else "")
        typical, fast, slow = (
            costs.beside_drafter(latency, layers, launched, label, end)
            for latency, end in ((endpoint.latency, TYPICAL), (low, FAST), (high, SLOW))
        )
        return replace(endpoint, latency=typical, range=(fast, slow), origin=described)
    alone, busy = (
        [
            add(latency, layers, label, end)
            for latency, end in ((endpoint.latency, TYPICAL), (low, FAST), (high, SLOW))
        ]
        for add in (costs.beside_target, costs.while_speculating)
    )
    return replace(
        endpoint,
        latency=alone[0],
        range=(alone[1], alone[2]),
        speculating=busy[0],
        speculating_range=(busy[1], busy[2]),
        origin=described,
    )


FOR_REPRODUCTION = "IMPOSSIBLE TIMES, kept for skit reproduce"
"""How the summary of a deployment begins whose devices are faster than their data sheets allow."""
MEASURED: Written = {
    "name": LOCAL,
    "summary": "measured on this machine; the default",
    "time_kind": "measured",
}


def entries() -> list[Written]:
    """Return one object per deployment, this machine first.

    Deployments with times that no such device reaches come last and say so: they are those of papers that are
    reproduced.
    """
    listed: list[Written] = [MEASURED]
    impossible: list[Written] = []
    for definition in bundled().values():
        deployment = definition.build()
        described = describe(deployment)
        sweep = {"sweep": dict(values)} if (values := definition.content.get("sweep")) else {}
        is_impossible = deployment.is_impossible
        summary = f"{FOR_REPRODUCTION if is_impossible else 'modelled'}: {described['description']}"
        entry = {**described, "summary": summary, "time_kind": "modelled", **sweep}
        (impossible if is_impossible else listed).append(entry)
    return listed + impossible


@dataclass(frozen=True, slots=True)
class SettableField:
    """A field that `--set` changes: its dotted name, its value in the definition, None if it has
    none, and its unit.
    """

    name: str
    value: object
    unit: str

    @property
    def option(self) -> str:
        """The option that gives the field the value that it has."""
        value = "VALUE" if self.value is None else str(self.value)
        return f"--set {quote(f'{self.name}={value}')}"


UNITS = {
    "device": "text for reports; `profile` says how fast it is",
    "profile": "a name of skit list profiles, MODEL@GPU as in qwen3-32b@h100, or a .toml file",
    "engine": "a name of skit list engine-costs",
    "price_per_hour": "per hour, in any currency",
    "power_w": "W, by default that of the data sheet",
    "host_s": "s per step beside the card, for derived profiles",
    "host_request_s": "s per request of a step, for derived profiles",
    "overlap": "share of the host's time that the card hides, for derived profiles",
    "placement": "edge or server",
    "stages": "stages of a pipeline",
    "per_pass": "transfers",
    "loss": "share of messages, below 1",
    "seed": "number that jitter and loss are drawn from",
    "payload": "ids, topk, full or hidden",
    "vocabulary": "tokens, for the payload full",
    "top": "tokens, for the payload topk",
    "form": "form of the coefficients",
}
"""What the values of fields are, where the end of the name does not say it."""
ENDS = {
    "bytes_per_s": "bytes/s",
    "bytes_per_token": "bytes per token",
    "bytes": "bytes",
    "s": "s, or as in 40ms",
}


def _unit(name: str) -> str:
    ends = (unit for end, unit in ENDS.items() if f"_{name}".endswith(f"_{end}"))
    return UNITS.get(name) or next(ends, "")


def settable_fields(name: str) -> list[SettableField]:
    """Return the fields of a deployment that `--set` changes, with their values."""
    require(
        name != LOCAL,
        "local is this machine, which is measured and has no fields: name a modelled deployment",
    )
    definition = find(name)
    definition.build()  # which checks the content
    sections: dict[str, OptionValues] = {
        "drafter": {field.name: field.default for field in struct_fields(_DrafterTable)},
        "verifier": {field.name: field.default for field in struct_fields(_VerifierTable)},
        "colocated": {field.name: field.default for field in struct_fields(_ModelTable)},
        "link": {field.name: field.default for field in fields(_LinkTable)},
    }
    if "colocated" not in definition.content:
        del sections["colocated"]
    found = []
    for section, defaults in sections.items():
        given = definition.content.get(section, {})
        values = {key: given.get(key, default) for key, default in defaults.items()}
        if "hand_over" in values:
            transfer = {field.name: field.default for field in fields(HandOver)} | dict(
                given.get("hand_over", {})
            )
            values |= {f"hand_over.{key}": value for key, value in transfer.items()}
        values |= {
            f"coefficients.{key}": value for key, value in given.get("coefficients", {}).items()
        }
        for key in ("hand_over", "coefficients"):
            values.pop(key, None)
        for key, value in values.items():
            unit = _unit(key.split(".")[-1])
            if value is None and key.endswith("bytes_per_s"):
                unit += ", by default without limit"
            found.append(SettableField(f"{section}.{key}", value, unit))
    return found
