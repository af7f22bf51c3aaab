"""The report of a training run: is a predictor worth its cost, how good is it, and what was it
trained on?
"""

from itertools import starmap
from typing import TYPE_CHECKING

from specbench_kit.papers.quoted import WISP_MLP_CONFUSION
from specbench_kit.predictors.confusion import Confusion
from specbench_kit.reports import render_markdown, render_terminal
from specbench_kit.reports.document import (
    Blocks,
    BulletList,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    FigureRow,
    Folded,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import (
    dataset_sentence,
    hardware_sentence,
    model_sentence,
)
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    interval,
    seconds,
    significant,
    times,
)
from specbench_kit.studies.training import wording
from specbench_kit.studies.training.wording import (
    ContenderDecoding,
    RatioEstimate,
    TrainingDescription,
    TrainingSummary,
)

if TYPE_CHECKING:
    from rich.console import Console

DEFINITIONS = (
    "tokens / s: committed tokens per modelled second, one request after another",
    "acceptance: accepted / submitted tokens",
    "draft efficiency: accepted / drafted tokens",
    "wasted tokens: drafted - accepted, whether submitted or not",
    "WDT: wasted drafting time, the seconds spent on wasted tokens",
    "WDT (paper): only that of submitted tokens, as WISP's Eq. 8 counts, (K - L)+",
    "recall: share of accepted tokens that pass",
    "specificity: share of rejected tokens that stop the draft; FPR is 1 - specificity",
    "oracle: no lengths are faster, since it reads the target's output; a round without a draft is left to the server",
)

SPEED_NOTE = "Tokens per modelled second, relative to the best fixed length, on test prompts; bars are 95% intervals."


def render(run: TrainingDescription, summary: TrainingSummary) -> str:
    """Return the report as Markdown."""
    return render_markdown.render(build(run, summary))


def build(run: TrainingDescription, summary: TrainingSummary) -> Document:
    """Return the report; its plots are expected in `plots/` beside it."""
    setting = [
        ("dataset", dataset_sentence(run.dataset)),
        *((f"{role} model", model_sentence(model)) for role, model in run.models.items() if model),
        ("drafts", f"up to {summary.max_draft} tokens, greedy"),
        ("thresholds and lengths", summary.rule),
        ("time", wording.time_sentence(run)),
        ("hardware", hardware_sentence(run.hardware)),
    ]
    return Document.of(
        f"Rejection predictors on {run.dataset.name or 'a trace'}",
        caution(machine.warnings(run), severe=True),
        paragraphs(f"**{advice(summary)}**"),
        caution([*wording.cautions(run, summary), *setting_cautions(run)]),
        [Figure("Modelled speed", "plots/speed.png", SPEED_NOTE)],
        _worth(summary),
        paragraphs(
            wording.headline_of(summary),
            wording.classifier_adds(summary),
            wording.potential_gain(summary),
            wording.to_measure(run, summary),
        ),
        [Heading("What was run"), facts(setting)],
        repeats_section(summary),
        deployments_section(summary),
        _details(summary),
        classification_section(summary),
        calibration_section(summary),
        latency_section(summary),
        theorem_section(summary),
        data_section(summary),
        feature_section(summary),
        search_section(summary),
        [Folded("Definitions", [BulletList(DEFINITIONS)])],
        provenance(run),
    )


def print_training(console: "Console", run: TrainingDescription, summary: TrainingSummary) -> None:
    """Print every stopping criterion on the test prompts, then the conclusions."""
    columns = (
        "stopping criterion",
        Column("tokens/s", "number"),
        Column("of best\nfixed", "times"),
        Column("gap\nclosed", "share"),
        Column("acceptance rate", "share"),
        Column("acceptance\nlength", "number"),
    )
    rows = [
        (
            wording.label(name, metrics.kind),
            metrics.throughput,
            metrics.against_best_fixed.value,
            metrics.gap_closed.value,
            metrics.acceptance_rate,
            metrics.acceptance_length,
        )
        for name, metrics in _from_fast_to_slow(summary)
    ]
    render_terminal.show(
        console,
        [
            *caution(machine.warnings(run), severe=True),
            Paragraph(f"**{advice(summary)}**"),
            Table(columns, rows),
            *paragraphs(wording.headline_of(summary), wording.classifier_adds(summary)),
            *caution(wording.cautions(run, summary)),
        ],
    )


def _from_fast_to_slow(summary: TrainingSummary) -> list[tuple[str, ContenderDecoding]]:
    """Return the metrics of every stopping criterion in the order of the figure."""
    return sorted(summary.decoding.items(), key=lambda item: -item[1].throughput)


def _worth(summary: TrainingSummary) -> Blocks:
    columns = (
        "stopping criterion",
        Column("longest draft", "count"),
        Column("tokens / s", "number"),
        Column("speed / best fixed length (95%)", "times"),
        Column("gap closed (95%)", "share"),
        Column("regret", "share"),
        Column("speed / autoregressive decoding", "times"),
    )
    rows = [
        (
            wording.label(name, metrics.kind),
            summary.contender(name).longest or None,
            metrics.throughput,
            _estimate(metrics.against_best_fixed),
            _estimate(metrics.gap_closed),
            metrics.regret.value,
            metrics.speedup.value,
        )
        for name, metrics in _from_fast_to_slow(summary)
    ]
    note = (
        "Every threshold and length was chosen on the validation prompts, by the same rule. Thresholds on one feature "
        "stop as `wisp` does and drop the token at which they stop; `threshold` submits it. Rows with `send_last` or "
        "`score` are the recommended family with the other rules. Gap closed: share of the difference in speed "
        "between the best fixed length and the oracle. Regret: share of the oracle's speed that is lost."
    )
    return [
        Heading("Is a predictor worth it?"),
        Table(columns, rows),
        Paragraph(note),
    ]


def _details(summary: TrainingSummary) -> Blocks:
    columns = (
        "stopping criterion",
        *(Column("acceptance length", "number"), Column("acceptance rate", "share")),
        *(Column("draft efficiency", "share"), Column("wasted tokens", "count")),
        *(Column("WDT", "seconds"), Column("WDT (paper)", "seconds")),
        *(Column("drafted", "count"), Column("submitted", "count"), Column("rounds", "count")),
    )
    rows: list[list[Cell]] = []
    for name, metrics in _from_fast_to_slow(summary):
        ratios = (metrics.acceptance_length, metrics.acceptance_rate, metrics.draft_efficiency)
        wasted = (metrics.wasted_tokens, metrics.wdt, metrics.wdt_paper)
        counts = (metrics.drafted, metrics.submitted, metrics.rounds)
        rows.append([wording.label(name, metrics.kind), *ratios, *wasted, *counts])
    return [Heading("What it does to decoding"), Table(columns, rows)]


def _estimate(estimate: RatioEstimate) -> Estimate:
    return Estimate(estimate.value, estimate.interval)


ENOUGH_SPLITS = 3
"""Splits of the prompts from which on their ratios replace those of the single test set."""


def advice(summary: TrainingSummary) -> str:
    """Return the first sentence of the report: use the simplest method that is not shown to be
    slower.
    """
    leaders = summary.leaders
    fixed = leaders.fixed
    confidence = leaders.threshold
    wisp = f"wisp:predictor={leaders.rule}"
    enough_splits = summary.repeats.count >= ENOUGH_SPLITS
    ratios = summary.repeats if enough_splits else summary.choices
    wisp_over_fixed = ratios.wisp_over_fixed
    wisp_over_confidence = ratios.wisp_over_confidence
    confidence_over_fixed = ratios.confidence_over_fixed
    plain_over_fixed = summary.choices.plain_over_fixed
    if wisp_over_fixed.interval is None and not enough_splits:
        return f"Too few prompts to say what to use; a fixed length (`{fixed}`) is the simplest."
    if _is_faster(plain_over_fixed) and (plain_over_fixed.value or 0.0) > (
        wisp_over_fixed.value or 0.0
    ):
        factor = _factor(plain_over_fixed)
        return f"Do not draft here: autoregressive decoding has {factor} the speed of the best length (`{fixed}`)."
    if _is_faster(wisp_over_fixed) and _is_faster(wisp_over_confidence):
        return (
            f"Use the predictor, `{wisp}`: it has {_factor(wisp_over_fixed)} the speed of `{fixed}` and "
            f"{_factor(wisp_over_confidence)} that of `{confidence}`."
        )
    bounds = wisp_over_confidence.interval
    slower = (
        "is slower than that"
        if bounds is not None and bounds[1] < 1
        else "is not shown to be faster than that"
    )
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


def repeats_section(summary: TrainingSummary) -> Blocks:
    """Return how the result varies over random splits of the prompts and training seeds."""
    heading = Heading("How certain is that?")
    repeats = summary.repeats
    if repeats.count < 2:
        text = "One split and one training seed: `--repeats` shows how much the result depends on them."
        return [heading, Paragraph(text)]
    columns = (
        "ratio",
        Column("mean", "times"),
        "95%",
        Column("least", "times"),
        Column("most", "times"),
    )
    ratios = {
        "best rule of the best family / best fixed length": repeats.wisp_over_fixed,
        "best confidence threshold / best fixed length": repeats.confidence_over_fixed,
        "best rule of the best family / best confidence threshold": repeats.wisp_over_confidence,
        "oracle / best fixed length": repeats.oracle_over_fixed,
    }
    rows = []
    for words, ratio in ratios.items():
        rows.append(
            (words, ratio.value, interval(ratio.interval), min(ratio.values), max(ratio.values))
        )
    text = (
        f"Speeds over {repeats.count} splits of the prompts, each with its own training seed; family, rule, "
        "thresholds and lengths are chosen again on the validation prompts of each. Geometric means; the intervals "
        "account for prompts that splits share (corrected resampled t, Nadeau and Bengio 2003)."
    )
    return [heading, Paragraph(text), Table(columns, rows)]


def deployments_section(summary: TrainingSummary) -> Blocks:
    """Return the tuned thresholds of the recommended family, and what it gains, for every
    deployment.
    """
    columns = (
        *map(
            Column, ("deployment", "best fixed length", "best rule", "threshold", "longest draft")
        ),
        *(
            Column(name, "times")
            for name in ("speed of best rule (95%)", "as published", "confidence", "oracle")
        ),
        *(Column(name, "seconds") for name in ("decision", "draft step", "round without draft")),
    )
    rows = []
    for site in summary.sites:
        best = site.best
        rows.append(
            (
                site.deployment,
                code(site.fixed),
                code(best.name),
                _threshold(best.threshold),
                str(best.longest),
                Estimate(best.value, best.interval),
                *(site.published.value, site.confidence.value, site.oracle.value),
                *(site.decision_s, site.draft_s, site.round_s),
            )
        )
    origins = dict.fromkeys(site.decision_origin for site in summary.sites if site.decision_origin)
    text = (
        "The predictor stores a threshold and a longest draft for each rule and deployment; `wisp` uses those of the "
        "deployment that it runs on. All were chosen on the validation prompts. Speeds are those on the test prompts, "
        f"as multiples of the best fixed length of that deployment. Duration of a decision: "
        f"{' or '.join(origins) or 'unknown'}."
    )
    return [Heading("Thresholds by deployment"), *paragraphs(text), Table(columns, rows)]


def _is_faster(ratio: RatioEstimate) -> bool:
    """Return whether the whole interval of a ratio of speeds lies above 1."""
    return ratio.interval is not None and ratio.interval[0] > 1


def _factor(ratio: RatioEstimate) -> str:
    bounds = f" ({interval(ratio.interval)})" if ratio.interval else ""
    return f"{times(ratio.value)}{bounds}"


FEATURE_MEANINGS = {
    "confidence": "largest draft probability",
    "entropy": "entropy of the draft distribution, in nats",
    "margin": "largest draft probability minus the second largest",
    "logit_std": "standard deviation of the draft logits",
    "draft_position": "position in the draft; 1 is the first",
}


def data_section(summary: TrainingSummary) -> Blocks:
    """Return the sizes of the training, validation and test parts."""
    counts = ("prompts", "requests", "offsets", "examples", "accepted")
    columns = (
        Column("part"),
        *(Column(name, "count") for name in (*counts, "rejected")),
        Column("share accepted", "share"),
    )
    rows: list[list[Cell]] = []
    for name, part in summary.split.parts.items():
        sizes = (part.prompts, part.requests, part.offsets, part.examples, part.accepted)
        rows.append([name, *sizes, part.examples - part.accepted, part.accepted / part.examples])
    text = (
        "Split by prompt; turns of one dialogue stay together. At every output offset, drafted tokens that equal the "
        "target's are accepted, the first one that differs is rejected, and tokens after it are dropped."
    )
    return [Heading("Data"), Paragraph(text), Table(columns, rows)]


def feature_section(summary: TrainingSummary) -> Blocks:
    """Return the features, and how each is correlated with acceptance."""
    names = summary.correlations.names
    matrix = summary.correlations.matrix
    used = next(iter(summary.families.values())).features
    accepted = matrix[names.index("accepted")]
    rows = [
        (
            code(name),
            meaning,
            "yes" if name in used else "no",
            significant(accepted[names.index(name)], 2),
        )
        for name, meaning in FEATURE_MEANINGS.items()
    ]
    text = (
        "In the form of WISP's Table 8 and Figures 2 and 3, on the training prompts. The paper's text names the first "
        "four features and its table counts five; the fifth is this kit's."
    )
    plots = [
        Figure("Acceptance by feature", "plots/acceptance_by_feature.png"),
        Figure("Correlations", "plots/correlations.png"),
    ]
    columns = ("feature", "meaning", "used", Column("correlation with acceptance", "number"))
    return [Heading("Features"), Paragraph(text), Table(columns, rows), FigureRow(plots)]


def _parameter(name: str, value: object) -> str:
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={str(value).lower()}"


def search_section(summary: TrainingSummary) -> Blocks:
    """Return the result of each family's search for hyper-parameters."""
    rows = [
        (
            name,
            f"{count(family.trials)} of {count(family.grid)}",
            f"{family.default_loss:.4f}",
            f"{family.validation_loss:.4f}",
            ", ".join(starmap(_parameter, family.params.items())),
        )
        for name, family in summary.families.items()
    ]
    text = (
        "Tried were the defaults and random draws, with a fixed seed, from a grid over the dimensions of WISP's Table "
        "9. The lowest log-loss on the validation examples wins, in nats per token. By the same loss, boosting and "
        "networks stop early, and forests keep their first trees."
    )
    columns = (
        "family",
        "tried",
        "log-loss of defaults",
        "log-loss of best",
        "best hyper-parameters",
    )
    return [Heading("Hyper-parameters"), Paragraph(text), Table(columns, rows)]


LATENCIES = ("mean", "median", "std", "min", "max", "p95", "p99")
COUNTS = ("true_negatives", "false_positives", "false_negatives", "true_positives")


def _rates(confusion: Confusion) -> list[Cell]:
    return [
        confusion.accuracy,
        confusion.recall,
        confusion.specificity,
        confusion.false_positive_rate,
        confusion.balanced_accuracy,
    ]


def _counts(confusion: Confusion) -> list[Cell]:
    """Return the numbers of tokens in the order of `COUNTS`."""
    return [
        confusion.true_negatives,
        confusion.false_positives,
        confusion.false_negatives,
        confusion.true_positives,
    ]


def _threshold(threshold: float | None) -> str:
    return ABSENT if threshold is None else f"{min(threshold, 1):.3f}"


def classification_section(summary: TrainingSummary) -> Blocks:
    """Return how well each rule tells accepted from rejected tokens."""
    columns = (
        *map(Column, ("", "threshold", "AUC")),
        *(
            Column(name, "share")
            for name in ("accuracy", "recall", "specificity", "FPR", "balanced accuracy")
        ),
        Column("ECE"),
    )
    rows: list[list[Cell]] = []
    counts: list[list[Cell]] = []
    for name, metrics in summary.classification.items():
        contender = summary.contender(name)
        label = wording.label(name, contender.kind)
        # Only scores that are probabilities of acceptance have a calibration error.
        calibrated = contender.kind == "classifier" or name.startswith(("confidence", "threshold"))
        error = f"{metrics.expected_calibration_error:.3f}" if calibrated else ABSENT
        rows.append(
            [
                label,
                _threshold(contender.threshold),
                f"{metrics.auc:.4f}",
                *_rates(metrics.confusion),
                error,
            ]
        )
        counts.append([label, *_counts(metrics.confusion)])
    published = "WISP's MLP, published"
    rows.append([published, ABSENT, ABSENT, *_rates(WISP_MLP_CONFUSION), ABSENT])
    counts.append([published, *_counts(WISP_MLP_CONFUSION)])
    note = (
        "On the test prompts; positive means accepted. The published row is of other models and data, at a threshold "
        "that the paper chose by another rule: it shows the format, and is not to be compared with."
    )
    if wording.let_all_pass(summary):
        note += " A threshold of 0 lets every token pass: the rule then drafts its longest in every round."
    plots = [
        Figure("ROC", "plots/roc.png"),
        Figure("Precision and recall", "plots/precision_recall.png"),
    ]
    return [
        Heading("Accepted or rejected? (as in WISP's Tables 4, 5 and 10)"),
        Table(columns, rows),
        Paragraph(note),
        Table(("", *(Column(cell.replace("_", " "), "count") for cell in COUNTS)), counts),
        FigureRow(plots),
    ]


def calibration_section(summary: TrainingSummary) -> Blocks:
    """Return each family's calibration error."""
    rows = [
        (name, f"{summary.classification[name].expected_calibration_error:.4f}")
        for name in summary.families
    ]
    text = "Expected calibration error: mean difference between predicted and observed acceptance over ten bins."
    return [
        Heading("Calibration"),
        Paragraph(text),
        Table(("family", "ECE"), rows),
        Figure("Calibration", "plots/calibration.png"),
    ]


def latency_section(summary: TrainingSummary) -> Blocks:
    """Return how long one score of each family takes."""
    rows: list[list[Cell]] = []
    for name, family in summary.families.items():
        rows.append([name, *(family.latency[statistic] for statistic in LATENCIES)])
    text = (
        "One score at a time, 1,000 trials, on this machine (as in WISP's Table 11). The draft statistics of a token "
        f"take {seconds(summary.timing.statistics_s)} more, for every rule that uses them."
    )
    columns = (Column("family"), *(Column(name, "seconds") for name in LATENCIES))
    return [Heading("Latency of one score"), Paragraph(text), Table(columns, rows)]


def theorem_section(summary: TrainingSummary) -> Blocks:
    """Return the wasted tokens per round and WISP's bound on them."""
    rows = [
        (
            wording.label(name, summary.kinds[name]),
            result.longest,
            result.wasted_per_round,
            result.bound,
            result.wasted_per_round / result.bound if result.bound else None,
        )
        for name, result in summary.theorem_1.items()
    ]
    text = (
        "Tokens submitted after the first rejection, per round, and the bound of WISP's Theorem 1 (Eq. 31), both over "
        "the rule's own rounds. It bounds E[W]; it does not say that E[W] falls with the false positive rate."
    )
    columns = (
        *("stopping criterion", Column("K", "count")),
        *(
            Column("E[W], measured", "number"),
            Column("bound", "number"),
            Column("E[W] / bound", "share"),
        ),
    )
    terms = [
        (term.rejection, term.probability, term.false_positive_rate, term.term)
        for term in summary.theorem_1[summary.recommended].terms
    ]
    term_columns = (
        Column("first rejection r", "count"),
        Column("P(R = r)", "share"),
        Column("FP(r)", "share"),
        Column("term of the bound", "number"),
    )
    folded = Folded(f"Terms for {summary.recommended}", [Table(term_columns, terms)])
    return [Heading("Theorem 1"), Paragraph(text), Table(columns, rows), folded]
