"""The target's KV slots: which sessions hold one, and who has to give one up."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container

from specbench_kit.live.server.accounts import Account
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.server.verifiers import BatchVerifier


class KvSlots:
    """The sessions whose KV the target holds, the least recently used one first; belongs to the verification thread."""

    def __init__(self, verifier: BatchVerifier, count: int, on_release: Callable[[ServerSession], None]) -> None:
        self._verifier, self.count, self._on_release = verifier, count, on_release
        self._holders: OrderedDict[ServerSession, None] = OrderedDict()
        self.evictions = 0
        """How often a session lost its slot to another one."""

    def __len__(self) -> int:
        return len(self._holders)

    def accounts(self) -> set[Account]:
        """Return the accounts that hold a slot."""
        return {holder.account for holder in self._holders}

    def bring(self, session: ServerSession, needed: Container[ServerSession]) -> int:
        """Give a session a slot and return its tokens in KV; another one that is not `needed` may lose its own."""
        if session in self._holders:
            self._holders.move_to_end(session)
            return session.cached
        if len(self._holders) >= self.count:
            victim = self._victim(session, needed)
            self.release(victim)
            victim.account.evictions += 1
            self.evictions += 1
        self._verifier.admit(session)
        self._holders[session] = None
        session.cached = 0
        return 0

    def release(self, session: ServerSession) -> None:
        """Free a session's slot if it has one."""
        if session not in self._holders:
            return
        del self._holders[session]
        self._verifier.release(session)
        session.cached = 0
        self._on_release(session)

    def _victim(self, session: ServerSession, needed: Container[ServerSession]) -> ServerSession:
        """Return the least recently used session of an account that holds more than its share of the slots.

        Whoever opens many sessions takes slots from itself, not from others.
        """
        held = Counter(holder.account for holder in self._holders)
        held[session.account] += 1
        share = self.count / len(held)
        free = [holder for holder in self._holders if holder not in needed]
        return next((holder for holder in free if held[holder.account] > share), free[0])
