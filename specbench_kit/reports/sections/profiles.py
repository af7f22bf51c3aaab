"""Sentences about latency profiles that report, terminal and listing share, and the entries of the
listing.
"""

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.profilers.base import LEAST_SERVED_R2, Profile
from specbench_kit.profilers.loading import all_profiles
from specbench_kit.profilers.roofline import judge, roofline_of
from specbench_kit.reports.writing.formatting import seconds, share

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
    "windowed_pair_s": ("windowed pair", "pair of tokens within the window"),
    "windowed_kv_s": ("windowed kv", "token of KV within the window that is read or written"),
    "state_s": ("state", "request, for reading and writing its state"),
    "narrow_token_s": (
        "narrow",
        "new token beyond the first, of a step that is computed token by token",
    ),
    "wider_s": ("wider", "forward with more new tokens than are computed one by one"),
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
    "operations = token * new + pair * context + head * rows of logits + windowed pair * min(context, window * new); "
    "traffic = weights + experts * share hit + kv * (cached + new) + windowed kv * (min(cached, window * requests) + "
    "new) + state * requests",
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


def verdict_sentence(
    kind: str,
    low: Mapping[str, Sequence[float]],
    regimes: Mapping[str, float],
    reason: str,
    short: float,
) -> str:
    """Return whether the device can be as fast as the profile says.

    `low` maps coefficients below their physical bounds to value and bound; `regimes` maps each regime to its mean
    prediction over the mean limit; `short` is the share of configurations whose prediction is below the limit.
    """
    if kind == "unchecked":
        return f"not checked: {reason}"
    if kind == "possible":
        return "possible"
    named = ", ".join(
        f"{SYMBOLS[name]} {seconds(value)} < {seconds(bound)}"
        for name, (value, bound) in low.items()
    )
    coefficients = f"; {named}" if named else ""
    if kind == "doubtful":
        return f"doubtful: below the physical limit at {share(short)} of the configurations{coefficients}"
    worst = min(regimes, key=lambda name: regimes[name])
    return f"IMPOSSIBLE: {worst} batches would take {share(regimes[worst])} of the least possible time{coefficients}"


def origin_in_words(origin: str) -> str:
    """Return where a derived time comes from, as reports name it."""
    return {"law": "analytic", "silicon": "measured kernels"}.get(origin, origin)


def score(r2: float | None) -> str:
    """Return R² with enough digits to tell good fits apart."""
    return "–" if r2 is None else f"{r2:.4f}"


STEP = ((1, 512),)
FIVE_TOKENS = ((5, 512),)
"""New and cached tokens of a plain step and of a verification whose times are told."""
TOGETHER = 16
"""Requests of the batch whose time a listing gives to choose by."""
ORDER = ("possible", "doubtful", "unchecked", "impossible")


class ListedProfile(Struct):
    """A profile that `skit list profiles` shows: its typical times, what it is of, and whether its
    device can be so fast.
    """

    name: str
    summary: str
    step_s: float
    five_tokens_s: float | UnsetType
    batch_s: float
    role: str
    source: str
    device: str
    model: str
    dtype: str
    reference: str
    date: str
    note: str
    test_r2: float | None
    not_given: list[str]
    disturbed: list[str]
    verdict: str
    verdict_reason: str


class UnusableProfile(Struct):
    """A file that is no profile, with the reason."""

    name: str
    summary: str


def entries() -> list[ListedProfile | UnusableProfile]:
    """Return one entry per profile, those first that their devices can be as fast as.

    For a file that cannot be used there are only its name and the reason.
    """
    usable: list[ListedProfile] = []
    broken: list[UnusableProfile] = []
    for name, profile in all_profiles().items():
        if isinstance(profile, Profile):
            usable.append(_entry(profile))
        else:
            broken.append(UnusableProfile(name, f"cannot be used: {profile}"))
    return [*sorted(usable, key=lambda entry: ORDER.index(entry.verdict)), *broken]


def _times(role: str, latency: LatencyModel) -> dict[str, float]:
    """Return the seconds of typical forwards: of one token, of five, and of a batch."""
    if role == "verifier":
        shapes = {"step_s": STEP, "five_tokens_s": FIVE_TOKENS, "batch_s": FIVE_TOKENS * TOGETHER}
    else:
        shapes = {"step_s": STEP, "batch_s": STEP * TOGETHER}
    return {name: latency.seconds(rows) for name, rows in shapes.items()}


def typical_times(role: str, latency: LatencyModel) -> str:
    """Return how long typical forwards take, in words."""
    return ", ".join(
        f"{TIMES[name]} {seconds(time_s)}" for name, time_s in _times(role, latency).items()
    )


ORIGINS = {
    "silicon": "from measured kernels",
    "roofline": "by the data sheet",
    "measured": "measured here",
}
TIMES = {
    "step_s": "a step",
    "five_tokens_s": "five tokens",
    "batch_s": f"{TOGETHER} requests together",
}


def _entry(profile: Profile) -> ListedProfile:
    verdict = judge(profile)
    roofline = roofline_of(profile)
    limits = {} if isinstance(roofline, str) else roofline.bounds(profile.form)
    low = {
        name: (value, limits[name])
        for name, value in profile.coefficients.items()
        if name in verdict.coefficients
    }
    reason = verdict_sentence(verdict.kind, low, verdict.regimes, verdict.reason, verdict.short)
    latency = profile.latency()
    subject = (
        f" of {profile.model} on {profile.device} in {profile.dtype}"
        if profile.model
        else f": {profile.note}"
    )
    origin = ORIGINS.get(profile.source) or f"published, {profile.reference}"
    fit = "" if profile.test_r2 is None else f", R² {score(profile.test_r2)}"
    missing = ", ".join(SYMBOLS[name] for name in profile.not_given)
    parts = [
        *(
            [f"DISTURBED MACHINE: {'; '.join(profile.disturbances)}"]
            if profile.disturbances
            else []
        ),
        f"{profile.role}{subject.rstrip('.')}",
        typical_times(profile.role, latency),
        origin + fit,
        *([f"not given: {missing}"] if missing else []),
        *([] if verdict.kind == "possible" else [reason]),
    ]
    times = _times(profile.role, latency)
    return ListedProfile(
        name=profile.name,
        summary="; ".join(parts),
        step_s=times["step_s"],
        five_tokens_s=times.get("five_tokens_s", UNSET),
        batch_s=times["batch_s"],
        role=profile.role,
        source=profile.source,
        device=profile.device,
        model=profile.model,
        dtype=profile.dtype,
        reference=profile.reference,
        date=profile.date,
        note=profile.note,
        test_r2=profile.test_r2,
        not_given=list(profile.not_given),
        disturbed=list(profile.disturbances),
        verdict=verdict.kind,
        verdict_reason=reason,
    )


def poor_fit(r2: float | None) -> str:
    """Return the caution about a profile of a server that does not fit its test loads."""
    return (
        f"POOR FIT: R² of the server's profile is {score(r2)} on loads that were not fitted, below "
        f"{LEAST_SERVED_R2:g}: let nothing else run, and measure it again."
    )
