"""The report on one run."""

from collections.abc import Sequence

from specbench_kit.core.errors import by_reason
from specbench_kit.metrics.result import RunResult
from specbench_kit.metrics.setting import method_label, sampling_sentence
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.reports.document import (
    Blocks,
    Document,
    Figure,
    Heading,
    Paragraph,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.run import sections
from specbench_kit.reports.run.sections import answers_section, lossless_section, pipeline_section
from specbench_kit.reports.sections import (
    baseline,
    colocation,
    deployment,
    derived_range,
    headlines,
    machine,
    methods,
    wording,
)
from specbench_kit.reports.sections.cautions import (
    no_draft_accepted,
    not_read,
    result_cautions,
    resumption_cautions,
    setting_cautions,
)
from specbench_kit.reports.sections.columns import all_numbers
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.runs.document import EngineOverhead, EngineReference, RunDocument


def build(
    result: RunResult,
    exports: Sequence[str] = (),
    further: Blocks = (),
    problems: Sequence[str] = (),
) -> Document:
    """Return the report.

    `exports` are the files in the run's folder that it links to, `further` blocks precede the example, and `problems`
    are lines on what could not be read.
    """
    run = result.fields
    summary = result.summary
    name = method_label(run)
    overall = summary.overall
    sides: dict[str, MetricValues] = {name: overall}
    if summary.baseline:
        sides[BASELINE] = summary.baseline.overall
    sent_states = [] if run.deployment else deployment.states_row(summary.hidden_states)
    # The first screen: the result in a sentence, what limits it, one figure and the table of
    # results.
    first = next((block for block in further if isinstance(block, Figure)), None)
    table, *more_columns = sections.results(sides)
    notes = (wording.speedup_note(run, summary), wording.process_note(run, summary))
    return Document.of(
        f"{code(name)} on {run.dataset.name or 'unnamed dataset'}",
        caution(machine.warnings(run), severe=True),
        [
            Paragraph(f"**{headlines.of_run(run, summary)}**"),
            *caution(cautions(result, problems)),
        ],
        [first] if first else [],
        [Heading("Results"), table, *paragraphs(*notes), *more_columns],
        [Heading("What was run"), facts([*setting(run), *sent_states])],
        methods.section([run], [summary]),
        deployment.section(run, summary.hidden_states),
        lossless_section(run, summary),
        sections.grammar(overall),
        answers_section({name: summary}),
        sections.latency(run, sides),
        colocation.section({name: overall}, run.deployment),
        sections.categories(summary),
        sections.positions(overall),
        sections.along(summary.along),
        sections.thinking(summary.thinking),
        sections.tool_calls(summary.tool_calls),
        sections.drafters(result.drafters),
        sections.phases(run, sides),
        pipeline_section(run, summary),
        sections.overlap(run, summary),
        sections.exports(exports),
        [block for block in further if block is not first],
        sections.failures(result.failures),
        sections.example(result.example),
        [all_numbers(sides), sections.definitions()],
        provenance(run),
    )


def cautions(result: RunResult, problems: Sequence[str] = ()) -> list[str]:
    """Return what limits the numbers of a run, with a line on everything that could not be read."""
    run, summary = result.fields, result.summary
    name = code(method_label(run))
    return [
        *result_cautions(summary),
        *no_draft_accepted({name: summary.overall}),
        *resumption_cautions(run),
        *setting_cautions(run),
        *derived_range.of_run(run, summary),
        *colocation.cautions(name, summary.overall),
        *map(not_read, problems),
    ]


def engine_sentence(engine: EngineReference, overhead: EngineOverhead) -> str:
    """Return the engine in which the policy drafted, and what a call of it took there."""
    name = f"{engine.name} {engine.version}"
    if not overhead.calls:
        return name
    policy, draft, total, step = (
        f"{spent_s / overhead.calls * 1e3:.2f} ms"
        for spent_s in (overhead.policy_s, overhead.draft_s, overhead.total_s, overhead.engine_s)
    )
    return f"{name}, which takes {step} per step; the drafter takes {total}, of it {policy} policy and {draft} drafting"


def setting(run: RunDocument) -> list[tuple[str, str]]:
    """Return what was run on what, as rows of a table of facts."""
    config = run.config
    computed = (config.device, config.dtype)
    executors = config.executors or {}
    limits = f"{config.max_new_tokens} new tokens per request, {wording.batch_sentence(config)}"
    repeats = f", every request asked {config.repeats} times" if (config.repeats or 1) > 1 else ""
    if config.processes > 1:
        repeats = f", every request decoded once in each of {config.processes} processes, one after another"
    return [
        ("dataset", wording.dataset_sentence(run.dataset)),
        *(
            (f"{role} model", wording.model_sentence(model))
            for role, model in run.models.items()
            if model
        ),
        *([("trace", wording.trace_sentence(run.trace))] if run.trace else []),
        ("sampling", sampling_sentence(config)),
        *([("grammar", wording.grammar_sentence(config))] if config.constraint else []),
        ("limits", limits + repeats),
        *baseline.facts(run),
        ("time", wording.time_sentence(run)),
        *([("engine", engine_sentence(run.engine, run.overhead))] if run.engine else []),
        *wording.warm_up([run]),
        ("device" if config.device else "number format", ", ".join(filter(None, computed))),
        *(
            [("number formats", wording.formats_sentence(run.number_formats))]
            if run.number_formats
            else []
        ),
        *([("products", config.products)] if config.products else []),
        *([("kernels", config.kernels)] if config.kernels else []),
        *(
            [("executors", ", ".join(f"{role}: {name}" for role, name in executors.items()))]
            if executors
            else []
        ),
        ("hardware", wording.hardware_sentence(run.hardware)),
        *(
            (f"left out: {', '.join(map(code, names))}", reason)
            for reason, names in by_reason(run.left_out).items()
        ),
    ]
