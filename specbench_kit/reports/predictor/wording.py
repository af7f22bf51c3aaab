"""What a training run found, in sentences computed from its numbers."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.metrics.setting import deployment_name
from specbench_kit.reports.writing.formatting import interval, rate, seconds, share, significant, times

Fields = Mapping[str, Any]

FEW_PROMPTS = 20
"""Test prompts below which a reader is warned."""


def headline(summary: Fields) -> str:
    """The recommended family and what it does to decoding."""
    leaders = summary["leaders"]
    name = leaders["rule"]
    decoding = summary["decoding"][name]
    same = f", which is `fixed-k:k={contender(summary, name)['longest']}`," if name in let_all_pass(summary) else ""
    spec = f"`wisp:predictor={name}`{same}"
    return (
        f"On {_prompts(summary)} that nothing was chosen on, {spec} decodes "
        f"{rate(decoding['throughput'])}, {_factor(decoding['against_best_fixed'])} of the best fixed length "
        f"(`{leaders['fixed']}`){_doubt(decoding['against_best_fixed'])}. "
        f"Its acceptance rate is {share(decoding['acceptance_rate'])}, "
        f"{_relative(decoding['acceptance_gain'])} `{leaders['longest']}`; {_gap(decoding['gap_closed'])}."
    )


def classifier_adds(summary: Fields) -> str:
    """What the classifier is worth beside one tuned feature."""
    name, feature = summary["recommended"], summary["leaders"]["feature"]
    found, scores = summary["classifier_over_feature"], summary["classification"]
    areas = f"AUC {significant(scores[name]['auc'])} against {significant(scores[feature]['auc'])}"
    return (
        f"What the classifier adds: {_verdict(found)} `{name}` is {_factor(found)} as fast as the best threshold on "
        f"a single feature ({feature}), tuned on the same validation prompts by the same rule; {areas}."
    )


def where_the_gap_is(summary: Fields) -> str:
    """What there is to gain, and what keeps the recommended classifier from it."""
    leaders, decoding, without = summary["leaders"], summary["decoding"], summary["attribution"]
    fixed = decoding[leaders["fixed"]]["throughput"]
    oracle = times(decoding["oracle"]["throughput"] / fixed)
    right, free, sent = (times(without[key] / fixed) for key in ("never_wrong", "deciding_for_free", "last_token_sent"))
    return (
        "What there is to gain, as a multiple of the best fixed length: the oracle, never wrong and deciding for free, "
        f"reaches {oracle}. `{leaders['classifier']}` would reach {right} if it were never wrong at its price, {free} "
        f"if it decided for free, and {sent} if it sent the token that it stops at instead of keeping it back. "
        f"{_stops_nothing(summary)}{_prices(summary)}"
    )


def _stops_nothing(summary: Fields) -> str:
    name = summary["leaders"]["rule"]
    if name not in let_all_pass(summary):
        return ""
    longest = contender(summary, name)["longest"]
    return (
        f"At these prices it lets every token pass and drafts {longest} in each round: any stop on its scores would "
        "cost more than it saves. "
    )


def _prices(summary: Fields) -> str:
    timing, longest = summary["timing"], summary["max_draft"]
    policy_s = contender(summary, summary["recommended"])["policy_s"]
    origin = f", {timing['origin']}" if timing["origin"] else ""
    return (
        f"Prices: a draft step {seconds(timing['draft_s'])}, deciding {seconds(policy_s)} per drafted token (of which "
        f"{seconds(timing['statistics_s'])} before the score{origin}), a plain target step "
        f"{seconds(timing['verify_s'][0])}, verifying {longest} drafted tokens {seconds(timing['verify_s'][longest])}."
    )


def time_sentence(run: Fields) -> str:
    """How the seconds came about."""
    name = deployment_name(dict(run))
    if name in (None, "recorded"):
        return (
            "modelled: as measured when the trace was recorded; a family's score takes what it took when it was trained"
        )
    return f"modelled: what the deployment '{name}' would take at the trace's mean context; prompts take no time"


def to_measure(run: Fields, summary: Fields) -> str:
    """The command that puts the recommended predictor to the test of a clock."""
    leaders = summary["leaders"]
    methods = (f"wisp:predictor={leaders['rule']}", leaders["threshold"], leaders["fixed"])
    command = " ".join(["skit bench", *(f"--method {spec}" for spec in methods)])
    models = "" if _is_bundled(run) else ", with the same `--target` and `--draft`,"
    return f"All of these speeds are modelled; `{command}`{models} measures them."


def _is_bundled(run: Fields) -> bool:
    return all(str(model.get("name")).startswith("bundled/") for model in run["models"].values())


def let_all_pass(summary: Fields) -> list[str]:
    """The judges that stop nothing."""
    return [one["name"] for one in summary["contenders"] if one["threshold"] == 0]


def _undecided(summary: Fields) -> list[tuple[str, int]]:
    """Families that decide nothing, with the length that they always draft."""
    named = [name for name in let_all_pass(summary) if name in summary["families"]]
    return [(name, contender(summary, name)["longest"]) for name in named]


def contender(summary: Fields, name: str) -> Fields:
    """What was chosen for a contender."""
    found: Fields = next(one for one in summary["contenders"] if one["name"] == name)
    return found


def cautions(run: Fields, summary: Fields) -> list[str]:
    """What a reader must know before quoting a number."""
    lines, failed = [], run["requests"]["failed"]
    if summary["split"]["test"]["prompts"] < FEW_PROMPTS:
        lines.append(f"FEW PROMPTS: everything was judged on {_prompts(summary)}; record more before concluding.")
    lines += [
        f"FIXED LENGTH: {name} lets every token pass (threshold 0), so that it is fixed-k:k={longest}."
        for name, longest in _undecided(summary)
    ]
    if failed:
        lines.append(f"FAILED REQUESTS: {failed} did not fit the context; nothing was learned from them.")
    return lines


def label(name: str, kind: str) -> str:
    """A contender in a table."""
    family, _, rule = name.partition(",")
    wisp = {"classifier": f"`wisp`, {family}", "variant": f"`wisp:{rule}`, {family}", "feature": name}
    return wisp.get(kind, f"`{name}`")


def _prompts(summary: Fields) -> str:
    count = summary["split"]["test"]["prompts"]
    return f"{count} prompt{'s' if count != 1 else ''}"


def _verdict(ratio: Fields) -> str:
    if ratio["interval"] is None:
        return "too few prompts to tell."
    low, high = ratio["interval"]
    if low > 1:
        return "speed."
    return "nothing; it costs speed." if high < 1 else "no speed that these prompts can show."


def _doubt(ratio: Fields) -> str:
    """Of a ratio of speeds whose interval holds 1, or that has none."""
    bounds = ratio["interval"]
    return "" if bounds and not bounds[0] <= 1 <= bounds[1] else ": no difference is shown"


def _factor(estimate: Fields) -> str:
    return times(estimate["value"]) + _within(estimate, interval)


def _relative(estimate: Fields) -> str:
    value = estimate["value"]
    if value is None:
        return "with nothing to compare it to in"
    return f"{share(abs(value))} {'above' if value >= 0 else 'below'} that of"


def _gap(estimate: Fields) -> str:
    if estimate["value"] is None:
        return "the oracle is no faster than the best fixed length here, so there is no gap to close"
    closed = f"it closes {share(estimate['value'])}" if estimate["value"] >= 0 else "it closes nothing"
    shown = _within(estimate, lambda bounds: " to ".join(share(bound) for bound in bounds))
    return f"{closed} of the gap between the best fixed length and the oracle{shown}"


def _within(estimate: Fields, show: Any) -> str:
    return f" (95% interval {show(estimate['interval'])})" if estimate["interval"] else ""
