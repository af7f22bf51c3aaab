"""The sections on a predictor's scores: classification, calibration, latency and WISP's Theorem 1."""

from specbench_kit.papers import wisp
from specbench_kit.reports.document import Blocks, Cell, Column, Figure, FigureRow, Folded, Heading, Paragraph, Table
from specbench_kit.reports.predictor import wording
from specbench_kit.reports.stored import Summary
from specbench_kit.reports.writing.formatting import ABSENT, seconds

LATENCIES = ("mean", "median", "std", "min", "max", "p95", "p99")
RATES = ("accuracy", "recall", "specificity", "false_positive_rate", "balanced_accuracy")
COUNTS = ("true_negatives", "false_positives", "false_negatives", "true_positives")


def classification_section(summary: Summary) -> Blocks:
    """Return how well each rule tells accepted from rejected tokens."""
    kinds = {contender["name"]: contender["kind"] for contender in summary["contenders"]}
    columns = (
        *map(Column, ("", "threshold", "AUC")),
        *(Column(name, "share") for name in ("accuracy", "recall", "specificity", "FPR", "balanced accuracy")),
        Column("ECE"),
    )
    rows: list[tuple[Cell, ...]] = []
    counts: list[tuple[Cell, ...]] = []
    for name, metrics in summary["classification"].items():
        # Only scores that are probabilities of acceptance have a calibration error.
        calibrated = kinds[name] == "classifier" or name.startswith(("confidence", "threshold"))
        rows.append(
            (
                wording.label(name, kinds[name]),
                f"{min(wording.contender(summary, name)['threshold'], 1):.3f}",
                f"{metrics['auc']:.4f}",
                *(metrics[rate_name] for rate_name in RATES),
                f"{metrics['expected_calibration_error']:.3f}" if calibrated else ABSENT,
            )
        )
        counts.append((wording.label(name, kinds[name]), *(metrics["confusion"][cell] for cell in COUNTS)))
    published, confusion = "WISP's MLP, published", wisp.MLP_CONFUSION
    rows.append((published, ABSENT, ABSENT, *(getattr(confusion, rate_name) for rate_name in RATES), ABSENT))
    counts.append((published, *(getattr(confusion, cell) for cell in COUNTS)))
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


def calibration_section(summary: Summary) -> Blocks:
    """Return each family's calibration error."""
    rows = [
        (name, f"{summary['classification'][name]['expected_calibration_error']:.4f}") for name in summary["families"]
    ]
    text = "Expected calibration error: mean difference between predicted and observed acceptance over ten bins."
    return [
        Heading("Calibration"),
        Paragraph(text),
        Table(("family", "ECE"), rows),
        Figure("Calibration", "plots/calibration.png"),
    ]


def latency_section(summary: Summary) -> Blocks:
    """Return how long one score of each family takes."""
    rows = [
        (name, *(family["latency"][column] for column in LATENCIES)) for name, family in summary["families"].items()
    ]
    text = (
        "One score at a time, 1,000 trials, on this machine (as in WISP's Table 11). The draft statistics of a token "
        f"take {seconds(summary['timing']['statistics_s'])} more, for every rule that uses them."
    )
    columns = (Column("family"), *(Column(name, "seconds") for name in LATENCIES))
    return [Heading("Latency of one score"), Paragraph(text), Table(columns, rows)]


def theorem_section(summary: Summary) -> Blocks:
    """Return the wasted tokens per round and WISP's bound on them."""
    kinds = {contender["name"]: contender["kind"] for contender in summary["contenders"]}
    rows = [
        (
            wording.label(name, kinds[name]),
            result["longest"],
            result["wasted_per_round"],
            result["bound"],
            result["wasted_per_round"] / result["bound"] if result["bound"] else None,
        )
        for name, result in summary["theorem_1"].items()
    ]
    text = (
        "Tokens submitted after the first rejection, per round, and the bound of WISP's Theorem 1 (Eq. 31), both over "
        "the rule's own rounds. It bounds E[W]; it does not say that E[W] falls with the false positive rate."
    )
    columns = (
        *("stopping criterion", Column("K", "count")),
        *(Column("E[W], measured", "number"), Column("bound", "number"), Column("E[W] / bound", "share")),
    )
    terms = [
        (term["rejection"], term["probability"], term["false_positive_rate"], term["term"])
        for term in summary["theorem_1"][summary["recommended"]]["terms"]
    ]
    term_columns = (
        Column("first rejection r", "count"),
        Column("P(R = r)", "share"),
        Column("FP(r)", "share"),
        Column("term of the bound", "number"),
    )
    folded = Folded(f"Terms for {summary['recommended']}", [Table(term_columns, terms)])
    return [Heading("Theorem 1"), Paragraph(text), Table(columns, rows), folded]
