"""What `skit list profiles` says of each profile."""

from typing import Any

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.loading import everything
from specbench_kit.profilers.roofline import judge
from specbench_kit.reports.writing.profiles import SYMBOLS, score, verdict_sentence


def entries() -> list[dict[str, Any]]:
    """One object per profile; of a file that cannot be used only its name and why."""
    return [
        _entry(found) if isinstance(found, Profile) else {"name": name, "summary": f"cannot be used: {found}"}
        for name, found in everything().items()
    ]


def _entry(profile: Profile) -> dict[str, Any]:
    verdict = judge(profile)
    sentence = verdict_sentence(verdict.kind, verdict.coefficients, verdict.regimes, verdict.reason, verdict.short)
    shown = ("role", "source", "device", "model", "dtype", "reference", "date", "note", "test_r2")
    return {
        "name": profile.name,
        "summary": _summary(profile, sentence),
        **{key: getattr(profile, key) for key in shown},
        "not_given": list(profile.not_given),
        "verdict": verdict.kind,
        "verdict_reason": sentence,
    }


def _summary(profile: Profile, verdict: str) -> str:
    source = f"{profile.source} ({profile.reference})" if profile.reference else profile.source
    place = f"{profile.model} on {profile.device} in {profile.dtype}" if profile.model else "model and device not named"
    parts = [f"{source}: {profile.role}, {place}", f"R² {score(profile.test_r2)}"]
    if profile.not_given:
        parts.append(f"not given: {', '.join(SYMBOLS[name] for name in profile.not_given)}")
    return "; ".join([*parts, verdict])
