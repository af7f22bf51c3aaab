"""The target's forwards for sessions that differ in their sampling, or in the hidden states that they ask for."""

from collections.abc import Sequence

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import ModelVerifier, Verdict
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.states import to_bytes
from specbench_kit.models.runner import Runner


class TargetVerifiers:
    """One verifier for each sampler and choice of layers, all over the same runner of the target."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._verifiers: dict[tuple[Sampler, tuple[int, ...]], ModelVerifier] = {}

    def of(self, session: ServerSession) -> ModelVerifier:
        """Return the verifier of a session."""
        kind = session.sampler, session.layers
        if kind not in self._verifiers:
            self._verifiers[kind] = ModelVerifier(self._runner, *kind)
        return self._verifiers[kind]

    def forward(self, rounds: Sequence[PendingRound]) -> dict[PendingRound, Verdict]:
        """Return the verdicts on rounds, with one forward per verifier among their sessions."""
        groups: dict[ModelVerifier, list[PendingRound]] = {}
        for pending in rounds:
            groups.setdefault(self.of(pending.session), []).append(pending)
        verdicts: dict[PendingRound, Verdict] = {}
        for verifier, group in groups.items():
            answer = verifier.send([pending.draft for pending in group], [pending.nodes for pending in group])
            verdicts.update(zip(group, answer(), strict=True))
        return verdicts


def states_to_send(pending: PendingRound, verdict: Verdict | None, base: int) -> bytes:
    """Return the hidden states that a device lacks; `base` tokens were committed before the verdict.

    The forward gave those of all tokens that were not in KV, of which the device may have some.
    """
    if verdict is None or verdict.states is None:
        return b""
    lacking = base - pending.states + len(verdict.path)
    return to_bytes(verdict.states[len(verdict.states) - lacking :])
