"""Rounds that have arrived and that the scheduler does not see yet."""

from collections import Counter, deque
from collections.abc import Iterable

from specbench_kit.live.server.accounts import Account
from specbench_kit.live.server.rounds import PendingRound


class Backlog:
    """Keeps the rounds of each account beyond its share of the slots back while other accounts use the server.

    So a device with a thousand sessions delays those of others by one batch, not by a thousand rounds. The rounds of an
    account stay in order. Belongs to the verification thread.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._backlogs: dict[Account, deque[PendingRound]] = {}
        self._scheduled: Counter[Account] = Counter()
        """Rounds that the scheduler sees."""

    def __len__(self) -> int:
        return sum(map(len, self._backlogs.values()))

    def add(self, pending: PendingRound) -> None:
        """Take in a round that has arrived."""
        self._backlogs.setdefault(pending.session.account, deque()).append(pending)

    def leave(self, rounds: Iterable[PendingRound]) -> None:
        """Note that the scheduler handed these rounds out."""
        self._scheduled.subtract(pending.session.account for pending in rounds)
        self._scheduled = +self._scheduled

    def take(self, holders: Iterable[Account]) -> list[PendingRound]:
        """Return the rounds that the scheduler may see now; `holders` are the accounts with sessions in KV."""
        users = {*holders, *self._backlogs, *self._scheduled}
        share = max(1, self._slots // max(1, len(users)))
        taken: list[PendingRound] = []
        for account, backlog in list(self._backlogs.items()):
            while backlog and (len(users) == 1 or self._scheduled[account] < share):
                taken.append(backlog.popleft())
                self._scheduled[account] += 1
            if not backlog:
                del self._backlogs[account]
        return sorted(taken, key=lambda pending: pending.arrived_s)
