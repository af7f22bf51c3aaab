"""What a user should run, and how certain that is."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.predictor.data import section
from specbench_kit.reports.writing.formatting import ABSENT, interval, seconds, times
from specbench_kit.reports.writing.markup import code, table

Fields = Mapping[str, Any]

RATIOS = {
    "wisp_over_fixed": "the best rule of the best family, over the best fixed length",
    "confidence_over_fixed": "the best threshold on confidence, over the best fixed length",
    "wisp_over_confidence": "the former over the latter",
    "oracle_over_fixed": "the oracle, over the best fixed length",
}


def advice(summary: Fields) -> str:
    """The first sentence of the report: of those that are not shown to be slower, the simplest."""
    leaders = summary["leaders"]
    fixed, confidence, wisp = leaders["fixed"], leaders["threshold"], f"wisp:predictor={leaders['rule']}"
    if _ratio(summary, "wisp_over_fixed")["interval"] is None and summary["repeats"]["count"] < 3:
        return f"Too few prompts to say what to use; a fixed length (`{fixed}`) is the simplest."
    plain = summary["choices"]["plain_over_fixed"]
    if _better(plain) and plain["value"] > _ratio(summary, "wisp_over_fixed")["value"]:
        return f"Do not draft here: plain decoding is {_said(plain)} as fast as the best fixed length (`{fixed}`)."
    gains, adds = _ratio(summary, "wisp_over_fixed"), _ratio(summary, "wisp_over_confidence")
    if _better(gains) and _better(adds):
        return f"Use the predictor, `{wisp}`: {_said(gains)} of `{fixed}` and {_said(adds)} of `{confidence}`."
    if _better(by_confidence := _ratio(summary, "confidence_over_fixed")):
        return (
            f"Confidence is enough here: use `{confidence}`, {_said(by_confidence)} of `{fixed}`. A predictor "
            f"(`{wisp}`) {_is_not_faster(adds)}."
        )
    if _better(gains):
        return (
            f"Use the predictor, `{wisp}`: {_said(gains)} of `{fixed}`. It {_is_not_faster(adds)}, "
            f"`{confidence}`, which may do as well."
        )
    return (
        f"A fixed length is enough here: use `{fixed}`. Neither confidence (`{confidence}`, {_said(by_confidence)}) "
        f"nor a predictor (`{wisp}`, {_said(gains)}) is shown to be faster."
    )


def repeats_section(summary: Fields) -> str:
    """How the outcome varies with what was left to chance."""
    found = summary["repeats"]
    if found["count"] < 2:
        text = "One split and one training seed: how much they matter was not looked at (`--repeats`)."
        return section("How certain is that?", text)
    rows = [
        (words, times(one["value"]), interval(one["interval"]) if one["interval"] else ABSENT, *_ends(one["values"]))
        for key, words in RATIOS.items()
        for one in [found[key]]
    ]
    text = (
        f"Speeds over {found['count']} splits of the prompts, each with a training seed of its own and with family, "
        "rule, thresholds and lengths chosen anew on its validation prompts. Geometric means; the intervals allow for "
        "the splits' sharing prompts (corrected resampled t, Nadeau and Bengio 2003)."
    )
    return section("How certain is that?", text, table(["ratio", "mean", "95%", "least", "most"], rows))


def sites_section(summary: Fields) -> str:
    """What the recommended family is worth at every place that thresholds were chosen for."""
    header = ["time of", "best fixed", "best rule", "threshold", "longest draft", "of best fixed (95%)"]
    header += ["as published", "confidence", "oracle", "a decision", "a draft step", "a round without draft"]
    rows = [
        (
            site["deployment"],
            code(site["fixed"]),
            code(site["best"]["name"]),
            f"{min(site['best']['threshold'], 1):.3f}",
            site["best"]["longest"],
            _said(site["best"]),
            *(times(site[name]["value"]) for name in ("published", "confidence", "oracle")),
            *(seconds(site[name]) for name in ("decision_s", "draft_s", "round_s")),
        )
        for site in summary["sites"]
    ]
    origins = dict.fromkeys(site["decision_origin"] for site in summary["sites"] if site["decision_origin"])
    text = (
        "The predictor keeps a threshold and a longest draft for each rule and place, and `wisp` takes those of the "
        "deployment that it runs on. All were chosen on the validation prompts, and speeds are those on the test "
        f"prompts, as multiples of the best fixed length there. A decision: {' or '.join(origins) or 'not known'}."
    )
    return section("Thresholds by deployment", text, table(header, rows))


def _ratio(summary: Fields, name: str) -> Fields:
    """Over all splits where there are enough of them, else over the test prompts of one."""
    found: Fields = summary["repeats"] if summary["repeats"]["count"] >= 3 else summary["choices"]
    ratio: Fields = found[name]
    return ratio


def _better(ratio: Fields) -> bool:
    return ratio["interval"] is not None and ratio["interval"][0] > 1


def _is_not_faster(ratio: Fields) -> str:
    slower = ratio["interval"] is not None and ratio["interval"][1] < 1
    return f"{'is slower than that' if slower else 'is not shown to be faster than that'} ({_said(ratio)})"


def _said(ratio: Fields) -> str:
    within = f" ({interval(ratio['interval'])})" if ratio["interval"] else ""
    return f"{times(ratio['value'])}{within}"


def _ends(values: list[float]) -> tuple[str, str]:
    return times(min(values)), times(max(values))
