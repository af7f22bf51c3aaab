"""The report of a training run: is a predictor worth its cost, and how good is it?"""

from typing import TYPE_CHECKING

from specbench_kit.reports import render_markdown, render_terminal
from specbench_kit.reports.document import (
    Blocks,
    BulletList,
    Column,
    Document,
    Estimate,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    caution,
    facts,
    paragraphs,
)
from specbench_kit.reports.predictor import wording
from specbench_kit.reports.predictor.advice import advice, deployments_section, repeats_section
from specbench_kit.reports.predictor.data import data_section, feature_section, search_section
from specbench_kit.reports.predictor.scores import (
    calibration_section,
    classification_section,
    latency_section,
    theorem_section,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.provenance import provenance
from specbench_kit.reports.sections.wording import dataset_sentence, hardware_sentence, model_sentence
from specbench_kit.reports.stored import RunFile, Summary

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
    "oracle: stops exactly at the first token that the target rejects, since it reads the target's output",
)


def render(run: RunFile, summary: Summary) -> str:
    """Return the report as Markdown."""
    return render_markdown.render(build(run, summary))


def build(run: RunFile, summary: Summary) -> Document:
    """Return the report; its plots are expected in `plots/` beside it."""
    setting = [
        ("dataset", dataset_sentence(run["dataset"])),
        *((f"{role} model", model_sentence(model)) for role, model in run["models"].items()),
        ("drafts", f"up to {summary['max_draft']} tokens, greedy"),
        ("thresholds and lengths", summary["rule"]),
        ("time", wording.time_sentence(run)),
        ("hardware", hardware_sentence(run.get("hardware") or {})),
    ]
    return Document.of(
        f"Rejection predictors on {run['dataset'].get('name', 'a trace')}",
        caution(machine.warnings(run), severe=True),
        paragraphs(
            f"**{advice(summary)}**",
            wording.headline(summary),
            wording.classifier_adds(summary),
            wording.potential_gain(summary),
            wording.to_measure(run, summary),
        ),
        caution([*wording.cautions(run, summary), *setting_cautions(run)]),
        [Heading("What was run"), facts(setting)],
        _worth(summary),
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


def print_training(console: "Console", run: RunFile, summary: Summary) -> None:
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
            wording.label(name, metrics["kind"]),
            metrics["throughput"],
            metrics["against_best_fixed"]["value"],
            metrics["gap_closed"]["value"],
            metrics["acceptance_rate"],
            metrics["acceptance_length"],
        )
        for name, metrics in summary["decoding"].items()
    ]
    render_terminal.show(
        console,
        [
            *caution(machine.warnings(run), severe=True),
            Table(columns, rows),
            Paragraph(f"**{advice(summary)}**"),
            *paragraphs(wording.headline(summary), wording.classifier_adds(summary)),
            *caution(wording.cautions(run, summary)),
        ],
    )


def _worth(summary: Summary) -> Blocks:
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
            wording.label(name, metrics["kind"]),
            wording.contender(summary, name)["longest"] or None,
            metrics["throughput"],
            _estimate(metrics["against_best_fixed"]),
            _estimate(metrics["gap_closed"]),
            metrics["regret"]["value"],
            metrics["speedup"]["value"],
        )
        for name, metrics in summary["decoding"].items()
    ]
    note = (
        "Every threshold and length was chosen on the validation prompts, by the same rule. Thresholds on one feature "
        "stop as `wisp` does and drop the token at which they stop; `threshold` submits it. The last rows are the "
        "recommended family with the other rules. Gap closed: share of the difference in speed between the best fixed "
        "length and the oracle. Regret: share of the oracle's speed that is lost."
    )
    return [
        Heading("Is a predictor worth it?"),
        Table(columns, rows),
        Paragraph(note),
        Figure("Modelled speed", "plots/speed.png"),
    ]


def _details(summary: Summary) -> Blocks:
    columns = {
        "acceptance_length": Column("acceptance length", "number"),
        "acceptance_rate": Column("acceptance rate", "share"),
        "draft_efficiency": Column("draft efficiency", "share"),
        "wasted_tokens": Column("wasted tokens", "count"),
        "wdt": Column("WDT", "seconds"),
        "wdt_paper": Column("WDT (paper)", "seconds"),
        "drafted": Column("drafted", "count"),
        "submitted": Column("submitted", "count"),
        "rounds": Column("rounds", "count"),
    }
    rows = [
        (wording.label(name, metrics["kind"]), *(metrics[key] for key in columns))
        for name, metrics in summary["decoding"].items()
    ]
    return [Heading("What it does to decoding"), Table(("stopping criterion", *columns.values()), rows)]


def _estimate(estimate: Summary) -> Estimate:
    return Estimate(estimate["value"], estimate["interval"])
