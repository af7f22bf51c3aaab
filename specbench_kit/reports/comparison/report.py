"""The report on several runs side by side."""

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.reports.comparison import sections
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.comparison.wording import cautions, decision_words, power_words, reachable_gap
from specbench_kit.reports.document import (
    Blocks,
    Document,
    Figure,
    Folded,
    Paragraph,
    caution,
    paragraphs,
)
from specbench_kit.reports.run.answers import answers_section
from specbench_kit.reports.run.sections import definitions
from specbench_kit.reports.sections import colocation, deployment, headlines, machine, methods
from specbench_kit.reports.sections.columns import (
    all_numbers,
)
from specbench_kit.reports.sections.provenance import provenance


def build(comparison: Comparison, figures: Blocks = (), look: Look = USUAL) -> Document:
    """Return the report; `figures` are the blocks of the section with the pictures."""
    number = sum(not series.is_baseline for series in comparison.series)
    fields = [run.fields for run in comparison.runs]
    # Answers are not added up over several datasets.
    judged = {
        series.label: run.summary
        for series in comparison.series
        if len(series.runs) == 1 and not series.is_derived
        for run in series.runs.values()
    }
    deployments = [deployment.section(run) for run in fields]
    results = [
        sections.results(part, comparison.by_group, look) for part in comparison.parts if part.kind != "category"
    ]
    # What is compared stands in one picture before any table; the others follow under their heading.
    first = next((block for block in figures if isinstance(block, Figure)), None)
    others = [block for block in figures if block is not first]
    if not any(isinstance(block, Figure | Folded) for block in others):
        others = []
    return Document.of(
        f"{number} methods on {', '.join(comparison.datasets)}",
        caution(machine.warnings(*fields), severe=True),
        [
            Paragraph(f"**{headlines.of_comparison(comparison)}**"),
            *paragraphs(decision_words(comparison), power_words(comparison)),
            *caution(cautions(comparison)),
        ],
        [first] if first else [],
        *results,
        sections.setting(comparison),
        paragraphs(reachable_gap(comparison)),
        sections.differences(comparison),
        answers_section(judged),
        colocation.section(comparison.overall, fields[0].get("deployment")),
        sections.categories(comparison, look),
        sections.averages(comparison),
        sections.repeats(comparison),
        others,
        methods.section(fields, [run.summary for run in comparison.runs]),
        *(section for index, section in enumerate(deployments) if section not in deployments[:index]),
        [all_numbers(comparison.overall), definitions()],
        sections.runs(comparison),
        provenance(fields[0]),
    )
