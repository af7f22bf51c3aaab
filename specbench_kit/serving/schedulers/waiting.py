"""A round that waits at the server, as schedulers see it."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class WaitingRound:
    """One client's round that waits to be verified.

    `new` tokens have to be computed after `cached` ones that the server holds in KV. `expected_tokens` is what the
    round is expected to commit. `deadline_s` is by when this round has to be verified for its own tokens to come at
    the promised speed; `response_deadline_s` is by when it has to be for the whole response to be on schedule, which
    is later if earlier rounds were fast, and earlier if they were slow. The server sets `isolated_s`, the expected
    duration of a batch of this round alone, of which `error_s` is the estimator's random error. A queue sets
    `scheduled` when it has handed the round out.
    """

    client: int
    new: int
    cached: int
    arrived_s: float
    deadline_s: float
    expected_tokens: float
    response_deadline_s: float
    isolated_s: float = 0.0
    error_s: float = 0.0
    scheduled: bool = False

    @property
    def kv_tokens(self) -> int:
        """Tokens in KV while it is verified."""
        return self.new + self.cached

    def lose_kv(self) -> None:
        """Note that the server holds none of its session in KV any more: all of it has to be
        computed again.
        """
        self.new += self.cached
        self.cached = 0
