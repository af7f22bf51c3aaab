"""What a plan found, as `summary.json` holds it. Imports nothing heavy."""

from msgspec import Struct, field

from specbench_kit.profilers.prices import CardPrice
from specbench_kit.serving.figures import ClassFigures, GroupFigures, Interval


class Served(Interval, frozen=True, kw_only=True):
    """The devices that a replica serves."""

    by_seed: list[int]


class Configuration(Struct):
    """One kind of replica: its cards and pipeline stages, the bits of a weight, where it drafts,
    and how it batches.
    """

    card: str
    cards_per_replica: int
    stages: int
    weight_bits: int
    drafting: str
    method: str
    scheduler: str
    max_batch: int
    replica_price_per_hour: float


class FleetSummary(Configuration):
    """The cheapest fleet of one way to decode.

    A replica serves up to `devices_served` devices with all seeds, and has `devices_per_replica`; rates, costs of
    tokens, `classes` and `overall` are the figures of that load over seeds. Energy is that of a replica and its
    devices, at full power while they work; None where no power is known. The rent's range covers what a replica serves
    by seed (`served`) and at both ends of what its step times may be (`served_at_ends`). Without a
    `most_price_per_hour`, this fleet does not keep the promise at the upper end.
    """

    label: str
    title: str
    replicas: int
    cards: int
    devices_served: int
    devices_per_replica: int
    violation_rate: Interval
    price_per_hour: float
    price_per_million: float | None
    power_kw: float
    server_joules_per_token: Interval | None
    device_joules_per_token: Interval | None
    joules_per_device_hour: Interval | None
    throughput: float
    classes: dict[str, ClassFigures[Interval]]
    overall: GroupFigures[Interval]
    served: Served
    served_at_ends: dict[str, int]
    least_price_per_hour: float
    most_price_per_hour: float | None

    def overlaps(self, other: "FleetSummary | Tie") -> bool:
        """Return whether the ranges of both rents overlap, so that neither fleet is shown to be
        cheaper.
        """
        return _begins_within(self, other) and _begins_within(other, self)

    @property
    def energy(self) -> tuple[Interval | None, ...]:
        """Joules per token of servers and of devices, and per hour of a device."""
        return (
            self.server_joules_per_token,
            self.device_joules_per_token,
            self.joules_per_device_hour,
        )


class CapacityFactor(Struct):
    """The capacity factor of the cheapest replica that drafts on the server: 1 + drafting time /
    verifying time there.

    It is by the analytic model, for one request at a time and in batches as large as they are on
    average.
    """

    method: str
    alone: float
    in_batches: float
    batch_size: float


class MovedAssumption(Struct):
    """What a configuration needs with one assumption moved; no cards if it does not keep the
    promise then.

    The configuration is that of the way to decode `drafting`: the plan's or, of what only drafts
    are about, that of the cheapest fleet that drafts. `price_before_per_hour` is its rent as
    planned, and `ratio` the moved rent over it.
    """

    name: str
    drafting: str
    assumed: str
    moved: str
    devices_per_replica: int
    cards_before: int
    price_before_per_hour: float
    cards: int | None
    price_per_hour: float | None
    ratio: float | None


class PromiseKept(Struct):
    """What keeps a promise, and what that costs."""

    label: str
    devices_per_replica: int
    throughput: float
    price_per_hour: float


class ParetoPoint(Struct):
    """A promise, as a factor on the plan's and in tokens per second, and what keeps it in one way
    to decode, if any.
    """

    drafting: str
    scale: float
    promised: float
    kept: PromiseKept | None = None


class Tie(Configuration):
    """Another kind of replica whose fleet costs as much as the plan's; one replica serves so many
    devices.
    """

    title: str
    devices_served: int
    least_price_per_hour: float
    most_price_per_hour: float | None


def _begins_within(one: "FleetSummary | Tie", other: "FleetSummary | Tie") -> bool:
    most = other.most_price_per_hour
    return most is None or one.least_price_per_hour <= most


class SimulatedCandidate(Configuration):
    """A configuration that was simulated, with one seed or with all of them.

    The price is the rent for all devices. Without one, the configuration costs more than the best
    of its way to decode; it is not known then how many devices it serves, and `devices_served` is
    0.
    """

    devices_served: int
    all_seeds: bool
    devices_by_law: float
    devices_at_most: float
    price_per_hour: float | None


class SearchCounts(Struct):
    """How many configurations one way to decode has, and how many of them were simulated.

    So many kinds of replicas are `ruled_out`: they cannot be cheaper. Of the kinds that were
    simulated, so many configurations are `untried`.
    """

    candidates: int
    simulated: int
    ruled_out: int
    untried: int


class PricedCard(CardPrice, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The rent of a card, where and when it was read, and its power with where that comes from."""

    power_w: float
    power_source: str = ""


class DraftingDevice(Struct, frozen=True):
    """What drafts in one way to decode, and the seconds that a drafted token takes there."""

    device: str
    token_s: float


class PlanSummary(Struct):
    """The plan, the cheapest fleet of each way to decode, and what they rest on.

    `drafters` are what drafts by the way to decode, also where no fleet keeps the promise with the
    devices.
    """

    devices: int
    slo: str
    epsilon: float
    seeds: int
    stated_acceptance: str | None
    plan: FleetSummary
    fleets: dict[str, FleetSummary | None]
    ties: list[Tie]
    assumptions: list[MovedAssumption]
    pareto: list[ParetoPoint]
    candidates: list[SimulatedCandidate]
    searched: dict[str, SearchCounts]
    prices: dict[str, PricedCard]
    capacity_factor: CapacityFactor | None = None
    drafters: dict[str, DraftingDevice] = field(default_factory=dict)
