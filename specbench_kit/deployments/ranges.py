"""The range of a deployment whose times are derived: the same deployment at the ends of what they may be."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from specbench_kit.deployments.base import Deployment, Endpoint

ENDS = ("fast", "slow")
DECIDED_ANEW, AS_DRAFTED = "anew", "as drafted"
"""Whether a method decided anew at each end of a range, or its rounds were timed there as they were drafted."""


def describe_range(ends: Iterable[str], decisions: str) -> dict[str, object]:
    """Return what `run.json` says of the range of derived times: the names of its ends, in the order of records."""
    names = list(ends)
    return {"range": {"ends": names, "decisions": decisions}} if names else {}


def corners(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield the deployment with its drafter and its verifier at either end of their ranges; nothing without a range.

    Both ends of both devices are combined, since a fast drafter beside a slow verifier favours other policies than two
    fast devices.
    """
    drafters, verifiers = (list(_ends(endpoint)) for endpoint in (deployment.drafter, deployment.verifier))
    if len(drafters) == len(verifiers) == 1:
        return
    for (drafter_end, drafter), (verifier_end, verifier) in product(drafters, verifiers):
        named = [f"{end} {role}" for end, role in ((drafter_end, "drafter"), (verifier_end, "verifier")) if end]
        colocated = deployment.colocated and _at(deployment.colocated, drafter_end)
        yield ", ".join(named), replace(deployment, drafter=drafter, verifier=verifier, colocated=colocated)


def _ends(endpoint: Endpoint) -> Iterator[tuple[str, Endpoint]]:
    if endpoint.range is None:
        yield "", endpoint
        return
    for end in ENDS:
        yield end, _at(endpoint, end)


def _at(endpoint: Endpoint, end: str) -> Endpoint:
    """Return an endpoint at one end of its range, or as it is if it has none."""
    if endpoint.range is None or not end:
        return endpoint
    return replace(endpoint, latency=endpoint.range[ENDS.index(end)])
