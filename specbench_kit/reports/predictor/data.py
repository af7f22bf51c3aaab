"""The sections on what a predictor was trained on: prompts, features and hyper-parameters."""

from specbench_kit.reports.document import Blocks, Column, Figure, FigureRow, Heading, Paragraph, Table, code
from specbench_kit.reports.stored import Summary
from specbench_kit.reports.writing.formatting import count, significant

FEATURE_MEANINGS = {
    "confidence": "largest draft probability",
    "entropy": "entropy of the draft distribution, in nats",
    "margin": "largest draft probability minus the second largest",
    "logit_std": "standard deviation of the draft logits",
    "draft_position": "position in the draft; 1 is the first",
}


def data_section(summary: Summary) -> Blocks:
    """Return the sizes of the training, validation and test parts."""
    counts = ("prompts", "requests", "offsets", "examples", "accepted")
    columns = (
        Column("part"),
        *(Column(name, "count") for name in (*counts, "rejected")),
        Column("share accepted", "share"),
    )
    rows = [
        (
            name,
            *(part[key] for key in counts),
            part["examples"] - part["accepted"],
            part["accepted"] / part["examples"],
        )
        for name, part in summary["split"].items()
    ]
    text = (
        "Split by prompt; turns of one dialogue stay together. At every output offset, drafted tokens that equal the "
        "target's are accepted, the first one that differs is rejected, and tokens after it are dropped."
    )
    return [Heading("Data"), Paragraph(text), Table(columns, rows)]


def feature_section(summary: Summary) -> Blocks:
    """Return the features, and how each is correlated with acceptance."""
    names, matrix = summary["correlations"]["names"], summary["correlations"]["matrix"]
    used = next(iter(summary["families"].values()))["features"]
    accepted = matrix[names.index("accepted")]
    rows = [
        (code(name), meaning, "yes" if name in used else "no", significant(accepted[names.index(name)], 2))
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


def search_section(summary: Summary) -> Blocks:
    """Return the result of each family's search for hyper-parameters."""
    rows = [
        (
            name,
            f"{count(family['trials'])} of {count(family['grid'])}",
            f"{family['default_loss']:.4f}",
            f"{family['validation_loss']:.4f}",
            ", ".join(
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={str(value).lower()}"
                for key, value in family["params"].items()
            ),
        )
        for name, family in summary["families"].items()
    ]
    text = (
        "Tried were the defaults and random draws, with a fixed seed, from a grid over the dimensions of WISP's Table "
        "9. The lowest log-loss on the validation examples wins, in nats per token. By the same loss, boosting and "
        "networks stop early, and forests keep their first trees."
    )
    columns = ("family", "tried", "log-loss of defaults", "log-loss of best", "best hyper-parameters")
    return [Heading("Hyper-parameters"), Paragraph(text), Table(columns, rows)]
