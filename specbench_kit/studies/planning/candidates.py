"""The configurations that a plan may choose from: servers, what they run, and the scenario of one
of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import StatedFile
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.fields import endpoint_of
from specbench_kit.deployments.in_stages import in_stages
from specbench_kit.deployments.loading import Definition, find
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.derived_run import shared_profile
from specbench_kit.profilers.devices import Device, find_device
from specbench_kit.profilers.prices import CardPrice, price_of, read_prices
from specbench_kit.profilers.roofline import Roofline, roofline_of
from specbench_kit.profilers.subject import Subject, find_subject, require_architecture
from specbench_kit.serving.acceptance_spec import parse_acceptance, parse_rates, require_same_rounds
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.lengths import parse_lengths
from specbench_kit.serving.link_traces import read_link_trace
from specbench_kit.serving.memory import KvCapacity, tokens_beside
from specbench_kit.serving.network import NO_DELAYS, Network
from specbench_kit.serving.round_sources import RoundSource
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.slo import SloMix, parse_slo
from specbench_kit.serving.stated_rates import require_effect
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.planning.options import METHODS, PlanOptions
from specbench_kit.studies.planning.summary import Configuration

Placement = Literal["edge", "server", "none"]
SYSTEM: Mapping[Placement, str] = {"edge": "wisp-cache", "server": "adaspec", "none": "centralized"}
"""The serving system of each place to draft, whose method and scheduler a candidate replaces."""
CONTINUOUS = ("prefill-first", "chunked")
"""Further schedulers of servers that generate by themselves."""
PLAIN = "autoregressive"
ANY_METHOD = "fixed-k"
"""Stands for all methods where the acceptance is stated."""
BITS = {16: None, 8: 8.0, 4: 4.125}
"""Bits per weight in memory; those of 4 include the scales of blocks."""


@dataclass(frozen=True, slots=True)
class CandidateServer:
    """One replica: `members` cards of one kind that hold the target with so many bits per weight,
    in equal `stages`.
    """

    device: Device
    members: int
    bits: int
    price: CardPrice
    stages: int = 1

    @property
    def price_per_hour(self) -> float:
        """The rent of the replica for an hour."""
        return self.members * self.price.price_per_hour

    @property
    def label(self) -> str:
        """The replica in a few words."""
        stages = f" in {self.stages} stages" if self.stages > 1 else ""
        return f"{self.members} x {self.device.name}{stages}, {self.bits}-bit weights"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server, where drafts are made and by which method, the scheduler, and the largest batch."""

    server: CandidateServer
    placement: Placement
    method: str
    scheduler: str
    max_batch: int

    @property
    def label(self) -> str:
        """The configuration in a line."""
        return (
            f"{self.server.label}, {self.method}, {self.scheduler}, batches up to {self.max_batch}"
        )

    @property
    def key(self) -> str:
        """The configuration with the place to draft, which no other one shares."""
        return f"{self.placement}: {self.label}"

    def described(self) -> Configuration:
        """Return the configuration as files hold it."""
        server = self.server
        return Configuration(
            server.device.name,
            server.members,
            server.stages,
            server.bits,
            self.placement,
            self.method,
            self.scheduler,
            self.max_batch,
            server.price_per_hour,
        )


@dataclass
class Market:
    """Servers, deployments and scenarios of a plan; profiles and replays are made once."""

    options: PlanOptions
    _servers: list[CandidateServer] = field(default_factory=list)
    _profiles: dict[tuple[str, str], Profile] = field(default_factory=dict)
    _sources: dict[str, RoundSource] = field(default_factory=dict)
    _deployments: dict[tuple[str, Placement], Deployment] = field(default_factory=dict)

    def promising(self, classes: tuple[tuple[float, float], ...]) -> "Market":
        """Return the market for another promise to the same devices, with the same servers,
        profiles and replays.
        """
        return replace(self, options=replace(self.options, classes=classes))

    @cached_property
    def slo(self) -> SloMix:
        """The promise."""
        return parse_slo(self.options.slo)

    @property
    def response_s(self) -> float:
        """The seconds of a mean response at the mean promised speed."""
        return self.output_tokens / self.slo.mean_speed

    @property
    def slowest_s(self) -> float:
        """The seconds of a mean response at the lowest promised speed."""
        return self.output_tokens / min(self.slo.speeds)

    @cached_property
    def output_tokens(self) -> float:
        """The mean length of a response in tokens."""
        text = self.options.output_tokens
        if text is None:
            method = self.methods[0]
            source = self._sources.setdefault(
                method, parse_acceptance(self.options.acceptance, method, self._base)
            )
            return float(
                np.maximum(
                    source.begin(np.linspace(0, 1, 1000, endpoint=False)).output_tokens, 1
                ).mean()
            )
        lengths = parse_lengths(text)
        return float(lengths if isinstance(lengths, int) else lengths.mean)

    @cached_property
    def definition(self) -> Definition:
        """The deployment of the drafting devices, with the round trip that was asked for."""
        link = self.options.link
        return find(self.options.deployment).replace(
            {"link.rtt_s": link} if isinstance(link, float) else {}
        )

    @cached_property
    def network(self) -> Network:
        """The link between devices and server, if it was recorded."""
        link = self.options.link
        return (
            Network(trace=read_link_trace(link.path, link.options))
            if isinstance(link, StatedFile)
            else NO_DELAYS
        )

    @property
    def rtt_s(self) -> float:
        """The round trip of the link, of a recorded one on average."""
        return self._base.link.rtt_s

    @cached_property
    def _base(self) -> Deployment:
        deployment = self.definition.build()
        return replace(deployment, link=self.network.link(deployment.link))

    @cached_property
    def target(self) -> Subject:
        """The target model."""
        return find_subject(self.options.target, "target")

    @cached_property
    def draft(self) -> Subject:
        """The draft model of a server that drafts."""
        return find_subject(self.options.draft, "draft")

    @property
    def own_bits(self) -> int:
        """The bits of a weight of the target as it is: what its architecture states, or 16."""
        return round(require_architecture(self.target).layer_bits or 16)

    @property
    def bits(self) -> tuple[int, ...]:
        """The bits of a weight to choose from: other bits than the target's own are other outputs,
        so if asked for.
        """
        return self.options.bits or (self.own_bits,)

    def servers(self) -> list[CandidateServer]:
        """Return every replica in whose memory the target fits, and leaves room for KV."""
        if not self._servers:
            self._servers += self._fitting()
        return self._servers

    def _fitting(self) -> list[CandidateServer]:
        options = self.options
        prices = read_prices(options.prices)
        devices = [find_device(name) for name in options.gpus]
        priced = [(device, price_of(device, prices, options.prices)) for device in devices]
        architecture = require_architecture(self.target)
        servers = [
            CandidateServer(device, members, bits, price, stages)
            for device, price in priced
            for members in options.cards
            for stages in options.stages
            if members % stages == 0 == architecture.layers % stages
            and architecture.heads % (members // stages) == 0
            for bits in self.bits
            # Stages are no faster than a card that holds the model: they are for models that no
            # card holds.
            if stages == 1 or self.kv_tokens(CandidateServer(device, 1, bits, price), "edge") < 1
        ]
        fitting = [server for server in servers if self.kv_tokens(server, "edge") >= 1]
        if not fitting:
            raise SkitError(
                f"{options.target} fits on none of {', '.join(options.gpus)} with {_listed(options.cards)} cards in "
                f"{_listed(options.stages)} stages that share its {architecture.layers} layers and "
                f"{architecture.heads} heads evenly and {_listed(self.bits)} bits: allow other --cards or --stages, "
                "or name fewer --bits"
            )
        return fitting

    def candidates(self, placement: Placement) -> Iterator[Candidate]:
        """Yield all configurations of a place to draft, with the first scheduler."""
        methods = (PLAIN,) if placement == "none" else self.methods
        for server in self.servers():
            if self.kv_tokens(server, placement) < 1 or (
                placement == "server" and server.stages > 1
            ):
                continue  # what a pipeline's server drafts, and on which of its cards, nobody says
            for method in methods:
                for max_batch in self.options.max_batch:
                    yield Candidate(
                        server, placement, method, self.schedulers(placement)[0], max_batch
                    )

    @cached_property
    def is_stated(self) -> bool:
        """True if the acceptance is stated as rates, with how much is drafted, and does not come of
        a method.
        """
        return parse_rates(self.options.acceptance) is not None

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods to choose from: where the acceptance is stated, all would draft alike, and
        there is one.
        """
        named = self.options.methods
        if self.is_stated:
            named = (ANY_METHOD,) if named == METHODS else named
            require(
                len(named) == 1,
                f"--method is given {len(named)} times, and with --acceptance {self.options.acceptance} all of them "
                "draft alike: give it once, for what drafts, or name a trace",
            )
        for spec in named:
            require_same_rounds(
                parse_method(spec), "name another method, and skit capacity for this one"
            )
            require_effect(spec, self.options.acceptance, "edge")
        return named

    def schedulers(self, placement: Placement) -> tuple[str, ...]:
        """Return the schedulers to choose from, the default one first."""
        return (
            self.options.schedulers
            if placement == "edge"
            else (*self.options.schedulers, *CONTINUOUS)
        )

    def source(self, candidate: Candidate) -> RoundSource:
        """Return the rounds of a candidate's method."""
        # Plain decoding takes nothing but lengths from a source, which are the same for every
        # method.
        method = self.methods[0] if candidate.placement == "none" else candidate.method
        if method not in self._sources:
            self._sources[method] = parse_acceptance(self.options.acceptance, method, self._base)
        return self._sources[method]

    def deployment(self, server: CandidateServer, placement: Placement) -> Deployment:
        """Return the deployment with this server as verifier."""
        key = server.label, placement
        if key not in self._deployments:
            base = self._base
            profile = self.profile(server)
            stage = endpoint_of(profile, server.device, server.price_per_hour)
            shapes = require_architecture(self.target)
            verifier = in_stages(stage, profile, shapes, server.device, server.stages)
            replaced = "servers" if self.options.link is None else "servers and link"
            deployment = replace(
                base,
                name=server.label,
                description=f"A replica of a plan: {server.label} verifies for the devices of '{base.name}'.",
                source=f"'{base.name}', with the plan's {replaced}",
                verifier=verifier,
                colocated=None,
            )
            if placement == "server":
                drafter = endpoint_of(self.draft_profile(server), server.device)
                deployment = replace(
                    deployment, drafter=drafter, placement="server", predictor_s=None
                )
            self._deployments[key] = deployment
        return self._deployments[key]

    def scenario(self, candidate: Candidate, devices: int = 1) -> Scenario:
        """Return the scenario of one replica; raise SkitError if it cannot keep the promise even to
        one device.
        """
        options = self.options
        lengths = [
            None if text is None else parse_lengths(text)
            for text in (options.prompt_tokens, options.output_tokens)
        ]
        return Scenario(
            self.deployment(candidate.server, candidate.placement),
            systems.get(SYSTEM[candidate.placement]),
            self.source(candidate),
            devices,
            slo=self.slo,
            arrivals=pausing(options.think_s, self.response_s),
            prompt_tokens=lengths[0],
            output_tokens=lengths[1],
            memory=KvCapacity(
                self.kv_tokens(candidate.server, candidate.placement),
                _roofline(self.profile(candidate.server)).architecture.max_positions,
            ),
            scheduler=candidate.scheduler,
            max_batch=candidate.max_batch,
            duration_s=options.duration_s,
            warmup_s=options.warmup_s,
            network=self.network,
        )

    def profile(self, server: CandidateServer) -> Profile:
        """Return the latency profile of the target on a server."""
        return self._profile(server, self._with_bits(self.target, server.bits), "verifier")

    def draft_profile(self, server: CandidateServer) -> Profile:
        # The draft model is small: it runs on one of the cards, in full precision.
        return self._profile(replace(server, members=1, stages=1), self.draft, "drafter")

    def _profile(
        self, server: CandidateServer, subject: Subject, role: Literal["verifier", "drafter"]
    ) -> Profile:
        key = server.label, role
        if key not in self._profiles:
            each = server.members // server.stages
            self._profiles[key] = shared_profile(server.device, each, subject, role)
        return self._profiles[key]

    def _with_bits(self, subject: Subject, bits: int) -> Subject:
        if bits == self.own_bits:
            return subject
        architecture = require_architecture(subject).with_weight_bits(BITS[bits])
        return replace(subject, name=f"{subject.name}-{bits}bit", architecture=architecture)

    def kv_tokens(self, server: CandidateServer, placement: Placement) -> float:
        """Return the tokens of KV that fit beside the weights; a server that drafts holds two
        models and their KV.
        """
        profiles = [self.profile(server)]
        if placement == "server":
            profiles.append(self.draft_profile(server))
        return tokens_beside([_roofline(profile) for profile in profiles], stages=server.stages)


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


def _roofline(profile: Profile) -> Roofline:
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        raise SkitError(roofline)
    return roofline


def pausing(think_s: float, response_s: float) -> ClosedLoop:
    """Return devices that pause between responses: for times that differ, from starts all over the
    first cycle.

    After a common start all devices would send their prompts at once, and again in waves, which a
    server that has been up for hours does not see.
    """
    return ClosedLoop(think_s, think_s + response_s, exponential=think_s > 0)
