"""What a plan found, as `summary.json` holds it. Imports nothing heavy."""

from typing import Annotated

from msgspec import Meta, Struct, field

from specbench_kit.profilers.prices import CardPrice
from specbench_kit.serving.figures import ClassFigures, GroupFigures, Interval


class Served(Interval, frozen=True, kw_only=True):
    """The devices that a replica serves."""

    by_seed: Annotated[list[int], Meta(description="devices that a replica serves with each seed")]


class Configuration(Struct):
    """One kind of replica, and how it decodes."""

    card: Annotated[str, Meta(description="name of the card")]
    cards_per_replica: Annotated[int, Meta(description="cards of a replica, in all of its stages")]
    stages: Annotated[int, Meta(description="pipeline stages of a replica")]
    weight_bits: Annotated[int, Meta(description="bits of a weight")]
    drafting: Annotated[
        str, Meta(description="where drafts are made: 'edge' (on the devices), 'server', or 'none'")
    ]
    method: Annotated[str, Meta(description="spec of the drafting method")]
    scheduler: Annotated[str, Meta(description="scheduler with its options")]
    max_batch: Annotated[int, Meta(description="largest number of requests in a batch")]
    replica_price_per_hour: Annotated[
        float, Meta(description="dollars of rent for a replica per hour")
    ]


class FleetSummary(Configuration):
    """The cheapest fleet of one way to decode.

    Rates, costs of tokens and figures are those of a replica with `devices_per_replica`, over
    seeds. Energy is that of a replica and its devices, at full power while they work.
    """

    label: Annotated[str, Meta(description="the configuration in a line")]
    title: Annotated[str, Meta(description="name of the card in words")]
    replicas: Annotated[int, Meta(description="replicas of the fleet")]
    cards: Annotated[int, Meta(description="cards of all replicas")]
    devices_served: Annotated[
        int, Meta(description="most devices that a replica serves with all seeds")
    ]
    devices_per_replica: Annotated[
        int, Meta(description="devices that a replica has in this fleet")
    ]
    violation_rate: Annotated[
        Interval, Meta(description="share of the responses that break their SLO")
    ]
    price_per_hour: Annotated[float, Meta(description="dollars of rent for all replicas per hour")]
    price_per_million: Annotated[
        float | None,
        Meta(description="dollars of rent per million committed tokens; null without tokens"),
    ]
    power_kw: Annotated[
        float,
        Meta(description="kilowatts of all cards under load; 0 where a card's power is not known"),
    ]
    server_joules_per_token: Annotated[
        Interval | None,
        Meta(
            description="joules of the server per committed token; null where its power is not known, and "
            "without tokens"
        ),
    ]
    device_joules_per_token: Annotated[
        Interval | None,
        Meta(
            description="joules of the devices per committed token, 0 where they draft nothing; null where "
            "their power is not known, and without tokens"
        ),
    ]
    joules_per_device_hour: Annotated[
        Interval | None,
        Meta(
            description="mean joules of a device per hour, 0 where it drafts nothing; null where its power is "
            "not known"
        ),
    ]
    throughput: Annotated[float, Meta(description="mean committed tokens per second of a replica")]
    classes: Annotated[
        dict[str, ClassFigures[Interval]],
        Meta(description="figures of the devices of each SLO class, by its name"),
    ]
    overall: Annotated[
        GroupFigures[Interval], Meta(description="figures of all devices of a replica")
    ]
    served: Annotated[Served, Meta(description="devices that a replica serves, over seeds")]
    served_at_ends: Annotated[
        dict[str, int],
        Meta(
            description="devices that a replica serves at each end of what its step times may be, by the "
            "end's name"
        ),
    ]
    least_price_per_hour: Annotated[
        float,
        Meta(
            description="least rent in dollars per hour: over the seeds' interval of 'served', and at both "
            "ends"
        ),
    ]
    most_price_per_hour: Annotated[
        float | None,
        Meta(
            description="largest rent in dollars per hour over the same; null if a replica then keeps the "
            "promise for no device"
        ),
    ]

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
    """The capacity factor of the cheapest replica that drafts on the server, by the analytic model:
    1 + drafting time / verifying time there.
    """

    method: Annotated[str, Meta(description="spec of the drafting method")]
    alone: Annotated[float, Meta(description="the factor for one request at a time")]
    in_batches: Annotated[float, Meta(description="the factor for batches of 'batch_size'")]
    batch_size: Annotated[float, Meta(description="mean requests in a batch of the replica")]


class MovedAssumption(Struct):
    """What a configuration needs with one assumption moved.

    The configuration is the plan's or, of what only drafts are about, that of the cheapest fleet
    that drafts.
    """

    name: Annotated[str, Meta(description="what is assumed")]
    drafting: Annotated[
        str, Meta(description="way to decode of the configuration: 'edge', 'server' or 'none'")
    ]
    assumed: Annotated[str, Meta(description="value that the plan assumes, in words")]
    moved: Annotated[str, Meta(description="value that was tried, in words")]
    devices_per_replica: Annotated[int, Meta(description="devices that a replica serves then")]
    cards_before: Annotated[int, Meta(description="cards of the fleet as planned")]
    price_before_per_hour: Annotated[float, Meta(description="dollars of rent per hour as planned")]
    cards: Annotated[
        int | None,
        Meta(description="cards of the fleet then; null if it does not keep the promise"),
    ]
    price_per_hour: Annotated[
        float | None,
        Meta(description="dollars of rent per hour then; null if it does not keep the promise"),
    ]
    ratio: Annotated[
        float | None, Meta(description="moved / planned rent; null if it does not keep the promise")
    ]


class PromiseKept(Struct):
    """What keeps a promise, and what that costs."""

    label: Annotated[str, Meta(description="the configuration in a line")]
    devices_per_replica: Annotated[int, Meta(description="devices that a replica serves")]
    throughput: Annotated[float, Meta(description="committed tokens per second of a replica")]
    price_per_hour: Annotated[float, Meta(description="dollars of rent for all devices per hour")]


class ParetoPoint(Struct):
    """A promise, and what keeps it in one way to decode."""

    drafting: Annotated[str, Meta(description="way to decode: 'edge', 'server' or 'none'")]
    scale: Annotated[float, Meta(description="factor on the plan's promised speed")]
    promised: Annotated[float, Meta(description="promised tokens per second, mean over classes")]
    kept: Annotated[
        PromiseKept | None,
        Meta(description="the cheapest replicas that keep the promise; null if none do"),
    ] = None


class Tie(Configuration):
    """Another kind of replica whose fleet costs as much as the plan's."""

    title: Annotated[str, Meta(description="name of the card in words")]
    devices_served: Annotated[
        int, Meta(description="most devices that a replica serves with all seeds")
    ]
    least_price_per_hour: Annotated[
        float,
        Meta(
            description="least rent in dollars per hour, over seeds and at both ends of what step times may "
            "be"
        ),
    ]
    most_price_per_hour: Annotated[
        float | None,
        Meta(
            description="largest rent in dollars per hour over the same; null if a replica then keeps the "
            "promise for no device"
        ),
    ]


def _begins_within(one: "FleetSummary | Tie", other: "FleetSummary | Tie") -> bool:
    most = other.most_price_per_hour
    return most is None or one.least_price_per_hour <= most


class SimulatedCandidate(Configuration):
    """A configuration that was simulated, with one seed or with all of them."""

    devices_served: Annotated[
        int,
        Meta(
            description="devices that a replica serves; 0 if that is not known, because the configuration "
            "costs more than the best of its way to decode"
        ),
    ]
    all_seeds: Annotated[bool, Meta(description="whether it was simulated with all seeds")]
    devices_by_law: Annotated[
        float, Meta(description="devices that a replica serves by the analytic model")
    ]
    devices_at_most: Annotated[
        float, Meta(description="devices that no scheduler could exceed, by the analytic model")
    ]
    price_per_hour: Annotated[
        float | None,
        Meta(
            description="dollars of rent for all devices per hour; null if it costs more than the best of its "
            "way to decode"
        ),
    ]


class SearchCounts(Struct):
    """How much of one way to decode was simulated."""

    candidates: Annotated[int, Meta(description="configurations of this way to decode")]
    simulated: Annotated[int, Meta(description="configurations that were simulated")]
    ruled_out: Annotated[
        int,
        Meta(
            description="kinds of replicas that cannot be cheaper, by the bound of the analytic model"
        ),
    ]
    untried: Annotated[
        int,
        Meta(
            description="configurations of the kinds of replicas that were simulated which were not"
        ),
    ]


class PricedCard(CardPrice, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The rent of a card, and its power."""

    power_w: Annotated[
        float, Meta(description="watts of a card under load; 0 if that is not known")
    ]
    power_source: Annotated[
        str, Meta(description="where the power comes from; empty if that is not stated")
    ] = ""


class DraftingDevice(Struct, frozen=True):
    """What drafts in one way to decode."""

    device: Annotated[str, Meta(description="the device, in words")]
    token_s: Annotated[float, Meta(description="seconds that a drafted token takes there")]


class PlanSummary(Struct):
    """The plan, the cheapest fleet of each way to decode, and what they rest on."""

    devices: Annotated[int, Meta(description="devices to be served")]
    slo: Annotated[
        str, Meta(description="promised tokens per second, a class, or a mix of them with shares")
    ]
    epsilon: Annotated[float, Meta(description="share of responses that may break their SLO")]
    seeds: Annotated[
        int,
        Meta(
            description="simulations of each configuration that is judged, with consecutive seeds"
        ),
    ]
    stated_acceptance: Annotated[
        str | None, Meta(description="acceptance as rates state it; null if it is recorded")
    ]
    plan: Annotated[FleetSummary, Meta(description="the cheapest fleet of all")]
    fleets: Annotated[
        dict[str, FleetSummary | None],
        Meta(
            description="the cheapest fleet of each way to decode ('edge', 'server', 'none'); null if none "
            "keeps the promise"
        ),
    ]
    ties: Annotated[
        list[Tie],
        Meta(description="other kinds of replicas whose fleets cost as much as the plan's"),
    ]
    assumptions: Annotated[
        list[MovedAssumption],
        Meta(description="assumptions moved one at a time, with what is needed then"),
    ]
    pareto: Annotated[
        list[ParetoPoint], Meta(description="what devices cost at stricter and at laxer promises")
    ]
    candidates: Annotated[
        list[SimulatedCandidate], Meta(description="configurations that were simulated")
    ]
    searched: Annotated[
        dict[str, SearchCounts], Meta(description="how much was simulated, by way to decode")
    ]
    prices: Annotated[
        dict[str, PricedCard], Meta(description="rent and power of the cards, by name")
    ]
    capacity_factor: Annotated[
        CapacityFactor | None,
        Meta(
            description="what drafting on the server costs in capacity; null if no fleet drafts there"
        ),
    ] = None
    drafters: Annotated[
        dict[str, DraftingDevice],
        Meta(
            description="what drafts, by way to decode, also where no fleet keeps the promise with the "
            "devices"
        ),
    ] = field(default_factory=dict)
