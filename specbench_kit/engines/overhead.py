"""The time that a policy and its drafter take inside an engine, apart from the engine's own steps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from specbench_kit.decoding.clock import Phase

MS = 1e3


@dataclass(slots=True)
class Overhead:
    """Sums over all calls; `total_s` is the time inside of the drafter, `engine_s` that of the engine's steps."""

    calls: int = 0
    rounds: int = 0
    drafted: int = 0
    submitted: int = 0
    accepted: int = 0
    policy_s: float = 0.0
    draft_s: float = 0.0
    total_s: float = 0.0
    engine_s: float = 0.0

    def add_phases(self, seconds: Mapping[Phase, float]) -> None:
        """Add the seconds of one call by phase; the prefill of the draft model counts as drafting."""
        self.policy_s += seconds.get("policy", 0.0)
        self.draft_s += seconds.get("draft", 0.0) + seconds.get("prefill", 0.0)
        self.engine_s += seconds.get("verify", 0.0)

    def document(self) -> dict[str, object]:
        """Return the sums as `run.json` holds them."""
        return asdict(self)

    def line(self, engine: str) -> str:
        """Return the sums in one line for people."""
        if not self.calls:
            return f"skit in {engine}: nothing was drafted"
        policy, draft, total, step = (
            seconds / self.calls * MS for seconds in (self.policy_s, self.draft_s, self.total_s, self.engine_s)
        )
        share = total / (total + step) if total + step else 0.0
        return (
            f"skit in {engine}: {self.calls} calls, {self.accepted} of {self.submitted} draft tokens accepted in "
            f"{self.rounds} rounds; per call {policy:.2f} ms policy, {draft:.2f} ms drafting and "
            f"{max(0.0, total - policy - draft):.2f} ms bookkeeping beside {step:.2f} ms of {engine} "
            f"({share:.1%} of the time)"
        )
