"""The section on the options of a report's methods."""

from collections.abc import Sequence

from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.setting import describe_inputs, describe_options
from specbench_kit.reports.document import Blocks, Heading, Table, code, paragraphs
from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.runs.document import RunDocument


def section(runs: Sequence[RunDocument], summaries: Sequence[RunSummary]) -> Blocks:
    """Return a table of the methods' options and of what they loaded or measured, each setting
    once.

    Lines below it say which methods counted the link, which took the likeliest tokens under
    sampling, and which drafted again after a pause.
    """
    rows = dict.fromkeys(
        (_name(run), describe_options(run) or ABSENT, describe_inputs(run) or ABSENT)
        for run in runs
        if run.options or run.uses
    )
    if not rows:
        return []
    table = Table(("method", "options", "made ready with"), list(rows))
    return [
        Heading("Methods"),
        table,
        *paragraphs(
            *link_notes(runs, summaries), *proposal_notes(runs), *pause_notes(runs, summaries)
        ),
    ]


def link_notes(runs: Sequence[RunDocument], summaries: Sequence[RunSummary]) -> list[str]:
    """Return one line on which of the latency-aware methods count the link between drafter and
    verifier.
    """
    latencies = {_name(run): run.inputs.latencies for run in runs if _crosses_link(run)}
    seen = [name for name, known in latencies.items() if known and "link" in known]
    blind = [name for name, known in latencies.items() if known and "link" not in known]
    drafted = [
        _name(run) for run, summary in zip(runs, summaries, strict=True) if summary.overall.drafted
    ]
    idle = [name for name in seen if name not in drafted]
    lines = [f"{_listed(seen)} {_verb('count', seen)} the link as part of a round"] if seen else []
    if blind:
        lines.append(
            f"{_listed(blind)} {_verb('do', blind)} not, as published for models in one place"
        )
    if idle:
        lines.append(
            f"{_listed(idle)} {_verb('draft', idle)} nothing, since no draft pays for its way over the link"
        )
    return [f"Link: {'; '.join(lines)}."] if lines else []


def proposal_notes(runs: Sequence[RunDocument]) -> list[str]:
    """Return one line on the methods that take the most probable tokens where others draw theirs at
    random.
    """
    sampled = [run for run in runs if run.config.temperature]
    likeliest = list(dict.fromkeys(_name(run) for run in sampled if run.proposal == "top"))
    if not likeliest:
        return []
    return [
        f"Drafted tokens: {_listed(likeliest)} {_verb('take', likeliest)} the most probable ones, which are accepted "
        f"less often under sampling than tokens drawn at random; {code('fixed-k:proposal=top')} is the control for "
        "them."
    ]


def pause_notes(runs: Sequence[RunDocument], summaries: Sequence[RunSummary]) -> list[str]:
    """Return one line on how often drafts are right that follow a round without a draft, beside all
    drafts.
    """
    shares = []
    for run, summary in zip(runs, summaries, strict=True):
        after = summary.overall.acceptance_after_pause
        anywhere = summary.overall.acceptance_at_conditional
        if after is not None and anywhere:
            shares.append(f"{_name(run)} {_percent(after)} ({_percent(anywhere[0])})")
    if not shares:
        return []
    return [
        "Drafts after a round without one, where a drafter whose state went stale would show: first tokens accepted "
        f"there (and after any round): {', '.join(shares)}."
    ]


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.0%}"


def _crosses_link(run: RunDocument) -> bool:
    return run.deployment is not None and run.deployment.placement == "edge"


def _name(run: RunDocument) -> str:
    return code(str(run.method))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _verb(verb: str, names: Sequence[str]) -> str:
    """Return the verb in the form that so many subjects need."""
    return verb if len(names) > 1 else f"{verb}es" if verb == "do" else f"{verb}s"
