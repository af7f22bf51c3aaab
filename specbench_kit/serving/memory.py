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

    Of the sessions that are drafting, the least recently used makes room first; then the newest of those that wait,
    which is mostly the last to have its turn.
    """

    capacity: float
    used: int = 0
    peak: int = 0
    evictions: int = 0
    _idle: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)

    def arrive(self, client: int) -> None:
        """A session that drafted now waits."""
        if client in self._idle:
            self._waiting[client] = self._idle.pop(client)

    def pin(self, client: int, tokens: int) -> None:
        """A session joins the batch and grows to so many tokens."""
        self.used += tokens - self._waiting.pop(client, 0)

    def make_room(self) -> list[int]:
        """Evict until what is pinned fits; returns who had to go."""
        gone = []
        while self.used > self.capacity:
            client = next(iter(self._idle)) if self._idle else next(reversed(self._waiting))
            self.used -= self._idle.pop(client, 0) or self._waiting.pop(client)
            gone.append(client)
        self.evictions += len(gone)
        self.peak = max(self.peak, self.used)
        return gone

    def unpin(self, client: int, pinned: int, kept: int) -> None:
        """After its verification a session keeps so many of its pinned tokens."""
        self.used += kept - pinned
        if kept:
            self._idle[client] = kept
