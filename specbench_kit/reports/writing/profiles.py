"""Sentences about latency profiles that report, terminal and listing say in the same words."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.profilers.software import describe
from specbench_kit.reports.writing.formatting import seconds, share, significant

Fields = Mapping[str, Any]

SYMBOLS = {
    "a_s": "a",
    "b_compute_s": "b_compute",
    "b_read_s": "b_read",
    "c_s": "c",
    "alpha_s": "alpha",
    "gamma_s": "gamma",
    "delta_s": "delta",
    "token_s": "token",
    "pair_s": "pair",
    "cached_s": "read",
    "head_s": "head",
    "request_s": "request",
    "forward_s": "forward",
    "host_request_s": "request",
    "host_s": "host",
}
UNITS = {
    "a_s": "new token",
    "b_compute_s": "interaction (new x all tokens of the request)",
    "b_read_s": "cached token",
    "c_s": "forward",
    "alpha_s": "pair of a new token and one before it",
    "gamma_s": "new token",
    "delta_s": "forward",
    "token_s": "new token",
    "pair_s": "pair of a new token and one before it",
    "cached_s": "cached token",
    "head_s": "row of logits",
    "request_s": "request",
    "forward_s": "forward",
    "host_request_s": "request, on the host",
    "host_s": "forward, on the host",
}
EQUATIONS = {
    "interactions": "T = a * new + b_compute * interactions + b_read * cached + c (WISP, Eq. 18 and 19)",
    "context": "T = alpha * context + gamma * new + delta (AdaSpec)",
    "work": "T = token * new + pair * context + read * cached + head * rows of logits + forward",
    "hosted": "T = token * new + pair * context + read * cached + head * rows of logits + forward, or "
    "request * requests + host where that is larger",
    "served": "T = token * new + pair * context + read * cached + head * rows of logits + request * requests + forward",
}
REACHED_R2, REACHED_GAP = 0.95, 0.05
"""On test configurations, and lost against training ones (WISP, Appendix C)."""


def analytic_line(profile: Fields) -> str:
    """The unmissable one."""
    return (
        f"ANALYTIC, NOT MEASURED: no {profile['device']} is here; this profile of {profile['model']} in "
        f"{profile['dtype']} is a roofline {profile['reference']}. --require-measured forbids this."
    )


def headline(profile: Fields) -> str:
    """What was profiled, and how well the fit does."""
    test, train = profile["test"], profile["train"]
    of = f"{profile['model']} as {profile['role']} on {profile['device']} in {profile['dtype']}"
    if profile["source"] == "roofline":
        return f"{of}, the roofline of its data sheet: {describe(profile['software'], profile['device'])}."
    return f"{of}, measured: test R² {score(test['r2'])} (train {score(train['r2'])}), MAPE {share(test['mape'])}."


def cautions(run: Fields, profile: Fields) -> list[str]:
    """What a reader must know before using a profile."""
    found = [analytic_line(profile)] if profile["source"] == "roofline" else []
    return [*found, *_about_fit(profile), *_about_measurement(run, profile), *_about_limit(run, profile)]


def verdict_sentence(kind: str, low: Mapping[str, Sequence[float]], regimes: Fields, reason: str, places: float) -> str:
    """Whether the device can be as fast; `low` are coefficients below their bounds, with these."""
    if kind == "unchecked":
        return f"not checked: {reason}"
    named = ", ".join(f"{SYMBOLS[name]} {seconds(value)} < {seconds(bound)}" for name, (value, bound) in low.items())
    if kind == "possible":
        return "possible"
    if kind == "doubtful":
        return f"doubtful: below the physical limit at {share(places)} of the configurations{named and f'; {named}'}"
    worst = min(regimes, key=lambda name: regimes[name])
    short = f"{worst} batches would take {share(regimes[worst])} of the least possible time"
    return f"IMPOSSIBLE: {short}{named and f'; {named}'}"


def verdict_of(profile: Fields) -> str:
    """The same for a profile of a summary."""
    verdict = profile["verdict"]
    low = {name: (profile["coefficients"][name], profile["limits"][name]) for name in verdict["coefficients"]}
    return verdict_sentence(verdict["kind"], low, verdict["regimes"], verdict["reason"], verdict["short"])


def score(r2: float | None) -> str:
    """R2 with the digits that tell good fits apart."""
    return "–" if r2 is None else f"{r2:.4f}"


def _about_fit(profile: Fields) -> list[str]:
    lines = []
    negative = [name for name, value in profile["estimates"].items() if value < 0]
    if negative:
        named = " and ".join(f"{SYMBOLS[name]} ({seconds(profile['estimates'][name])})" for name in negative)
        lines.append(f"NEGATIVE: least squares make {named} negative; the profile has the best fit without that.")
    r2, gap = profile["test"]["r2"], profile["generalisation_gap"]
    if r2 is None or r2 < REACHED_R2:
        lines.append(f"POOR FIT: R² on the test configurations is {score(r2)}, below {REACHED_R2}.")
    if gap is not None and gap >= REACHED_GAP:
        lines.append(f"OVERFITTED: R² falls by {gap:.3f} from training to test, by {REACHED_GAP} or more.")
    return lines


def _about_measurement(run: Fields, profile: Fields) -> list[str]:
    lines, workload = [], run["workload"][profile["role"]]
    if workload["factor"] < 1:
        lines.append(
            f"SHORTER REQUESTS: lengths were multiplied by {significant(workload['factor'])} to fit this machine's "
            "context, memory and time budget."
        )
    if skipped := profile.get("skipped"):
        lines.append(f"OUT OF MEMORY: {len(skipped)} configurations are not in the fit: {', '.join(skipped)}.")
    if profile.get("cut_off"):
        lines.append(f"OUT OF TIME: the budget ended before {profile['cut_off']} timings were made.")
    variation = profile.get("variation") or {}
    if variation.get("above_limit"):
        lines.append(
            f"UNSTEADY: {variation['above_limit']} of {variation['count']} configurations vary by more than 5% from "
            f"run to run (median {share(variation['median'])}): something else keeps this machine busy."
        )
    return lines


def _about_limit(run: Fields, profile: Fields) -> list[str]:
    lines = [] if profile["verdict"]["kind"] in ("possible", "unchecked") else [f"{verdict_of(profile)}."]
    if slow := profile["verdict"].get("slow"):
        named = ", ".join(f"{significant(ratio)} in {name} ones" for name, ratio in slow.items())
        lines.append(f"SLOW: batches are predicted to take many times what the device needs at least: {named}.")
    memory, weights = run.get("device_memory_bytes"), profile.get("weight_bytes") or 0
    if memory and weights > memory:
        lines.append(f"TOO LARGE: the weights take {weights / 1e9:.1f} GB, and the device has {memory / 1e9:.0f} GB.")
    return lines
