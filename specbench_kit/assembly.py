"""The one place that wires methods, models, processes and deployments to the loops that decode."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch

from specbench_kit.decoding.clock import Clock, MeasuringClock, ModelledClock
from specbench_kit.decoding.drafter import Drafter, DraftSource
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.pipeline.drafter import LevelDrafter
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.decoding.pipeline.stages import Stages, VirtualStages
from specbench_kit.decoding.policy import LevelPolicy, Policy
from specbench_kit.decoding.processes.passes import Passes
from specbench_kit.decoding.processes.stages import ProcessStages
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import ModelVerifier, Verifier
from specbench_kit.deployments.alone import Alone
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.modelled import TimedDrafter, TimedVerifier, Timelines
from specbench_kit.deployments.pipeline_time import PipelineTime
from specbench_kit.drafting.base import DRAFT, Parts
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Environment, Latencies, Method
from specbench_kit.models.runner import Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.base import Role
from specbench_kit.profilers.loading import find_measured


def live_engine(
    method: Method,
    target: Runner,
    draft: Runner | None = None,
    *,
    sampler: Sampler,
    seed: int,
    eos_ids: frozenset[int],
    batch_size: int,
    started_s: float = 0.0,
    deployment: Deployment | None = None,
    stages: ProcessStages | None = None,
    others: Mapping[str, Runner] = MappingProxyType({}),
) -> Loop:
    """The method's loop over its models, on this machine's clock or on a deployment's.

    `stages` are processes that hold the target in slices and then do its work; `others` are the models that its drafter
    forwards besides the draft model, by name.
    """
    models = {**others, **({} if draft is None else {DRAFT: draft})}
    capacity = min(runner.capacity for runner in (target, *models.values()))
    if method.pipeline is not None:
        return pipeline_engine(
            method,
            stages or VirtualStages(target),
            draft,
            device=target.device,
            sampler=sampler,
            seed=seed,
            eos_ids=eos_ids,
            batch_size=batch_size,
            capacity=capacity,
            started_s=started_s,
            deployment=deployment,
        )
    sampled_drafts = method.proposal == "sample" and not sampler.greedy
    verifier = ModelVerifier(Passes(stages) if stages else target, sampler, method.drafting.layers(models))
    named = method.called
    make = partial(Engine, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity, name=named)

    def drafter(clock: Clock) -> Drafter:
        return method.drafting.source(Parts(models, sampler, clock, sampled_drafts, capacity))

    if deployment is None:
        measured = MeasuringClock(target.device, started_s)
        return make(round_policy(method), drafter(measured), verifier, measured)
    modelled = ModelledClock(started_s)
    return make(round_policy(method), *timed(method, drafter(modelled), verifier, deployment, modelled))


def pipeline_engine(
    method: Method,
    stages: Stages,
    draft: Runner | None,
    *,
    device: torch.device,
    sampler: Sampler,
    seed: int,
    eos_ids: frozenset[int],
    batch_size: int,
    capacity: int,
    started_s: float = 0.0,
    deployment: Deployment | None = None,
) -> PipelineEngine:
    """The loop over stages and a draft model, if it drafts, on this machine's clock or on a deployment's."""
    assert method.pipeline is not None
    depth, clock = method.pipeline.stages, MeasuringClock(device, started_s)
    drafter = None if draft is None or not method.uses_drafter else LevelDrafter(draft, sampler, clock)
    make = partial(
        PipelineEngine,
        level_policy(method),
        drafter,
        stages,
        sampler=sampler,
        depth=depth,
        seed=seed,
        eos_ids=eos_ids,
        batch_size=batch_size,
        capacity=capacity,
        name=method.called,
        budget=method.pipeline.budget,
    )
    if deployment is None:
        return make(clock)
    require_stages(method, deployment)
    modelled = ModelledClock(started_s)
    return make(modelled, time=PipelineTime(deployment, modelled, drafts=method.uses_drafter))


def require_stages(method: Method, deployment: Deployment) -> None:
    """Refuse a pipeline that the deployment's verifier does not have."""
    if method.pipeline is not None and deployment.verifier.stages != method.pipeline.stages:
        raise SkitError(
            f"the method has {method.pipeline.stages} stages, the verifier of deployment {deployment.name} has "
            f"{deployment.verifier.stages}: give both the same, with stages=... or --set verifier.stages=..."
        )


def require_states(method: Method, deployment: Deployment) -> None:
    """Refuse a drafter beyond the link that reads what does not cross it."""
    if _on_edge(method, deployment) and method.drafting.reads_target:
        raise SkitError(
            f"drafter '{method.drafting.called}' reads the target's hidden states, which do not cross the link of "
            f"deployment {deployment.name}: let it draft on the server (placement), or choose another drafter"
        )


def round_policy(method: Method) -> Policy:
    """The policy of a method that goes round by round."""
    policy = method.policy()
    if not isinstance(policy, Policy):
        raise SkitError(f"{method.called}: policy() must give a Policy where the method has no pipeline")
    return policy


def level_policy(method: Method) -> LevelPolicy:
    """The policy of a method that fills a pipeline."""
    policy = method.policy()
    if not isinstance(policy, LevelPolicy):
        raise SkitError(f"{method.called}: policy() must give a LevelPolicy where the method has a pipeline")
    return policy


def timed(
    method: Method, drafter: DraftSource, verifier: Verifier, deployment: Deployment, clock: ModelledClock
) -> tuple[TimedDrafter, TimedVerifier, ModelledClock]:
    """Drafter and verifier that take a deployment's time, and the clock that tells it."""
    on_edge = _on_edge(method, deployment)
    require_states(method, deployment)
    timelines = Timelines(_drafting(method, deployment), clock, on_edge=on_edge, learned=method.learned)
    return TimedDrafter(drafter, timelines), TimedVerifier(verifier, timelines), clock


def alone(method: Method, deployment: Deployment) -> Alone:
    """The clock of a deployment that serves one request after the other."""
    return Alone(_drafting(method, deployment), on_edge=_on_edge(method, deployment), learned=method.learned)


def _on_edge(method: Method, deployment: Deployment) -> bool:
    return (method.placement or deployment.placement) == "edge" and method.uses_drafter


def _drafting(method: Method, deployment: Deployment) -> Deployment:
    """The deployment whose drafter takes the time of the method's."""
    endpoint = replace(deployment.drafter, latency=method.drafting.latency(deployment.drafter.latency))
    return replace(deployment, drafter=endpoint)


def environment(pair: PairHashes, deployment: Deployment | None, device: str | torch.device = "auto") -> Environment:
    """Of a deployment, or of this machine's device, for which the pair has to be profiled first."""

    def latencies() -> Latencies:
        if deployment is not None:
            return Latencies(deployment.drafter.latency, deployment.verifier.latency)
        return Latencies(_measured(pair.draft, "drafter", device), _measured(pair.target, "verifier", device))

    return Environment(pair, latencies, modelled=deployment is not None)


def _measured(model_hash: str, role: Role, device: str | torch.device) -> LatencyModel:
    profile = find_measured(model_hash, role, device, form="context")
    if profile is None:
        raise SkitError(
            f"no latency profile of this pair's {role} was measured on this machine: "
            "run skit profile-drafter with the same --target and --draft, or choose a --deployment"
        )
    return profile.latency()
