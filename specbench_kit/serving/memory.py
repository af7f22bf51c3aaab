"""The verifier's memory for KV: how much the weights leave free, and which sessions are in it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import Definition, profile_in
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.roofline import Roofline, roofline_of
from specbench_kit.serving.arrays import Integers

RESERVED = 0.1
"""Share of a device's memory that is left for activations and the framework, as vLLM does by
default.
"""

TYPICAL_CONTEXT = 2048
"""The tokens of a request over which its windows and states are spread, where no KV is stated."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Tokens of KV that fit on a server, the longest context of its model, and whether it evicts by
    last use (LRU).
    """

    tokens: float = inf
    context: float = inf
    lru: bool = False


UNLIMITED_KV = KvCapacity()


def verifier_profile(definition: Definition) -> Profile | None:
    """Return the profile that a deployment names for its verifier; None if it gives coefficients
    instead.
    """
    return profile_in(
        definition.content["verifier"], definition.path.parent, "verifier", "verifier"
    )


def drafter_profile(definition: Definition) -> Profile | None:
    """Return the profile of the draft model beside the target; None if its coefficients say nothing
    of a model.
    """
    content = definition.content
    table = content.get("colocated") or content["drafter"]
    return profile_in(table, definition.path.parent, "drafter", "drafter")


def kv_capacity(
    profile: Profile, reserved: float = RESERVED, stages: int = 1, beside: Sequence[Profile] = ()
) -> KvCapacity:
    """Return the KV capacity of the device and model that a profile was measured with, or of so
    many such stages.

    The models of the profiles `beside` it have their weights and their KV in the same memory.
    """
    rooflines = [_known_roofline(model) for model in (profile, *beside)]
    tokens = tokens_beside(rooflines, reserved, stages)
    if tokens < 1:
        models = " and ".join(f"{model.model} in {model.dtype}" for model in (profile, *beside))
        raise SkitError(f"the weights of {models} leave no room for KV on a {profile.device}")
    return KvCapacity(tokens, rooflines[0].architecture.max_positions)


def _known_roofline(profile: Profile) -> Roofline:
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        raise SkitError(f"the memory for KV is unknown, {roofline}: give the number of tokens")
    return roofline


def tokens_beside(models: Sequence[Roofline], reserved: float = RESERVED, stages: int = 1) -> float:
    """Return the tokens whose KV fits beside the weights of models that share the device of the
    first.

    A pipeline has that device once in each of its `stages`, with an equal part of the weights and
    of every token's KV. What layers with a window or a state hold does not grow with a request: it
    is spread over the tokens of requests of `TYPICAL_CONTEXT`.
    """
    memory = stages * models[0].device.memory_bytes
    weights = sum(model.weight_bytes for model in models)
    return float(
        ((1 - reserved) * memory - weights)
        // sum(model.held_token_bytes(TYPICAL_CONTEXT) for model in models)
    )


class KvMemory:
    """The sessions whose KV is in memory, one per client; `used` and `peak` count tokens.

    A session is admitted with the tokens of its first round, pinned at the size that a batch needs
    while that batch is verified, and unpinned at the size that stays. Sessions grow, so a batch can
    need more than there is: then sessions outside it are evicted, those that are drafting before
    those whose rounds wait, the last one admitted first. So it is always the same few sessions that
    are evicted; the least recently used of sessions that return in turn would be the one that is
    needed next. With `lru` that is done all the same, as by servers with a prefix cache.
    """

    def __init__(self, capacity: float, clients: int, *, lru: bool = False) -> None:
        self.used = self.peak = self.evictions = 0
        self._capacity = capacity
        self._lru = lru
        self._tokens = np.zeros(clients, dtype=np.int64)
        self._since = np.zeros(clients, dtype=np.int64)
        """Rank of each session's admission; with `lru`, of its last use."""
        self._admissions = 0

    def admit(self, client: int, tokens: int) -> bool:
        """Reserve memory for a session without KV; return False if there is not enough besides all
        others.
        """
        if self.used + tokens > self._capacity:
            return False
        self._since[client], self._tokens[client] = self._admissions, tokens
        self._admissions += 1
        self.used += tokens
        return True

    def pin(
        self,
        clients: Integers,
        tokens: Integers,
        waiting: Collection[int],
        in_flight: Sequence[Integers] = (),
    ) -> list[int]:
        """Grow the sessions of a batch to `tokens` each, and return the clients that are evicted
        for them.

        `waiting` are the clients outside the batch whose rounds wait, `in_flight` those of other batches under way,
        which stay.
        """
        before = self._tokens[clients]
        ranked = clients if self._lru else clients[before == 0]
        if len(ranked):
            self._since[ranked] = self._admissions + np.arange(len(ranked))
            self._admissions += len(ranked)
        self.used += int(tokens.sum() - before.sum())
        self._tokens[clients] = tokens
        pinned = np.concatenate([clients, *in_flight]) if in_flight else clients
        evicted = self._make_room(pinned, waiting) if self.used > self._capacity else []
        self.evictions += len(evicted)
        self.peak = max(self.peak, self.used)
        return evicted

    def unpin(self, clients: Integers, remaining: Integers) -> None:
        """Shrink sessions to the tokens that remain in KV after their verification."""
        self.used += int(remaining.sum() - self._tokens[clients].sum())
        self._tokens[clients] = remaining

    def release(self, client: int) -> None:
        """Drop the KV of a session that goes on elsewhere."""
        self.used -= int(self._tokens[client])
        self._tokens[client] = 0

    def clear(self) -> None:
        """Drop all KV, as a server does that fails."""
        self.used = 0
        self._tokens[:] = 0

    def _make_room(self, pinned: Integers, waiting: Collection[int]) -> list[int]:
        (resident,) = self._tokens.nonzero()
        unpinned = np.setdiff1d(resident, pinned)
        order = np.argsort(self._since[unpinned], kind="stable")
        candidates = unpinned[order if self._lru else order[::-1]].tolist()
        evicted = []
        for client in sorted(candidates, key=waiting.__contains__):
            if self.used <= self._capacity:
                break
            self.used -= int(self._tokens[client])
            self._tokens[client] = 0
            evicted.append(client)
        return evicted
