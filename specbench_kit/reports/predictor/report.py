"""A training run as a Markdown report: is a predictor worth it, and how good is it?"""

from collections.abc import Iterable, Mapping
from typing import Any

from specbench_kit.papers import wisp
from specbench_kit.predictors.confusion import Confusion
from specbench_kit.reports.predictor import wording
from specbench_kit.reports.predictor.advice import advice, repeats_section, sites_section
from specbench_kit.reports.predictor.data import data_section, feature_section, search_section, section, shares
from specbench_kit.reports.render_markdown import blocks as markdown_of
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import ABSENT, count, interval, seconds, share, significant, times
from specbench_kit.reports.writing.markup import document, folded, table, warning
from specbench_kit.reports.writing.provenance import provenance
from specbench_kit.reports.writing.wording import dataset_sentence, hardware_sentence, model_sentence

Fields = Mapping[str, Any]

LATENCIES = ("mean", "median", "std", "min", "max", "p95", "p99")
RATES = ("accuracy", "recall", "specificity", "false_positive_rate", "balanced_accuracy")
COUNTS = ("true_negatives", "false_positives", "false_negatives", "true_positives")


def render(run: Fields, summary: Fields) -> str:
    """The report of what `run.json` and `summary.json` hold; its plots lie beside it in `plots/`."""
    sections = [
        _title(run, summary),
        _setting(run, summary),
        _worth(summary),
        repeats_section(summary),
        sites_section(summary),
        _details(summary),
        _classification(summary),
        _calibration(summary),
        _latency(summary),
        _theorem(summary),
        data_section(summary),
        feature_section(summary),
        search_section(summary),
        _definitions(),
        markdown_of(provenance(run)),
    ]
    return document(sections)


def _title(run: Fields, summary: Fields) -> str:
    parts = [f"# Rejection predictors on {run['dataset'].get('name', 'a trace')}"]
    parts += [*filter(None, [warning(machine.warnings(run))]), f"**{advice(summary)}**", wording.headline(summary)]
    parts += [wording.classifier_adds(summary), wording.where_the_gap_is(summary), wording.to_measure(run, summary)]
    warnings = [*wording.cautions(run, summary), *setting_cautions(dict(run))]
    return "\n\n".join([*parts, *filter(None, [warning(warnings)])])


def _setting(run: Fields, summary: Fields) -> str:
    rows = [
        ("dataset", dataset_sentence(run["dataset"])),
        *((f"{role} model", model_sentence(model)) for role, model in run["models"].items()),
        ("drafts", f"up to {summary['max_draft']} tokens, greedy"),
        ("chosen", summary["rule"]),
        ("time", wording.time_sentence(run)),
        ("hardware", hardware_sentence(run.get("hardware") or {})),
    ]
    return section("What was run", table(["", ""], rows))


def _worth(summary: Fields) -> str:
    header = ["stop rule", "longest draft", "tokens / s", "of best fixed (95%)", "gap closed (95%)", "regret"]
    header += ["of plain decoding"]
    rows = [
        (
            wording.label(name, found["kind"]),
            wording.contender(summary, name)["longest"] or ABSENT,
            significant(found["throughput"]),
            _with_interval(found["against_best_fixed"], times, interval),
            _with_interval(found["gap_closed"], share, shares),
            share(found["regret"]["value"]),
            times(found["speedup"]["value"]),
        )
        for name, found in summary["decoding"].items()
    ]
    note = (
        "Every threshold and length was chosen on the validation prompts, by one rule. Thresholds on one feature stop "
        "as `wisp` does and keep back the token they stop at; `threshold` sends it. The last rows are the recommended "
        "family under the other rules. *Gap closed*: of the speed between the best fixed length and the oracle. "
        "*Regret*: share of the oracle's speed that is missed."
    )
    return section("Is a predictor worth it?", table(header, rows), note, "![Modelled speed](plots/speed.png)")


def _details(summary: Fields) -> str:
    header = ["stop rule", "acceptance length", "acceptance", "draft efficiency", "wasted tokens", "WDT", "WDT (paper)"]
    header += ["drafted", "submitted", "rounds"]
    rows = [
        (
            wording.label(name, found["kind"]),
            significant(found["acceptance_length"]),
            share(found["acceptance_rate"]),
            share(found["draft_efficiency"]),
            count(found["wasted_tokens"]),
            seconds(found["wdt"]),
            seconds(found["wdt_paper"]),
            *(count(found[column]) for column in ("drafted", "submitted", "rounds")),
        )
        for name, found in summary["decoding"].items()
    ]
    return section("What it does to decoding", table(header, rows))


def _classification(summary: Fields) -> str:
    kinds = {one["name"]: one["kind"] for one in summary["contenders"]}
    header = ["", "threshold", "AUC", "accuracy", "recall", "specificity", "FPR", "balanced accuracy", "ECE"]
    rows = [
        (wording.label(name, kinds[name]), *_rates_row(name, kinds[name], found, summary))
        for name, found in summary["classification"].items()
    ]
    rows.append(("*WISP's MLP, published*", ABSENT, ABSENT, *_rates(wisp.MLP_CONFUSION), ABSENT))
    cells = [
        (wording.label(name, kinds[name]), *(count(found["confusion"][cell]) for cell in COUNTS))
        for name, found in summary["classification"].items()
    ]
    cells.append(("*WISP's MLP, published*", *(count(getattr(wisp.MLP_CONFUSION, cell)) for cell in COUNTS)))
    names = ["", *(cell.replace("_", " ") for cell in COUNTS)]
    note = (
        "On the test prompts; positive means accepted. The published row is of other models and data, at a threshold "
        "that the paper chose by another rule: it shows the form, not a rival."
    )
    if wording.let_all_pass(summary):
        note += " A threshold of 0 lets every token pass, so that the rule drafts its longest in every round."
    plots = "![ROC](plots/roc.png) ![Precision and recall](plots/precision_recall.png)"
    title = "Accepted or rejected? (form of WISP's Tables 4, 5 and 10)"
    return section(title, table(header, rows), note, table(names, cells), plots)


def _rates_row(name: str, kind: str, found: Fields, summary: Fields) -> Iterable[str]:
    threshold = wording.contender(summary, name)["threshold"]
    calibrated = kind == "classifier" or name.startswith(("confidence", "threshold"))
    return (
        f"{min(threshold, 1):.3f}",
        f"{found['auc']:.4f}",
        *(share(found[rate_name]) for rate_name in RATES),
        f"{found['expected_calibration_error']:.3f}" if calibrated else ABSENT,
    )


def _rates(counts: Confusion) -> list[str]:
    return [share(getattr(counts, name)) for name in RATES]


def _calibration(summary: Fields) -> str:
    rows = [
        (name, f"{summary['classification'][name]['expected_calibration_error']:.4f}") for name in summary["families"]
    ]
    text = "Expected calibration error: mean distance of predicted and observed acceptance over ten bins."
    return section("Calibration", text, table(["family", "ECE"], rows), "![Calibration](plots/calibration.png)")


def _latency(summary: Fields) -> str:
    rows = [
        (name, *(seconds(family["latency"][column]) for column in LATENCIES))
        for name, family in summary["families"].items()
    ]
    text = (
        f"One score at a time, 1,000 trials, on this machine (form of WISP's Table 11). Judging a token takes "
        f"{seconds(summary['timing']['statistics_s'])} more, for every rule that looks at its draft statistics."
    )
    return section("Latency of one score", text, table(["family", *LATENCIES], rows))


def _theorem(summary: Fields) -> str:
    kinds = {one["name"]: one["kind"] for one in summary["contenders"]}
    rows = [
        (
            wording.label(name, kinds[name]),
            found["longest"],
            significant(found["wasted_per_round"]),
            significant(found["bound"]),
            share(found["wasted_per_round"] / found["bound"] if found["bound"] else None),
        )
        for name, found in summary["theorem_1"].items()
    ]
    text = (
        "Tokens sent past the first rejection, per round, beside the bound of WISP's Theorem 1 (Eq. 31), both over the "
        "rule's own rounds. It bounds E[W]; it does not say that E[W] falls with the false positive rate."
    )
    header = ["stop rule", "K", "E[W], measured", "bound", "E[W] / bound"]
    leader = summary["theorem_1"][summary["recommended"]]["terms"]
    terms = [
        (term["rejection"], share(term["probability"]), share(term["false_positive_rate"]), significant(term["term"]))
        for term in leader
    ]
    by_place = table(["first rejection r", "P(R = r)", "FP(r)", "term of the bound"], terms)
    return section("Theorem 1", text, table(header, rows), folded(f"Terms for {summary['recommended']}", by_place))


def _definitions() -> str:
    meanings = {
        "tokens / s": "committed tokens per modelled second, one request after another",
        "acceptance": "accepted / submitted tokens",
        "draft efficiency": "accepted / drafted tokens",
        "wasted tokens": "drafted - accepted, sent or not",
        "WDT": "drafting seconds spent on wasted tokens, sent or not",
        "WDT (paper)": "the same for tokens that were sent, as WISP's Eq. 8 counts, (K - L)+",
        "recall": "share of accepted tokens that are let pass",
        "specificity": "share of rejected tokens that are stopped at; FPR is 1 less this",
        "oracle": "stops exactly at the first token that the target rejects, by reading its answer",
    }
    return folded("Definitions", "\n".join(f"- {name}: {meaning}" for name, meaning in meanings.items()))


def _with_interval(estimate: Fields, show: Any, show_interval: Any) -> str:
    within = f" ({show_interval(estimate['interval'])})" if estimate["interval"] else ""
    return f"{show(estimate['value'])}{within}"
