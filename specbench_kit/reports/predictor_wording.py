"""What a training run found, in sentences computed from its numbers."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.formatting import interval, rate, seconds, share, significant, times

Fields = Mapping[str, Any]

FEW_PROMPTS = 20
"""Test prompts below which a reader is warned."""


def headline(summary: Fields) -> str:
    """The recommended family and what it does to decoding."""
    name, leaders = summary["recommended"], summary["leaders"]
    decoding = summary["decoding"][name]
    return (
        f"On {_prompts(summary)} that nothing was chosen on, `wisp` with `{name}` decodes "
        f"{rate(decoding['throughput'])}, {_factor(decoding['against_best_fixed'])} of the best fixed length "
        f"(`{leaders['fixed']}`). Its acceptance rate is {share(decoding['acceptance_rate'])}, "
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
    """What a perfect predictor could gain, and what deciding costs."""
    timing, leaders, decoding = summary["timing"], summary["leaders"], summary["decoding"]
    policy_s = next(one["policy_s"] for one in summary["contenders"] if one["name"] == leaders["classifier"])
    fixed, oracle = decoding[leaders["fixed"]]["throughput"], decoding["oracle"]["throughput"]
    plain_s, longest_s = timing["verify_s"][0], timing["verify_s"][summary["max_draft"]]
    return (
        f"What there is to gain: the oracle, which is never wrong and decides for free, is {times(oracle / fixed)} as "
        f"fast as the best fixed length. At the price of `{leaders['classifier']}` ({seconds(policy_s)} per drafted "
        f"token, of which {seconds(timing['statistics_s'])} for its statistics) a predictor that is never wrong would "
        f"be {times(summary['attainable_throughput'] / fixed)} as fast. A draft step takes "
        f"{seconds(timing['draft_s'])}, a plain target step {seconds(plain_s)}, verifying {summary['max_draft']} "
        f"drafted tokens {seconds(longest_s)}."
    )


def cautions(summary: Fields) -> list[str]:
    """What a reader must know before quoting a number."""
    count = summary["split"]["test"]["prompts"]
    if count >= FEW_PROMPTS:
        return []
    return [f"FEW PROMPTS: everything was judged on {_prompts(summary)}; record more before drawing conclusions."]


def label(name: str, kind: str) -> str:
    """A contender in a table."""
    return {"classifier": f"`wisp`, {name}", "feature": name}.get(kind, f"`{name}`")


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
