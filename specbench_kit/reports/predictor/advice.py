"""The sections on which method to use, how certain that is, and what it depends on."""

from specbench_kit.reports.document import (
    Blocks,
    Column,
    Estimate,
    Heading,
    Paragraph,
    Table,
    code,
    paragraphs,
)
from specbench_kit.reports.stored import Summary
from specbench_kit.reports.writing.formatting import interval, times

RATIOS = {
    "wisp_over_fixed": "best rule of the best family / best fixed length",
    "confidence_over_fixed": "best confidence threshold / best fixed length",
    "wisp_over_confidence": "best rule of the best family / best confidence threshold",
    "oracle_over_fixed": "oracle / best fixed length",
}
"""The compared ratios of speeds, by their keys in the summary."""
ENOUGH_SPLITS = 3
"""Splits of the prompts from which on their ratios replace those of the single test set."""


def advice(summary: Summary) -> str:
    """Return the first sentence of the report: use the simplest method that is not shown to be slower."""
    leaders = summary["leaders"]
    fixed, confidence, wisp = leaders["fixed"], leaders["threshold"], f"wisp:predictor={leaders['rule']}"
    enough_splits = summary["repeats"]["count"] >= ENOUGH_SPLITS
    ratios = summary["repeats"] if enough_splits else summary["choices"]
    wisp_over_fixed, wisp_over_confidence = ratios["wisp_over_fixed"], ratios["wisp_over_confidence"]
    confidence_over_fixed, plain_over_fixed = ratios["confidence_over_fixed"], summary["choices"]["plain_over_fixed"]
    if wisp_over_fixed["interval"] is None and not enough_splits:
        return f"Too few prompts to say what to use; a fixed length (`{fixed}`) is the simplest."
    if _is_faster(plain_over_fixed) and plain_over_fixed["value"] > wisp_over_fixed["value"]:
        factor = _factor(plain_over_fixed)
        return f"Do not draft here: autoregressive decoding has {factor} the speed of the best length (`{fixed}`)."
    if _is_faster(wisp_over_fixed) and _is_faster(wisp_over_confidence):
        return (
            f"Use the predictor, `{wisp}`: it has {_factor(wisp_over_fixed)} the speed of `{fixed}` and "
            f"{_factor(wisp_over_confidence)} that of `{confidence}`."
        )
    bounds = wisp_over_confidence["interval"]
    slower = "is slower than that" if bounds is not None and bounds[1] < 1 else "is not shown to be faster than that"
    if _is_faster(confidence_over_fixed):
        return (
            f"Confidence is enough here: use `{confidence}`, which has {_factor(confidence_over_fixed)} the speed of "
            f"`{fixed}`. A predictor (`{wisp}`) {slower} ({_factor(wisp_over_confidence)})."
        )
    if _is_faster(wisp_over_fixed):
        return (
            f"Use the predictor, `{wisp}`: it has {_factor(wisp_over_fixed)} the speed of `{fixed}`. But "
            f"`{confidence}` may do as well: the predictor {slower} ({_factor(wisp_over_confidence)})."
        )
    return (
        f"A fixed length is enough here: use `{fixed}`. Neither confidence (`{confidence}`, "
        f"{_factor(confidence_over_fixed)}) nor a predictor (`{wisp}`, {_factor(wisp_over_fixed)}) is shown to be "
        "faster."
    )


def repeats_section(summary: Summary) -> Blocks:
    """Return how the result varies over random splits of the prompts and training seeds."""
    heading, repeats = Heading("How certain is that?"), summary["repeats"]
    if repeats["count"] < 2:
        text = "One split and one training seed: `--repeats` shows how much the result depends on them."
        return [heading, Paragraph(text)]
    columns = ("ratio", Column("mean", "times"), "95%", Column("least", "times"), Column("most", "times"))
    rows = []
    for key, words in RATIOS.items():
        ratio = repeats[key]
        rows.append((words, ratio["value"], interval(ratio["interval"]), min(ratio["values"]), max(ratio["values"])))
    text = (
        f"Speeds over {repeats['count']} splits of the prompts, each with its own training seed; family, rule, "
        "thresholds and lengths are chosen again on the validation prompts of each. Geometric means; the intervals "
        "account for prompts that splits share (corrected resampled t, Nadeau and Bengio 2003)."
    )
    return [heading, Paragraph(text), Table(columns, rows)]


def deployments_section(summary: Summary) -> Blocks:
    """Return the tuned thresholds of the recommended family, and what it gains, for every deployment."""
    columns = (
        *map(Column, ("deployment", "best fixed length", "best rule", "threshold", "longest draft")),
        *(Column(name, "times") for name in ("speed of best rule (95%)", "as published", "confidence", "oracle")),
        *(Column(name, "seconds") for name in ("decision", "draft step", "round without draft")),
    )
    rows = []
    for site in summary["sites"]:
        best = site["best"]
        rows.append(
            (
                site["deployment"],
                code(site["fixed"]),
                code(best["name"]),
                f"{min(best['threshold'], 1):.3f}",
                str(best["longest"]),
                Estimate(best["value"], best["interval"]),
                *(site[name]["value"] for name in ("published", "confidence", "oracle")),
                *(site[name] for name in ("decision_s", "draft_s", "round_s")),
            )
        )
    origins = dict.fromkeys(site["decision_origin"] for site in summary["sites"] if site["decision_origin"])
    text = (
        "The predictor stores a threshold and a longest draft for each rule and deployment; `wisp` uses those of the "
        "deployment that it runs on. All were chosen on the validation prompts. Speeds are those on the test prompts, "
        f"as multiples of the best fixed length of that deployment. Duration of a decision: "
        f"{' or '.join(origins) or 'unknown'}."
    )
    return [Heading("Thresholds by deployment"), *paragraphs(text), Table(columns, rows)]


def _is_faster(ratio: Summary) -> bool:
    """Return whether the whole interval of a ratio of speeds lies above 1."""
    return ratio["interval"] is not None and ratio["interval"][0] > 1


def _factor(ratio: Summary) -> str:
    bounds = f" ({interval(ratio['interval'])})" if ratio["interval"] else ""
    return f"{times(ratio['value'])}{bounds}"
