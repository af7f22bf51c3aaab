"""A round that waits at the server."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class WaitingRound:
    """A round that waits for its verification.

    `new` tokens are to be computed after `cached` ones that the server holds in KV; `expected_tokens` is what the
    round is expected to commit. `deadline_s` is the round's own; `promised_s` adds what the response is ahead of its
    promise, or takes off what it is behind: an answer that is later leaves it behind. The server notes in `alone_s`
    how long it is expected to take by itself, of which `error_s` is known to be wrong; a queue marks with `taken` what
    it has handed out.
    """

    client: int
    new: int
    cached: int
    arrived_s: float
    deadline_s: float
    expected_tokens: float
    promised_s: float
    alone_s: float = 0.0
    error_s: float = 0.0
    taken: bool = False

    @property
    def kv_tokens(self) -> int:
        """Tokens in KV while it is verified."""
        return self.new + self.cached
