"""What a predictor was trained on, in words and tables."""

from collections.abc import Iterable, Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import count, share, significant
from specbench_kit.reports.writing.markup import code, table

Fields = Mapping[str, Any]

FEATURE_MEANINGS = {
    "confidence": "largest draft probability",
    "entropy": "of the draft distribution, in nats",
    "margin": "lead of the largest probability over the second",
    "logit_std": "standard deviation of the draft logits",
    "draft_position": "place in the draft, 1 for the first",
}


def data_section(summary: Fields) -> str:
    rows = [
        (
            name,
            *(count(part[key]) for key in ("prompts", "requests", "offsets", "examples", "accepted")),
            count(part["examples"] - part["accepted"]),
            share(part["accepted"] / part["examples"]),
        )
        for name, part in summary["split"].items()
    ]
    header = ["part", "prompts", "requests", "offsets", "examples", "accepted", "rejected", "share accepted"]
    text = (
        "Split by prompt; turns of one dialogue stay together. At every output offset the drafted tokens that the "
        "target says too are accepted, the first other one is rejected, and tokens after it are dropped."
    )
    return section("Data", text, table(header, rows))


def feature_section(summary: Fields) -> str:
    names, matrix = summary["correlations"]["names"], summary["correlations"]["matrix"]
    used = next(iter(summary["families"].values()))["features"]
    accepted = matrix[names.index("accepted")]
    rows = [
        (code(name), meaning, "yes" if name in used else "no", significant(accepted[names.index(name)], 2))
        for name, meaning in FEATURE_MEANINGS.items()
    ]
    text = (
        "Form of WISP's Table 8, Figs. 2 and 3, on the training prompts. The paper's text names the first four and its "
        "table says five; the fifth is this kit's."
    )
    plots = "![Acceptance by feature](plots/acceptance_by_feature.png) ![Correlations](plots/correlations.png)"
    header = ["feature", "meaning", "used", "correlation with acceptance"]
    return section("Features", text, table(header, rows), plots)


def search_section(summary: Fields) -> str:
    rows = [
        (
            name,
            f"{count(family['trials'])} of {count(family['grid'])}",
            f"{family['default_loss']:.4f}",
            f"{family['validation_loss']:.4f}",
            ", ".join(f"{key}={_shown(value)}" for key, value in family["params"].items()),
        )
        for name, family in summary["families"].items()
    ]
    text = (
        "Budget: the defaults and random draws from a grid over the dimensions of WISP's Table 9, with a fixed seed. "
        "The least log-loss on the validation examples wins, in nats per token. On the same loss, boosting and the "
        "network stop early, and a forest keeps its first trees."
    )
    header = ["family", "tried", "log-loss of defaults", "log-loss of best", "best hyper-parameters"]
    return section("Hyper-parameters", text, table(header, rows))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def shares(bounds: Iterable[float]) -> str:
    return " to ".join(share(bound) for bound in bounds)
