"""The target's forwards for sessions that differ in their sampling, or in the hidden states that
they ask for.
"""

from collections.abc import Sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.verification import (
    Verdict,
    appended_row,
    commit_verdict,
    masked_by_grammars,
    verdict_on,
    verified_rows,
)
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.states import to_bytes
from specbench_kit.models.runner import Append, Runner


class BatchVerifier:
    """Verifies the rounds of a batch in one forward, or in two if some of its sessions ask for
    hidden states.

    Whatever a forward raises is found by halves: the rounds that cause it fail, and all others get
    their verdicts.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._slots: dict[ServerSession, int] = {}

    def admit(self, session: ServerSession) -> None:
        """Acquire an empty slot for a session."""
        self._slots[session] = self._runner.acquire()

    def release(self, session: ServerSession) -> None:
        """Free a session's slot."""
        self._runner.release(self._slots.pop(session))

    def commit(self, session: ServerSession, verdict: Verdict) -> None:
        """Commit a verdict to a session's KV."""
        commit_verdict(self._runner, self._slots[session], verdict)

    def verify(
        self, rounds: Sequence[PendingRound]
    ) -> tuple[dict[PendingRound, Verdict], dict[PendingRound, str]]:
        """Return the verdicts on rounds, and the errors of those that failed; all their sessions
        have slots.
        """
        verdicts: dict[PendingRound, Verdict] = {}
        faults: dict[PendingRound, str] = {}
        for pending in rounds:
            try:  # before the forward, so that a grammar that leads nowhere costs nobody another one
                pending.draft.allowed_after((0, *pending.nodes))
            except SkitError as error:
                faults[pending] = fault_of(error)
        sound = [pending for pending in rounds if pending not in faults]
        for with_states in (False, True):
            group = [pending for pending in sound if bool(pending.session.layers) is with_states]
            if group:
                self._verify(group, verdicts, faults)
        return verdicts, faults

    def _verify(
        self,
        rounds: Sequence[PendingRound],
        verdicts: dict[PendingRound, Verdict],
        faults: dict[PendingRound, str],
    ) -> None:
        """Verify rounds in one forward; if it fails, each half of them in a forward of its own."""
        try:
            rows = [self._row(pending) for pending in rounds]
            forward = self._runner.forward(
                rows, sorted({n for pending in rounds for n in pending.session.layers})
            )
            drafts = [pending.draft for pending in rounds]
            chosen = [pending.nodes for pending in rounds]
            forward = masked_by_grammars(forward, drafts, chosen, rows)
            verified = verified_rows(
                forward, rows, greedy=any(pending.session.sampler.greedy for pending in rounds)
            )
        except Exception as error:  # the runner is a model's code, its compiler's and its driver's
            for pending in rounds:
                self._drop_provisional(pending.session)
            if len(rounds) == 1:
                faults[rounds[0]] = fault_of(error)
                return
            middle = len(rounds) // 2
            for half in (rounds[:middle], rounds[middle:]):
                self._verify(half, verdicts, faults)
            return
        for pending, row in zip(rounds, verified, strict=True):
            session = pending.session
            try:
                verdicts[pending] = verdict_on(
                    pending.draft, pending.nodes, row, session.sampler, session.layers
                ).with_counts()
            except Exception as error:
                self._drop_provisional(session)
                faults[pending] = fault_of(error)

    def _row(self, pending: PendingRound) -> Append:
        session = pending.session
        return appended_row(
            self._runner, self._slots[session], pending.draft, pending.nodes, bool(session.layers)
        )

    def _drop_provisional(self, session: ServerSession) -> None:
        """Drop what a failed forward appended; the committed KV before it is untouched."""
        self._runner.commit(self._slots[session], [])


def fault_of(error: Exception) -> str:
    """Return what a device is told of an exception: one line without the paths of a traceback."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def states_to_send(pending: PendingRound, verdict: Verdict, base: int) -> bytes:
    """Return the hidden states that a device lacks; `base` tokens were committed before the
    verdict.

    The forward gave those of all tokens that were not in KV, of which the device may have some.
    """
    if verdict.states is None:
        return b""
    lacking = base - pending.states + len(verdict.path)
    return to_bytes(verdict.states[len(verdict.states) - lacking :])
