"""Builds the decoding engine of a method whose target is behind a network."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.card_clock import measuring_clock
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.policy import RunsAheadPolicy
from specbench_kit.decoding.verification import RemoteVerifier
from specbench_kit.deployments.assembly import round_drafter, round_policy
from specbench_kit.live.free_running import (
    AnswerPollingDrafter,
    FreeRunningDrafter,
    FreeRunningVerifier,
)
from specbench_kit.live.streaming import StreamedLoop, TokenStream
from specbench_kit.methods.base import Method
from specbench_kit.models.runner import Runner


def remote_loop(
    method: Method,
    models: Mapping[str, Runner],
    make_verifier: Callable[[MeasuringClock], RemoteVerifier],
    setup: DecodingSetup,
) -> Loop:
    """Return the engine of a method with local draft models and a remote verifier, timed by this
    machine's clock.

    Raise SkitError for a method that needs the target in this process, since it has a pipeline. The
    verifier of a drafter that reads hidden states has to bring them.
    """
    require_rounds(method)
    if method.drafting.layers(models) or method.ahead is not None:
        # The target has to compute a forced token before what follows it can be drafted from its
        # states. A chain that is drafted ahead holds forced tokens already, and goes on.
        setup = replace(setup, skip_forced=False)
    device = next((runner.device for runner in models.values()), torch.device("cpu"))
    clock = measuring_clock(device, setup.started_s)
    drafter = round_drafter(method, models, clock, setup)
    verifier = make_verifier(clock)
    if method.ahead is not None:
        if not isinstance(verifier, FreeRunningVerifier):
            raise SkitError(
                f"{method.display_name}: this server takes one draft at a time: name another method"
            )
        policy = RunsAheadPolicy(method.ahead.longest)
        source = FreeRunningDrafter(drafter, verifier)
        engine = Engine(policy, source, verifier, clock, setup=setup, name=method.display_name)
        engine.runs_on = True  # the server decodes by itself, whoever's turn it is here
        return engine
    return Engine(
        round_policy(method),
        # A method that drafts while it waits must stop as soon as the answer is here.
        AnswerPollingDrafter(drafter, verifier.answer_arrived) if method.overlaps else drafter,
        verifier,
        clock,
        setup=setup,
        name=method.display_name,
    )


def require_rounds(method: Method) -> None:
    """Raise SkitError for a method that needs the target in this process, since it has a
    pipeline.
    """
    if method.pipeline is not None:
        raise SkitError(
            f"{method.display_name}: a pipeline's stages cannot be behind a wire: name a method with rounds"
        )


def streamed_loop(stream: TokenStream, setup: DecodingSetup) -> Loop:
    """Return the engine of a server that decodes by itself, timed by this machine's clock."""
    return StreamedLoop(stream, MeasuringClock(torch.device("cpu"), setup.started_s), setup)
