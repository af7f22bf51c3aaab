"""Turns settings into scenarios; deployments, round sources and arrivals are built once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import FileReading
from specbench_kit.core.typed_json import Written, stated
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.fields import endpoint_of, parse_field
from specbench_kit.deployments.in_stages import in_stages, require_even
from specbench_kit.deployments.loading import Definition, find
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers import loading
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.derived_run import shared_profile
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.prices import read_prices
from specbench_kit.profilers.roofline import roofline_of
from specbench_kit.profilers.subject import Subject, find_subject, require_architecture
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import LoweredOption
from specbench_kit.serving.acceptance_spec import (
    named_trace,
    parse_acceptance,
    parse_rates,
    require_replayable,
    trace_source,
)
from specbench_kit.serving.arrivals import ArrivalProcess, ReplayedArrivals
from specbench_kit.serving.fleet import DeviceKind, parse_fleet
from specbench_kit.serving.free_devices import RightTokens, require_on_devices
from specbench_kit.serving.lengths import NO_LENGTHS, parse_lengths
from specbench_kit.serving.link_traces import parse_link_file
from specbench_kit.serving.memory import (
    UNLIMITED_KV,
    KvCapacity,
    drafter_profile,
    kv_capacity,
    verifier_profile,
)
from specbench_kit.serving.network import Network
from specbench_kit.serving.pool_spec import (
    NamedCards,
    PoolServer,
    named_cards,
    parse_outage,
    parse_servers,
)
from specbench_kit.serving.round_sources import RecordedRounds, RoundSource, iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError, estimate_with_profile
from specbench_kit.serving.slo import SloMix, parse_slo
from specbench_kit.serving.stated_rates import given_limit, require_effect
from specbench_kit.serving.traced_drafts import TracedDrafts
from specbench_kit.studies.serving.settings import GridPoint, ServingSeries, ServingSettings
from specbench_kit.traces.draft_limits import fit_spec, lowered_limit
from specbench_kit.traces.trace import TraceFile

MODEL = Method.drafter
"""The drafter that most methods have by default: the draft model."""
NO_PAIR = PairHashes("", "")
"""Stated acceptance rates belong to no pair of models."""
PLACEHOLDER = iid(0.5, 1)
"""Stands for the trace to be recorded while everything else is checked."""


@dataclass
class ScenarioBuilder:
    """Builds the scenarios of one run; `trace` is the one that was recorded for it, if there is
    one.
    """

    settings: ServingSettings
    trace: TraceFile | None = None
    _sources: dict[tuple[str, str | None, str, str], RoundSource] = field(default_factory=dict)
    _definitions: dict[str, Definition] = field(default_factory=dict)

    @cached_property
    def network(self) -> Network:
        """Recorded and shared links, and the host's overhead."""
        settings = self.settings
        return Network(
            trace=parse_link_file(settings.link_trace) if settings.link_trace else None,
            shared_up_bytes_per_s=inf
            if settings.shared_up_bytes_per_s is None
            else settings.shared_up_bytes_per_s,
            frame_s=settings.frame_s,
            turn_s=settings.turn_s,
            turn_answer_s=settings.turn_answer_s,
            answer_s=settings.answer_s,
        )

    @cached_property
    def arrivals(self) -> ArrivalProcess:
        """Arrivals of requests."""
        return self.settings.arrival_process

    def readings(self) -> list[FileReading]:
        """Return what the files of arrivals and of a recorded link were taken for."""
        arrivals = self.arrivals.reading if isinstance(self.arrivals, ReplayedArrivals) else None
        link = self.network.trace.reading if self.network.trace else None
        return [reading for reading in (arrivals, link) if reading is not None]

    def scenario(self, point: GridPoint) -> Scenario:
        """Return the scenario at a point of the grid; what is doubtful in its files goes with a
        refusal.
        """
        try:
            return self._scenario(point)
        except SkitError as error:
            doubts = [
                f"{reading.name}: {doubt}"
                for reading in self.readings()
                for doubt in reading.doubts
            ]
            raise SkitError("; ".join([str(error), *doubts])) from error

    def _scenario(self, point: GridPoint) -> Scenario:
        settings = self.settings
        series = point.series
        method = parse_method(series.method)
        return Scenario(
            self.deployment(series),
            series.serves,
            self.source(series),
            point.devices,
            slo=scaled(parse_slo(point.slo), point.slo_scale),
            arrivals=self.arrivals,
            prompt_tokens=None
            if settings.prompt_tokens is None
            else parse_lengths(settings.prompt_tokens),
            output_tokens=None
            if settings.output_tokens is None
            else parse_lengths(settings.output_tokens),
            memory=replace(self.memory(series)[0], lru=settings.eviction == "lru"),
            scheduler=point.scheduler,
            estimator=self._estimator_error(point),
            max_batch=settings.max_batch,
            batch_method=self._batch_method(method, point),
            longest_draft=given_limit(series.method, series.acceptance)
            if series.acceptance
            else method.longest_draft,
            duration_s=settings.duration_s,
            warmup_s=settings.warmup_s,
            fleet=self._fleet(series),
            network=self.network,
            verify_cv=settings.verify_cv,
            servers=self._servers(series),
            router=series.router,
            outages=tuple(map(parse_outage, settings.outage)),
        )

    def require_lengths(self, series: ServingSeries) -> None:
        """Raise SkitError if nothing says how long the responses of a series are, what is to be
        recorded included.
        """
        settings = self.settings
        if self.arrivals.states_lengths or None not in (
            settings.prompt_tokens,
            settings.output_tokens,
        ):
            return
        sources = [kind.source for kind in self._fleet(series)] or [self.source(series)]
        require(
            all(source is PLACEHOLDER or source.shortest_output for source in sources), NO_LENGTHS
        )

    def deployment(self, series: ServingSeries) -> Deployment:
        """Return the series' deployment with the fields that were replaced and the link that the
        network has.
        """
        return self._placed(self._definition(series).build(), series)

    def _placed(self, deployment: Deployment, series: ServingSeries) -> Deployment:
        """Return a deployment of drafting devices, with the link that the network has, where the
        series drafts.
        """
        require_place(series, deployment)
        linked = replace(deployment, link=self.network.link(deployment.link))
        if series.serves.drafting == "none":
            return linked
        placed = linked.while_speculating if parse_method(series.method).uses_drafter else linked
        if series.serves.drafting != "server":
            return placed
        from specbench_kit.deployments.placing import colocate

        return colocate(placed)

    def _batch_method(self, method: Method, point: GridPoint) -> Method | None:
        """Return the method prepared for a server if it decides for the whole batch, else None."""
        if not method.batch_aware:
            return None
        from specbench_kit.deployments.placing import environment

        # A round must not last longer than one token at the highest promised speed.
        round_s = point.slo_scale / max(parse_slo(point.slo).speeds)
        # A method that decides for the batch drafts on the server, where no draft crosses the link.
        at_server = replace(self.deployment(point.series), placement="server")
        return method.prepare(replace(environment(NO_PAIR, at_server), round_s=round_s))

    def lowered_limits(self, series: ServingSeries) -> dict[str, LoweredOption]:
        """Return the default draft limit of the series' method if its trace holds shorter
        drafts.
        """
        trace = self.trace if series.acceptance is None else named_trace(series.acceptance)
        limit = None if trace is None else lowered_limit(series.method, trace.header)
        return {} if limit is None else {series.method: limit}

    def recorded(self, series: ServingSeries) -> Written:
        """Return whose recorded acceptance the series has, and what its method uses of that pair.

        It is empty where rates state the acceptance.
        """
        trace = self.trace
        if series.acceptance is not None:
            if parse_rates(series.acceptance) is not None:
                return {}
            trace = named_trace(series.acceptance)
        if trace is None:
            assert series.acceptance is not None
            facts = RunDirectory.open(Path(series.acceptance).expanduser()).run
            models, dataset = facts.get("models"), facts.get("dataset")
        else:
            models = stated(trace.recording.models)
            dataset = stated(trace.recording.dataset) or None
            from specbench_kit.traces.replay import describe_replayed, prepare_for_replay

            method = parse_method(fit_spec(series.method, trace.header))
            facts = describe_replayed(
                prepare_for_replay(method, trace, self.deployment(series)), trace
            )
        source = self.source(series)
        ratio = (
            source.colocated_ratio
            if isinstance(source, RecordedRounds | RightTokens | TracedDrafts)
            else None
        )
        at_edge = series.serves.drafting == "edge"
        return {
            "recorded": {"models": models or {}, "dataset": dataset},
            **({"uses": facts["uses"]} if "uses" in facts else {}),
            **({"seen_prompts": facts["seen_prompts"]} if "seen_prompts" in facts else {}),
            **({"colocated_ratio": ratio} if at_edge and ratio is not None else {}),
        }

    def source(self, series: ServingSeries) -> RoundSource:
        """Return the source of the series' rounds."""
        key = series.method, series.acceptance, series.deployment, series.system
        if key not in self._sources:
            deployment = self.deployment(series)
            require_effect(series.method, series.acceptance or "", series.serves.drafting)
            if series.acceptance is not None:
                self._sources[key] = parse_acceptance(
                    series.acceptance, series.method, deployment, for_batch=series.decides_for_batch
                )
            elif self.trace is not None:
                method = parse_method(fit_spec(series.method, self.trace.header))
                self._sources[key] = trace_source(
                    self.trace, method, deployment, for_batch=series.decides_for_batch
                )
            else:
                # Before anything is recorded for it.
                method = parse_method(series.method)
                require_replayable(method)
                if method.ahead is not None:
                    require_on_devices(series.serves.drafting)
                self._sources[key] = PLACEHOLDER
        return self._sources[key]

    def _fleet(self, series: ServingSeries) -> tuple[DeviceKind, ...]:
        """Return the kinds of devices in --fleet; those without an acceptance of their own have the
        series'.
        """
        kinds = []
        for name, share, acceptance in (
            parse_fleet(self.settings.fleet) if self.settings.fleet else ()
        ):
            deployment = self._placed(find(name).build(), series)
            source = self.source(series)
            if acceptance:
                source = parse_acceptance(
                    acceptance, series.method, deployment, for_batch=series.decides_for_batch
                )
            kinds.append(DeviceKind(name, share, deployment, source))
        return tuple(kinds)

    def _servers(self, series: ServingSeries) -> int | tuple[PoolServer, ...]:
        """Return how many servers a series has, or its servers if they are not equal.

        A named deployment gives its verifier and, where the server drafts, its drafter. Cards such
        as `4xh100` are one server on which they share the model of the series' deployment;
        `8xh100/pp4` are four stages of two cards.
        """
        servers = parse_servers(series.servers)
        if isinstance(servers, int):
            return servers
        if self.settings.estimator_profile:
            raise SkitError(
                "--estimator-profile is of one card: it cannot go with --servers that names deployments"
            )
        own = self.deployment(series)
        model = _verified_model(self._definition(series))
        pool = []
        for number, name in enumerate(servers, 1):
            if (cards := named_cards(name)) is not None:
                verifier, memory = self._on_cards(series, name, cards)
                pool.append(
                    PoolServer(f"{number} ({name})", replace(own, verifier=verifier), memory)
                )
                continue
            other_model = _verified_model(self._definition_of(name))
            if model and other_model and model != other_model:
                raise SkitError(
                    f"--servers {series.servers}: {name} runs {other_model}, and {series.deployment} {model}: all "
                    "servers of a pool have to verify with one model"
                )
            other = self._definition_of(name).build()
            drafter = other.drafter if series.serves.drafting == "server" else own.drafter
            deployment = replace(own, verifier=other.verifier, drafter=drafter)
            memory = replace(
                self._memory(self._definition_of(name), series)[0],
                lru=self.settings.eviction == "lru",
            )
            pool.append(PoolServer(f"{number} ({name})", deployment, memory))
        return tuple(pool)

    def _on_cards(
        self, series: ServingSeries, name: str, cards: NamedCards
    ) -> tuple[Endpoint, KvCapacity]:
        """Return the series' verifier on cards that share its model, by the law of step times."""
        profile = verifier_profile(self._definition(series))
        require(
            profile is not None and bool(profile.model),
            f"--servers {name}: the deployment {series.deployment} does not say by a profile which model its verifier "
            "runs, so that nothing can be derived for other cards: name deployments",
        )
        require(
            series.serves.drafting != "server",
            f"--servers {name}: nothing says how long drafting takes there: name deployments for a system whose "
            "servers draft",
        )
        assert profile is not None
        card = find_device(cards.card)
        subject = (
            Subject(profile.model, profile.architecture)
            if profile.architecture
            else find_subject(profile.model, "target")
        )
        shapes = require_architecture(subject)
        require_even(shapes, cards.members, cards.stages, f"--servers {name}")
        derived = shared_profile(card, cards.members // cards.stages, subject, dtype=profile.dtype)
        prices = read_prices()
        known = [
            prices[title].price_per_hour for title in (card.name, *card.aliases) if title in prices
        ]
        stage = endpoint_of(derived, card, cards.members * (known[0] if known else 0.0))
        memory = self._memory_beside(derived, cards.stages)[0]
        verifier = in_stages(stage, derived, shapes, card, cards.stages)
        return verifier, replace(memory, lru=self.settings.eviction == "lru")

    def target(self, series: ServingSeries) -> str:
        """Return the model that the verifier of a series runs, or nothing where its profile does
        not say.
        """
        return _verified_model(self._definition(series))

    def memory(self, series: ServingSeries) -> tuple[KvCapacity, str]:
        """Return the room for KV, and where that number comes from."""
        return self._memory(self._definition(series), series)

    def least_memory(self, series: ServingSeries) -> tuple[KvCapacity, str]:
        """Return the room for KV on the server of a series that has the least, and where that
        number comes from.
        """
        servers = self._servers(series)
        if isinstance(servers, int):
            return self.memory(series)
        least = min(servers, key=lambda server: server.memory.tokens)
        return least.memory, f"on server {least.name}, of all servers the least"

    def _memory(self, definition: Definition, series: ServingSeries) -> tuple[KvCapacity, str]:
        """Return the room for KV beside the target, and beside what drafts on its server, and where
        it comes from.
        """
        verifier = verifier_profile(definition)
        stages = definition.build().verifier.stages
        method = parse_method(series.method)
        drafts = series.serves.drafting == "server" and method.uses_drafter
        if not drafts or (method.drafter != MODEL and not method.drafting.models):
            return self._memory_beside(verifier, stages)
        drafter = drafter_profile(definition)
        if drafter is None:
            capacity, origin = self._memory_beside(verifier, stages)
            unknown = "the draft model beside it is not counted, since the deployment names no profile of it"
            return capacity, f"{origin}; {unknown}" if isfinite(capacity.tokens) else origin
        at_server = definition.build().placement == "server"
        if verifier is not None and at_server and drafter.device not in verifier.device:
            return self._memory_beside(verifier, stages)  # a card of its own
        return self._memory_beside(verifier, stages, (drafter,))

    def _memory_beside(
        self, profile: Profile | None, stages: int = 1, beside: Sequence[Profile] = ()
    ) -> tuple[KvCapacity, str]:
        text = self.settings.kv_tokens
        roofline = None if profile is None else roofline_of(profile)
        context = UNLIMITED_KV.context
        if roofline is not None and not isinstance(roofline, str):
            context = roofline.architecture.max_positions
        if text == "unlimited":
            return KvCapacity(context=context), "unlimited, as --kv-tokens says"
        if text != "auto":
            if not text.isdigit() or not int(text):
                raise SkitError(
                    f"--kv-tokens takes a number of tokens, auto or unlimited, not '{text}'"
                )
            return KvCapacity(int(text), context), "as --kv-tokens says"
        if profile is None or roofline is None:
            return UNLIMITED_KV, "unlimited: the deployment names no profile of its verifier"
        if isinstance(roofline, str):
            return UNLIMITED_KV, f"unlimited: {roofline}"
        device = f"{stages} stages of {profile.device}" if stages > 1 else f"a {profile.device}"
        unknown = [reason for model in beside if isinstance(reason := roofline_of(model), str)]
        counted = () if unknown else beside
        models = " and ".join(f"{model.model} in {model.dtype}" for model in (profile, *counted))
        origin = f"what {models} {'leave' if counted else 'leaves'} free on {device}, less 10%"
        if unknown:
            origin += f"; the draft model beside it is not counted, {unknown[0]}"
        return kv_capacity(profile, stages=stages, beside=counted), origin

    def _definition(self, series: ServingSeries) -> Definition:
        return self._definition_of(series.deployment)

    def _definition_of(self, name: str) -> Definition:
        if name not in self._definitions:
            values = dict(map(parse_field, self.settings.replaced))
            self._definitions[name] = find(name).replace(values)
        return self._definitions[name]

    def _estimator_error(self, point: GridPoint) -> EstimatorError:
        name = self.settings.estimator_profile
        model = None
        if name is not None:
            served = verifier_profile(self._definition(point.series))
            if served is None:
                raise SkitError(
                    f"--estimator-profile {name}: the deployment {point.series.deployment} names no profile of its "
                    "verifier to compare it with"
                )
            model = estimate_with_profile(loading.load(name), served).model
        return EstimatorError(point.estimator_factor, point.estimator_noise, model)


def require_place(series: ServingSeries, deployment: Deployment) -> None:
    """Raise SkitError where a series' system would have its method draft at another place than a
    benchmark does.
    """
    system, method = series.serves, parse_method(series.method)
    named = f"{series.method} under system {series.system}"
    if system.drafting == "none":
        return
    require(
        method.uses_drafter,
        f"{named}: the method does not draft, and the system does: name a system that does not, such as centralized",
    )
    if system.drafting == "edge":
        require(
            (method.placement or deployment.placement) == "edge",
            f"{named}: its devices draft, and "
            + ("the method" if method.placement else f"deployment {deployment.name}")
            + " drafts on the server: name a system that does, such as adaspec, or --set drafter.placement=edge",
        )
        return
    require(
        method.placement != "edge",
        f"{named}: its server drafts, and the method on devices: name a system such as wisp",
    )
    require(
        not method.overlaps,
        f"{named}: the method drafts while the target verifies, and the server before: name a system whose devices "
        "draft, such as wisp",
    )


def _verified_model(definition: Definition) -> str:
    """Return the model that a deployment's verifier runs, or nothing where its profile does not
    say.
    """
    profile = verifier_profile(definition)
    return profile.model if profile else ""


def scaled(slo: SloMix, scale: float) -> SloMix:
    """Return the SLO with `scale` times the time per token."""
    return SloMix(slo.names, tuple(speed / scale for speed in slo.speeds), slo.shares)
