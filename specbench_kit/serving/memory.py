"""The verifier's memory for KV: what weights leave free, and who is in it."""

from dataclasses import dataclass, field
from math import inf

from specbench_kit.deployments.loading import Definition
from specbench_kit.deployments.profiles import find_profile
from specbench_kit.errors import SkitError
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import BYTES
from specbench_kit.profilers.roofline import roofline_of

RESERVED = 0.1
"""Share of a device's memory that is kept for activations and the framework, as vLLM does by default."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Tokens of KV that a server holds, and the longest context of its model."""

    tokens: float = inf
    context: float = inf


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


@dataclass(slots=True)
class Residents:
    """Sessions whose KV is in memory, in tokens. What a batch uses is pinned.

    Of the sessions that grow until memory is full, the one that was let in last makes room: of those that are
    drafting, or else of those that wait. So it is always the same few that are cold; evicting the least recently used
    of sessions that come back in turn would evict each of them just before it is needed.
    """

    capacity: float
    used: int = 0
    peak: int = 0
    evictions: int = 0
    _idle: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    """By session, how many had been let in before it."""
    _let_in: int = 0

    def arrive(self, client: int) -> None:
        """A session that drafted now waits."""
        if client in self._idle:
            self._waiting[client] = self._idle.pop(client)

    def admit(self, client: int, tokens: int) -> bool:
        """Keep room for a session without KV, if there is enough beside all others."""
        if self.used + tokens > self.capacity:
            return False
        self._enter(client)
        self._waiting[client] = tokens
        self.used += tokens
        return True

    def pin(self, client: int, tokens: int) -> None:
        """A session joins the batch and grows to so many tokens."""
        self._enter(client)
        self.used += tokens - self._waiting.pop(client, 0)

    def make_room(self) -> list[int]:
        """Evict until what is pinned fits; returns who had to go."""
        gone = []
        while self.used > self.capacity:
            held = self._idle or self._waiting
            client = max(held, key=self._since.__getitem__)
            self.used -= held.pop(client)
            del self._since[client]
            gone.append(client)
        self.evictions += len(gone)
        self.peak = max(self.peak, self.used)
        return gone

    def unpin(self, client: int, pinned: int, kept: int) -> None:
        """After its verification a session keeps so many of its pinned tokens."""
        self.used += kept - pinned
        if kept:
            self._idle[client] = kept
        else:
            del self._since[client]

    def _enter(self, client: int) -> None:
        if client not in self._since:
            self._since[client] = self._let_in
            self._let_in += 1
