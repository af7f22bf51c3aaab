"""The verifier's memory for KV: what weights leave free, and who is in it."""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import Definition
from specbench_kit.deployments.profiles import find_profile
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import BYTES
from specbench_kit.profilers.roofline import roofline_of
from specbench_kit.serving.counter_rng import Integers

RESERVED = 0.1
"""Share of a device's memory that is kept for activations and the framework, as vLLM does by default."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Tokens of KV that a server holds, the longest context of its model, and whether it evicts by last use (LRU)."""

    tokens: float = inf
    context: float = inf
    lru: bool = False


UNLIMITED = KvCapacity()


def server_profile(definition: Definition) -> Profile | None:
    """The profile that a deployment names for its verifier; None where it gives coefficients instead."""
    name = definition.content["verifier"].get("profile")
    return find_profile(name, definition.path.parent, "verifier") if name else None


def capacity(profile: Profile, reserved: float = RESERVED) -> KvCapacity:
    """Of the device and the model that a profile was taken of."""
    roofline = roofline_of(profile)
    if isinstance(roofline, str):
        raise SkitError(f"the memory for KV cannot be told, {roofline}: give the number of tokens yourself")
    memory, per_token = roofline.device.memory_bytes, roofline.architecture.kv_numbers * BYTES[profile.dtype]
    tokens = ((1 - reserved) * memory - roofline.weight_bytes) // per_token
    if tokens < 1:
        raise SkitError(f"the weights of {profile.model} in {profile.dtype} leave no room for KV on a {profile.device}")
    return KvCapacity(tokens, roofline.architecture.max_positions)


class KvMemory:
    """Sessions whose KV is in memory, in tokens; one per client. What a batch uses is pinned.

    Of the sessions that grow until memory is full, the one that was let in last makes room: of those that are
    drafting, or else of those that wait. So it is always the same few that are cold; evicting the least recently used
    of sessions that come back in turn would evict each of them just before it is needed. With `lru` that is what
    happens, as in servers that cache prefixes.
    """

    def __init__(self, capacity: float, clients: int, *, lru: bool = False) -> None:
        self.used = self.peak = self.evictions = 0
        self._capacity, self._lru = capacity, lru
        self._tokens = np.zeros(clients, dtype=np.int64)
        self._since = np.zeros(clients, dtype=np.int64)
        """Of those in memory: how many had been let in before; with `lru`, how many had been used."""
        self._let_in = 0

    def admit(self, client: int, tokens: int) -> bool:
        """Keep room for a session without KV, if there is enough beside all others."""
        if self.used + tokens > self._capacity:
            return False
        self._since[client], self._tokens[client] = self._let_in, tokens
        self._let_in += 1
        self.used += tokens
        return True

    def pin(self, clients: Integers, tokens: Integers, waiting: Collection[int]) -> list[int]:
        """Sessions join the batch and grow to so many tokens; returns who had to go for them.

        Of the others, `waiting` are the clients whose rounds wait.
        """
        self._hold(clients, tokens)
        gone = self._make_room(clients, waiting) if self.used > self._capacity else []
        self.evictions += len(gone)
        self.peak = max(self.peak, self.used)
        return gone

    def unpin(self, clients: Integers, kept: Integers) -> None:
        """After their verification sessions keep so many of their pinned tokens."""
        self.used += int(kept.sum() - self._tokens[clients].sum())
        self._tokens[clients] = kept

    def _hold(self, clients: Integers, tokens: Integers) -> None:
        before = self._tokens[clients]
        new = clients if self._lru else clients[before == 0]
        if len(new):
            self._since[new] = self._let_in + np.arange(len(new))
            self._let_in += len(new)
        self.used += int(tokens.sum() - before.sum())
        self._tokens[clients] = tokens

    def _make_room(self, pinned: Integers, waiting: Collection[int]) -> list[int]:
        (held,) = self._tokens.nonzero()
        others = np.setdiff1d(held, pinned)
        order = np.argsort(self._since[others], kind="stable")
        first_to_go = others[order if self._lru else order[::-1]].tolist()
        gone = []
        for client in sorted(first_to_go, key=waiting.__contains__):
            if self.used <= self._capacity:
                break
            self.used -= int(self._tokens[client])
            self._tokens[client] = 0
            gone.append(client)
        return gone
