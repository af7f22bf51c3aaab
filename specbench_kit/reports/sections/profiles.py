"""Sentences about latency profiles that report, terminal and listing share, and the entries of the listing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import field

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.loading import all_profiles
from specbench_kit.profilers.parts import WorkloadScale
from specbench_kit.profilers.roofline import judge
from specbench_kit.reports.writing.formatting import seconds, share, significant
from specbench_kit.runs.document import RunConfig, RunDescription

if TYPE_CHECKING:  # a list of profiles needs no numpy
    from specbench_kit.profilers.saving import ProfileSummary

COEFFICIENTS = {
    "a_s": ("a", "new token"),
    "b_compute_s": ("b_compute", "interaction (new x all tokens of the request)"),
    "b_read_s": ("b_read", "cached token"),
    "c_s": ("c", "forward"),
    "alpha_s": ("alpha", "pair of a new token and one before it"),
    "gamma_s": ("gamma", "new token"),
    "delta_s": ("delta", "forward"),
    "token_s": ("token", "new token"),
    "pair_s": ("pair", "pair of a new token and one before it"),
    "cached_s": ("read", "cached token"),
    "head_s": ("head", "row of logits"),
    "request_s": ("request", "request"),
    "forward_s": ("forward", "forward"),
    "weights_s": ("weights", "forward, for reading the weights"),
    "kv_s": ("kv", "token of KV that is read or written"),
    "wide_s": ("wide", "forward in which a request has several new tokens"),
    "reduced_s": ("reduced", "new token, between the cards"),
    "experts_s": ("experts", "forward, if every expert is read"),
    "host_request_s": ("request", "request, on the host"),
    "host_s": ("host", "forward, on the host"),
}
"""The symbol of each coefficient of a latency model, and the unit that it is the time of."""
SYMBOLS = {name: symbol for name, (symbol, _) in COEFFICIENTS.items()}
UNITS = {name: unit for name, (_, unit) in COEFFICIENTS.items()}
EQUATIONS = {
    "interactions": "T = a * new + b_compute * interactions + b_read * cached + c (WISP, Eq. 18 and 19)",
    "context": "T = alpha * context + gamma * new + delta (AdaSpec)",
    "work": "T = token * new + pair * context + read * cached + head * rows of logits + forward",
    "served": "T = token * new + pair * context + read * cached + head * rows of logits + request * requests + forward",
    "rounded": "T = (operations^q + traffic^q)^(1/q) + forward + wide + reduced * new, and the host beside it; "
    "operations = token * new + pair * context + head * rows of logits; "
    "traffic = weights + experts * share hit + kv * (cached + new)",
    "kernels": "T = matrices(new) + output layer(rows of logits) + attention(requests, context, new), and the host "
    "beside it",
}
PARTS = {
    "operations": "operations",
    "traffic": "traffic",
    "idle": "idle between kernels",
    "reductions": "reductions between cards",
    "host": "host",
    "matrices": "matrices, norms, reductions",
    "output layer": "output layer",
    "attention": "attention",
}
"""The titles of the parts of a derived time."""
REACHED_R2 = 0.95
REACHED_GAP = 0.05
"""R² on test configurations, and its loss from training to test, that WISP's profiles reach (Appendix C)."""


class ProfilingConfig(RunConfig):
    """The settings of a profiling run; `runs` are the passes through the workload."""

    runs: int = 0


class ProfilingDescription(RunDescription, kw_only=True):
    """What `run.json` says of a profiling run; `workload` is that of each role."""

    config: ProfilingConfig = field(default_factory=ProfilingConfig)
    workload: dict[str, WorkloadScale] = field(default_factory=dict)
    device_memory_bytes: float | None = None


def analytic_line(profile: "ProfileSummary") -> str:
    """Return the line that no reader of an analytic profile may miss."""
    if profile.source == "silicon":
        return (
            f"FROM KERNELS, NOT MEASURED: this machine has no {profile.device}; this profile of {profile.model} "
            f"in {profile.dtype} is {profile.reference}. --require-measured forbids this."
        )
    return (
        f"ANALYTIC, NOT MEASURED: this machine has no {profile.device}; this profile of {profile.model} in "
        f"{profile.dtype} is a roofline {profile.reference}. --require-measured forbids this."
    )


def verdict_sentence(
    kind: str, low: Mapping[str, Sequence[float]], regimes: Mapping[str, float], reason: str, short: float
) -> str:
    """Return whether the device can be as fast as the profile says.

    `low` maps coefficients below their physical bounds to value and bound; `regimes` maps each regime to its mean
    prediction over the mean limit; `short` is the share of configurations whose prediction is below the limit.
    """
    if kind == "unchecked":
        return f"not checked: {reason}"
    if kind == "possible":
        return "possible"
    named = ", ".join(f"{SYMBOLS[name]} {seconds(value)} < {seconds(bound)}" for name, (value, bound) in low.items())
    coefficients = f"; {named}" if named else ""
    if kind == "doubtful":
        return f"doubtful: below the physical limit at {share(short)} of the configurations{coefficients}"
    worst = min(regimes, key=lambda name: regimes[name])
    return f"IMPOSSIBLE: {worst} batches would take {share(regimes[worst])} of the least possible time{coefficients}"


def verdict_of(profile: "ProfileSummary") -> str:
    """Return the verdict sentence of a profile in a summary."""
    verdict = profile.verdict
    low = {name: (profile.coefficients[name], profile.limits[name]) for name in verdict.coefficients}
    return verdict_sentence(verdict.kind, low, verdict.regimes, verdict.reason, verdict.short)


def origin_in_words(origin: str) -> str:
    """Return where a derived time comes from, as reports name it."""
    return "analytic" if origin == "law" else origin


def score(r2: float | None) -> str:
    """Return R² with enough digits to tell good fits apart."""
    return "–" if r2 is None else f"{r2:.4f}"


def cautions(run: ProfilingDescription, profile: "ProfileSummary") -> list[str]:
    """Return what limits the use of a profile."""
    if profile.is_derived:
        return [analytic_line(profile), *_limit_cautions(run, profile)]
    return [*_fit_cautions(profile), *_measurement_cautions(run, profile), *_limit_cautions(run, profile)]


def _fit_cautions(profile: "ProfileSummary") -> list[str]:
    lines = []
    negative = {name: value for name, value in profile.estimates.items() if value < 0}
    if negative:
        named = " and ".join(f"{SYMBOLS[name]} ({seconds(value)})" for name, value in negative.items())
        lines.append(f"NEGATIVE: least squares make {named} negative; the profile is the best fit without negatives.")
    r2 = profile.test.r2
    gap = profile.generalisation_gap
    if r2 is None or r2 < REACHED_R2:
        lines.append(f"POOR FIT: R² on the test configurations is {score(r2)}, below {REACHED_R2}.")
    if gap is not None and gap >= REACHED_GAP:
        lines.append(f"OVERFITTED: R² falls by {gap:.3f} from training to test; {REACHED_GAP} or more is too much.")
    return lines


def _measurement_cautions(run: ProfilingDescription, profile: "ProfileSummary") -> list[str]:
    lines = []
    workload = run.workload[profile.role]
    if workload.factor < 1:
        lines.append(
            f"SHORTER REQUESTS: lengths were multiplied by {significant(workload.factor)} to fit this machine's "
            "context, memory and time budget."
        )
    if skipped := profile.skipped:
        lines.append(f"OUT OF MEMORY: {len(skipped)} configurations are not in the fit: {', '.join(skipped)}.")
    if profile.cut_off:
        lines.append(f"OUT OF TIME: the time budget ended with {profile.cut_off} timings missing.")
    variation = profile.variation
    if variation.above_limit:
        lines.append(
            f"UNSTEADY: {variation.above_limit} of {variation.count} configurations vary by more than 5% from "
            f"run to run (median {share(variation.median)}): something else keeps this machine busy."
        )
    return lines


def _limit_cautions(run: ProfilingDescription, profile: "ProfileSummary") -> list[str]:
    lines = [] if profile.verdict.kind in ("possible", "unchecked") else [f"{verdict_of(profile)}."]
    if slow := profile.verdict.slow:
        named = ", ".join(f"{significant(ratio)} in {name} ones" for name, ratio in slow.items())
        lines.append(f"SLOW: batches are predicted to take many times the device's least possible time: {named}.")
    memory = run.device_memory_bytes
    weights = profile.weight_bytes or 0
    if memory and weights > memory:
        lines.append(f"TOO LARGE: the weights take {weights / 1e9:.1f} GB, and the device has {memory / 1e9:.0f} GB.")
    return lines


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
