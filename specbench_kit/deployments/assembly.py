"""Wires methods, models, processes and deployments to the loops that decode; nothing else does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.near_misses import near_misses, words
from specbench_kit.decoding.card_clock import measuring_clock
from specbench_kit.decoding.clock import Clock, ModelledClock
from specbench_kit.decoding.drafter import Drafter
from specbench_kit.decoding.drafting.base import DRAFT, DrafterParts
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.decoding.pipeline.stages import Stages, VirtualStages
from specbench_kit.decoding.policy import LevelPolicy, Policy
from specbench_kit.decoding.verification import ModelVerifier
from specbench_kit.deployments.at_ends import PipelineTimeAtEnd, PipelineTimes
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.pipeline_time import PipelineTime
from specbench_kit.deployments.placing import (
    add_modelled_time,
    states_on_the_way,
    with_engine_times,
)
from specbench_kit.methods.base import Method
from specbench_kit.models.runner import Runner
from specbench_kit.runs.document import HiddenStates

if TYPE_CHECKING:
    from specbench_kit.decoding.processes.stages import ProcessStages
    from specbench_kit.decoding.verification import Target


OWN = __name__.partition(".")[0]
"""The package of the kit's own methods."""


def local_loop(
    method: Method,
    target: Runner,
    draft: Runner | None = None,
    *,
    setup: DecodingSetup,
    deployment: Deployment | None = None,
    ends: Sequence[Deployment] = (),
    stages: "ProcessStages | None" = None,
    others: Mapping[str, Runner] = MappingProxyType({}),
) -> Loop:
    """Return the method's decoding loop, on this machine's clock or on a deployment's.

    Records say what the same rounds take at the `ends` of the deployment's range as well. `stages`
    are processes that hold the target in slices and do its work. `others` are the models by name
    that the drafter forwards in addition to the draft model. A request may reach what all runners
    have room for.
    """
    models = {**others, **({} if draft is None else {DRAFT: draft})}
    setup = setup.within(min(runner.capacity for runner in (target, *models.values())))
    if method.pipeline is not None:
        return pipeline_engine(
            method,
            stages or VirtualStages(target),
            models,
            setup,
            device=target.device,
            deployment=deployment,
            ends=ends,
            states=None
            if deployment is None
            else hidden_states(method, deployment, target, models),
        )
    source = _in_slices(stages) if stages else target
    layers = method.drafting.layers(models)
    if layers:
        # A drafter that reads hidden states needs those of every token before it drafts, so that
        # the target has to compute a forced token before what follows it is drafted.
        setup = replace(setup, skip_forced=False)
    verifier = ModelVerifier(
        source,
        setup.sampler,
        layers,
        method.reads_candidates,
        setup.lossy,
        divergences=method.reads_divergences,
    )
    make = partial(Engine, round_policy(method), setup=setup, name=method.display_name)
    if deployment is None:
        measured = measuring_clock(
            target.device, setup.started_s, [model.device for model in models.values()]
        )
        drafter = round_drafter(method, models, measured, setup)
        if isinstance(drafter, ModelDrafter) and stages is None:
            drafter.on_trees = partial(verifier.verify_ahead, target)
        return make(drafter, verifier, measured)
    states = hidden_states(method, deployment, target, models)
    modelled = ModelledClock(setup.started_s)
    drafter = round_drafter(method, models, modelled, setup)
    return make(*add_modelled_time(method, drafter, verifier, deployment, modelled, states, ends))


def round_drafter(
    method: Method,
    models: Mapping[str, Runner],
    clock: Clock,
    setup: DecodingSetup,
    remembered: int | None = None,
) -> Drafter:
    """Return the drafter of a method with rounds.

    A drafter that looks up keeps up to `remembered` tokens of finished outputs, or all of them.
    """
    sampler = setup.sampler
    sampled = method.proposal == "sample" and not sampler.greedy
    if sampled:
        sampler = sampler.of_likeliest(setup.draft_top_n)
    return method.drafting.source(
        DrafterParts(models, sampler, clock, sampled, setup.capacity, remembered)
    )


def _in_slices(stages: "ProcessStages") -> "Target":
    """Return the target that processes hold in slices; a replay, which runs no model, is spared
    their imports.
    """
    from specbench_kit.decoding.processes.stages import PipelineTarget

    return PipelineTarget(stages)


def pipeline_engine(
    method: Method,
    stages: Stages,
    models: Mapping[str, Runner],
    setup: DecodingSetup,
    *,
    device: torch.device,
    deployment: Deployment | None = None,
    ends: Sequence[Deployment] = (),
    states: HiddenStates | None = None,
) -> PipelineEngine:
    """Return the loop over pipeline stages, with a drafter over `models` if the method has one."""
    assert method.pipeline is not None
    clock = measuring_clock(device, setup.started_s, [model.device for model in models.values()])
    parts = DrafterParts(models, setup.sampler, clock, sampled=False, capacity=setup.capacity)
    drafter = method.drafting.levels(parts) if method.uses_drafter else None
    make = partial(
        PipelineEngine,
        level_policy(method),
        drafter,
        stages,
        setup=setup,
        depth=method.pipeline.stages,
        name=method.display_name,
        budget=method.pipeline.budget,
    )
    if deployment is None:
        return make(clock)
    require_stages(method, deployment)
    modelled = ModelledClock(setup.started_s)
    drafts = method.uses_drafter
    time = PipelineTime(
        with_engine_times(method, deployment), modelled, drafts=drafts, states=states
    )
    at_ends = [
        PipelineTimeAtEnd(with_engine_times(method, end), drafts=drafts, states=states)
        for end in ends
    ]
    return make(modelled, time=PipelineTimes(time, at_ends) if at_ends else time)


def require_stages(method: Method, deployment: Deployment) -> None:
    """Raise SkitError if the method's pipeline has other stages than the deployment's verifier."""
    if method.pipeline is not None and deployment.verifier.stages != method.pipeline.stages:
        raise SkitError(
            f"the method has {method.pipeline.stages} stages, the verifier of deployment {deployment.name} has "
            f"{deployment.verifier.stages}: give both the same, with stages=... or --set verifier.stages=..."
        )


def hidden_states(
    method: Method, deployment: Deployment, target: Runner, models: Mapping[str, Runner]
) -> HiddenStates | None:
    """Return the hidden states of the target that the method's drafter reads, or None.

    `models` are the drafter's, by name.
    """
    layers = method.drafting.layers(models)
    return (
        states_on_the_way(method, deployment, layers, target.executor.state_bytes)
        if layers
        else None
    )


def round_policy(method: Method) -> Policy:
    """Return the policy of a method that decodes in rounds."""
    policy = method.policy()
    if not isinstance(policy, Policy):
        raise SkitError(
            f"{method.display_name}: policy() must return a Policy, since the method has no pipeline"
        )
    _require_hooks(method, policy)
    return policy


def _require_hooks(method: Method, policy: Policy) -> None:
    """Raise SkitError for a policy of another package that misspells a hook, or has none that
    drafts.
    """
    kind = type(policy)
    name = method.display_name
    if type(method).__module__.partition(".")[0] == OWN:
        return
    misses = near_misses(kind, Policy)
    require(not misses, f"{name}: its policy {kind.__qualname__} has {words(misses)}")
    drafts = (
        kind.draft is not Policy.draft
        or kind.overlap is not Policy.overlap
        or "draft" in vars(policy)
    )
    require(
        drafts or not method.uses_drafter,
        f"{name}: its policy {kind.__qualname__} has no draft(self, drafter), so that it never drafts: add it, or set "
        "uses_drafter = False in a method that decodes without drafts",
    )


def level_policy(method: Method) -> LevelPolicy:
    """Return the policy of a method that fills a pipeline."""
    policy = method.policy()
    if not isinstance(policy, LevelPolicy):
        raise SkitError(
            f"{method.display_name}: policy() must return a LevelPolicy, since the method has a pipeline"
        )
    return policy
