"""The entries of `skit list profiles`."""

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.loading import all_profiles
from specbench_kit.profilers.roofline import judge
from specbench_kit.reports.sections.profiles import SYMBOLS, score, verdict_sentence


def entries() -> list[dict[str, object]]:
    """Return one entry per profile; for a file that cannot be used, only its name and the reason."""
    return [
        _entry(profile) if isinstance(profile, Profile) else {"name": name, "summary": f"cannot be used: {profile}"}
        for name, profile in all_profiles().items()
    ]


def _entry(profile: Profile) -> dict[str, object]:
    verdict = judge(profile)
    reason = verdict_sentence(verdict.kind, verdict.coefficients, verdict.regimes, verdict.reason, verdict.short)
    source = f"{profile.source} ({profile.reference})" if profile.reference else profile.source
    subject = f"{profile.model} on {profile.device} in {profile.dtype}" if profile.model else "model and device unknown"
    missing = ", ".join(SYMBOLS[name] for name in profile.not_given)
    disturbed = [f"DISTURBED MACHINE: {'; '.join(profile.disturbances)}"] if profile.disturbances else []
    parts = [*disturbed, f"{source}: {profile.role}, {subject}", f"R² {score(profile.test_r2)}"]
    fields = ("role", "source", "device", "model", "dtype", "reference", "date", "note", "test_r2")
    return {
        "name": profile.name,
        "summary": "; ".join([*parts, *([f"not given: {missing}"] if missing else []), reason]),
        **{field: getattr(profile, field) for field in fields},
        "not_given": list(profile.not_given),
        "disturbed": list(profile.disturbances),
        "verdict": verdict.kind,
        "verdict_reason": reason,
    }
