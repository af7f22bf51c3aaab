"""How many tokens to draft by batch size and context: step times of a deployment, acceptance of runs."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import Definition
from specbench_kit.deployments.placing import with_method_times
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers.roofline import Roofline, roofline_of
from specbench_kit.serving.memory import (
    UNLIMITED_KV,
    KvCapacity,
    drafter_profile,
    kv_capacity,
    verifier_profile,
)
from specbench_kit.studies.sweep.batch_sizes import LengthAtContext


def fastest_lengths(
    deployment: Deployment,
    committed: Mapping[str, float],
    sizes: Sequence[int],
    contexts: Sequence[int],
    room: KvCapacity = UNLIMITED_KV,
) -> Iterator[LengthAtContext]:
    """Yield the fastest of `committed`, specs of one length with the tokens of their rounds, at each
    context and size for which there is `room`; without a draft where none of them pays.
    """
    for context in contexts:
        for size in sizes:
            if size * context > room.tokens or context > room.context:
                continue
            plain_s = deployment.verifier.pass_s([(1, context)] * size)
            speedups = {
                spec: tokens * plain_s / round_s(deployment, spec, size, context)
                for spec, tokens in committed.items()
            }
            best = max(speedups, key=speedups.__getitem__)
            pays = speedups[best] > 1
            yield LengthAtContext(
                context,
                size,
                parse_method(best).longest_draft or 0 if pays else 0,
                speedups[best] if pays else 1.0,
            )


def kv_room(definition: Definition) -> KvCapacity:
    """Return the room for KV beside a deployment's target and what drafts on its cards; unlimited
    where nothing says how large models and memory are.
    """
    target = verifier_profile(definition)
    if target is None or not isinstance(roofline_of(target), Roofline):
        return UNLIMITED_KV
    built = definition.build()
    drafter = drafter_profile(definition) if built.placement == "server" else None
    known = drafter is not None and isinstance(roofline_of(drafter), Roofline)
    beside = (drafter,) if drafter and known and drafter.device in target.device else ()
    return kv_capacity(target, stages=built.verifier.stages, beside=beside)


def round_s(deployment: Deployment, spec: str, size: int, context: int) -> float:
    """Return the seconds of a round of a batch that drafts as many tokens in every round.

    A server drafts for the whole batch at once; devices draft for themselves, at the same time, and
    a round trip lies between them and the server.
    """
    method = parse_method(spec)
    timed = with_method_times(method, deployment)
    drafted = method.longest_draft or 0
    at_edge = timed.placement == "edge"
    forwards = ceil(drafted / method.drafting.tokens_per_forward)
    drafters = [(1, context)] * (1 if at_edge else size)
    draft_s = forwards * timed.drafter.pass_s(drafters)
    verify_s = timed.verifier.pass_s([(drafted + 1, context)] * size)
    return draft_s + verify_s + (timed.link.rtt_s if at_edge else 0.0)
