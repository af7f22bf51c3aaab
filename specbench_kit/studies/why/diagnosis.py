"""From evidence to a verdict and findings."""

from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.studies.why.evidence import Evidence, Figures, figures_of
from specbench_kit.studies.why.rules import apply_rules
from specbench_kit.studies.why.summary import Outcome, WhySummary

NOTHING_DRAFTED = "nothing was drafted: speculation is off, or its drafter finds nothing"


def diagnose(evidence: Evidence) -> WhySummary:
    """Return the whole result."""
    figures = figures_of(evidence)
    findings, left_out = apply_rules(figures.numbers, figures.missing)
    outcome, reason = _outcome(figures)
    return WhySummary(
        outcome=outcome,
        reason=reason,
        interval=list(figures.interval) if figures.interval else None,
        servers=list(evidence.servers),
        numbers=figures.numbers,
        missing=dict(figures.missing),
        accepted_at=list(figures.accepted_at),
        findings=findings,
        not_looked_at=left_out,
        loads=list(figures.loads),
        answers=list(evidence.answers),
        cautions=list(evidence.cautions),
    )


def _outcome(figures: Figures) -> tuple[Outcome, str]:
    """Return whether speculation pays, or why that cannot be told."""
    numbers = figures.numbers
    speedup = numbers.speedup
    if speedup is None:
        return "cannot tell", figures.missing["plain_s" if numbers.token_s else "token_s"]
    if figures.interval is None:
        return (
            "cannot tell",
            f"fewer than {FEWEST_UNITS} prompts show what prompts and machine vary by",
        )
    low, high = figures.interval
    if high < 1:
        return "does not pay", ""
    if numbers.drafted is not None and not numbers.drafted.value:
        return "cannot tell", NOTHING_DRAFTED
    if low > 1:
        return "pays", ""
    return "cannot tell", "the difference is smaller than what prompts and machine vary by"
