"""Lines that a reader must see before quoting a number."""

from collections.abc import Iterable, Mapping, Sequence

from specbench_kit.deployments.base import IMPOSSIBLE, RECORDED
from specbench_kit.deployments.description import restore
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.models.catalogue import shape_of
from specbench_kit.models.description import ModelDescription
from specbench_kit.predictors.thresholds import LOCAL, OTHER_VALUES
from specbench_kit.reports.document import Blocks, Note, caution
from specbench_kit.reports.sections import machine, wording
from specbench_kit.reports.sections.profiles import FIVE_TOKENS, STEP
from specbench_kit.reports.writing.formatting import count, seconds, span
from specbench_kit.runs.deployment import DeploymentDescription
from specbench_kit.runs.document import (
    LoweredLimit,
    PredictorUse,
    Resumption,
    RunDescription,
    RunDocument,
)
from specbench_kit.runs.resumption import resumption_changes

FULL_BATCH = 32
"""Requests of a batch that tells if it takes longer than a single one."""
CONSTANT = 1.05
"""Times that a full batch takes longer than one request up to which a verifier counts as
constant.
"""


def setting_cautions(run: RunDescription, *, beside_others: bool = False) -> list[str]:
    """Return what in the setting of a run limits its numbers, without what one line says of all
    runs beside it.
    """
    dataset = run.dataset
    lines = machine.cautions(run)
    if dataset.source == "sample":
        name = dataset.name
        lines.append(
            f"SAMPLE DATA: a few bundled prompts stand in for {name}; these are not results on {name}."
        )
    if recorded := dataset.recorded:
        lines.append(
            f"PARTIAL RUN: {recorded.requests} of {recorded.planned} requests were recorded before --minutes "
            "were over; skit record --resume with the same options, --limit and --out included, records the others."
        )
    if rule := run.config.lossy:
        lines.append(
            f"LOSSY VERIFICATION: {rule} accepts tokens that the target would not have written. Speedups of this run "
            "belong beside no lossless ones."
        )
    if run.time_kind == "modelled":
        lines += impossible_times(run)
        lines += constant_steps(run)
        deployment = f"the deployment '{name}'" if (name := run.deployment_name) else "a deployment"
        # Which models and devices these are, since they need not be those that decoded.
        description = run.deployment.description if run.deployment and name != RECORDED else ""
        what = f" ({description.partition('. ')[0].rstrip('.')})" if description else ""
        lines.append(
            f"MODELLED TIME: durations come from the latency models of {deployment}, not from a clock{what}."
        )
        # The range of the results, where a run has it, says more than that of single steps.
        has_range = run.command in ("simulate", "capacity") or run.range
        lines += [] if has_range else derived_steps(run.deployment)
    if link := run.shaped_link:
        values = ", ".join(f"{name}={value:g}" for name, value in link.items() if value)
        lines.append(
            f"SHAPED LINK: this machine delayed messages as a link with {values} would; no network was involved."
        )
    if lost := run.reconnections:
        often = "once" if lost == 1 else f"{lost} times"
        lines.append(
            f"RECONNECTED: the connection to the server was lost {often}; times include the outages."
        )
    lines += shorter_drafts(run.lowered_limits)
    if run.trace and (imported := run.trace.imported):
        notes = "; ".join(
            [f"which tokens were accepted comes from {imported.tool}", *imported.notes]
        )
        lines.append(f"IMPORTED TRACE: {notes}.")
    drafter = str((run.options or {}).get("drafter"))
    if drafter.startswith("block"):
        lines.append(
            f"MODELLED DRAFTER: {run.method} drafts the draft model's own tokens, several in the time of one forward, "
            "as no model here does. Without `keep`, the shares of right tokens by position, it is an upper bound."
        )
    lines += _model_cautions(run.models, by_text=drafter.startswith("slem"))
    if run.time_kind == "modelled" and is_toy(run.models):
        lines.append(TOY_PAIR)
    lines += predictor_cautions(run)
    return lines if beside_others else [*lines, *tuning_cautions([run]), *other_deployments([run])]


def foreign_files(run: RunDescription) -> Blocks:
    """Return what files of other programs were taken for, values that cannot be first: it stands
    before any result.
    """
    lines = [f"DOUBTFUL: {doubt}" for doubt in run.doubts]
    return [*caution(lines, severe=True), *(Note(line) for line in run.files)]


TOY_PAIR = (
    "TOY PAIR: how often drafts are right is that of the small bundled pair, whose answers are nonsense, beside the "
    "times of other models; `skit fetch qwen2.5-coder` brings a real pair."
)


def is_toy(models: Mapping[str, ModelDescription | None]) -> bool:
    """Return True for the small bundled pair."""
    target = models.get("target")
    return target is not None and str(target.name).startswith("bundled")


def _deployments(run: RunDescription) -> list[DeploymentDescription]:
    return list(run.deployments.values()) or ([run.deployment] if run.deployment else [])


def impossible_times(run: RunDescription) -> list[str]:
    """Return a line on every deployment one of whose devices is taken to be faster than it can
    be.
    """
    ends = [
        (deployment.name, end)
        for deployment in _deployments(run)
        for end in (deployment.drafter, deployment.verifier)
        if IMPOSSIBLE in end.origin
    ]
    return [
        f"IMPOSSIBLE TIMES: '{name}' takes an {end.device} to be faster than its data sheet allows, so that what "
        "comes of it is too good; `skit list deployments` says which deployment stands for the same devices."
        for name, end in ends
    ]


def constant_steps(run: RunDescription) -> list[str]:
    """Return a line on verifiers whose steps take no longer for a full batch, where a run has
    batches.
    """
    in_batches = isinstance(run, RunDocument) and run.decoded_at_once > 1
    if run.command not in ("simulate", "capacity") and not in_batches:
        return []
    named = {}
    for deployment in _deployments(run):
        latency = restore(deployment).verifier.latency
        alone_s, full_s = (latency.seconds(FIVE_TOKENS * requests) for requests in (1, FULL_BATCH))
        if full_s < CONSTANT * alone_s:
            named[deployment.name] = alone_s
    return [
        f"CONSTANT STEPS: the verifier of '{name}' takes {seconds(step_s)} for one request and for {FULL_BATCH}, which "
        "no card does: what many devices get here is an upper bound; `skit list deployments` names others."
        for name, step_s in named.items()
    ]


def derived_steps(deployment: DeploymentDescription | None) -> list[str]:
    """Return the line about devices whose times are derived, with what a plain step of each may
    take.
    """
    if deployment is None or not (deployment.verifier.range or deployment.drafter.range):
        return []
    restored = restore(deployment)
    parts = []
    for role, endpoint in (("verifier", restored.verifier), ("drafter", restored.drafter)):
        if endpoint.range is not None:
            step_s, low_s, high_s = (
                model.seconds(STEP) for model in (endpoint.latency, *endpoint.range)
            )
            parts.append(
                f"{seconds(step_s)} at the {role}, {span(seconds(low_s), seconds(high_s))} over its range"
            )
    return [
        f"DERIVED TIMES: a plain step after {STEP[0][1]} tokens takes {'; '.join(parts)}, by its profile, its "
        "host and its interconnect; a verdict that such a change could reverse is open."
    ]


NAMED_METHODS = 3
"""Methods that one line names, where it is about many."""


def shorter_drafts(limits: Mapping[str, LoweredLimit]) -> list[str]:
    """Return the line about methods, by spec, that draft longer by default than a trace holds; none
    without such.
    """
    if not limits:
        return []
    lowered = max(limit.lowered for limit in limits.values())
    described = [f"{spec} ({limit.default} by default)" for spec, limit in limits.items()]
    verb = "drafts" if len(limits) == 1 else "draft"
    longest = max(limit.default for limit in limits.values())
    return [
        f"SHORTER DRAFTS: {_first(described)} {verb} at most {lowered} tokens here: the trace holds no more. "
        f"`skit record --max-draft {longest}` does."
    ]


def tuning_cautions(runs: Iterable[RunDescription]) -> list[str]:
    """Return the lines about options that were tuned under other conditions, and about methods that
    have none.
    """
    doubts: dict[str, None] = {}
    untuned: dict[str, dict[str, None]] = {}
    for run in runs:
        if tuning := run.tuning:
            doubts |= dict.fromkeys(
                f"OTHER TUNING: {tuning.file}: {doubt}." for doubt in tuning.doubts
            )
            if tuning.is_untuned:
                untuned.setdefault(tuning.file, {})[str(run.method).partition(":")[0]] = None
    return [
        *doubts,
        *(
            f"NOT TUNED: {file} has no options for {_first(names)}: defaults run."
            for file, names in untuned.items()
        ),
    ]


def _first(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - NAMED_METHODS} more" if len(listed) > NAMED_METHODS else ""
    return ", ".join(listed[:NAMED_METHODS]) + more


def _model_cautions(models: Mapping[str, ModelDescription | None], *, by_text: bool) -> list[str]:
    target = models.get("target") or ModelDescription()
    draft = models.get("draft") or ModelDescription()
    lines = []
    if ignored := target.ignored_settings:
        settings = ", ".join(f"{name} {value}" for name, value in ignored.items())
        lines.append(
            f"IGNORED: the target's generation config sets {settings}; outputs are made without it."
        )
    masked = draft.masked_tokens
    if masked is None and (name := str(draft.name)).startswith("synthetic"):
        given = f"How often and how confidently drafts are right was given ({name}), and texts are meaningless."
        if shape_of(name):
            lines.append(
                f"RANDOM WEIGHTS: {target.name} and its draft computed forwards of these shapes, for the time "
                f"that they take. {given}"
            )
        else:
            lines.append(
                f"SYNTHETIC PAIR: no model ran. {given} Times are a deployment's, or only the kit's own."
            )
    if masked:
        lines.append(
            f"TOKENIZERS DIFFER in {masked} added tokens: they are never drafted, but the target may emit its own."
        )
    if share := draft.shared_vocabulary:
        how = (
            ", and reads and drafts text, of whatever tokens (string-level exact matching)."
            if by_text
            else ", and drafts only those (token-level intersection). What it reads of other tokens is their last "
            "piece. With drafter=slem it reads and drafts text instead, of whatever tokens."
        )
        lines.append(
            f"DIFFERENT VOCABULARIES: the draft shares {share:.1%} of the target's tokens{how}"
        )
    return lines


def other_deployments(runs: Iterable[RunDescription]) -> list[str]:
    """Return a line for each deployment but that of the runs for which predictors of theirs were
    tuned.
    """
    methods: dict[str, list[str]] = {}
    for run in runs:
        tuned_for = (run.inputs.predictor or PredictorUse()).deployment
        deployment = run.deployment_name or LOCAL
        if (
            tuned_for
            and tuned_for != deployment
            and not (tuned_for == LOCAL and deployment == RECORDED)
        ):
            where = f"'{tuned_for}', but time is that of '{deployment}'"
            if tuned_for == f"{deployment}{OTHER_VALUES}":
                where = f"'{deployment}' with other values than here"
            methods.setdefault(where, []).append(str(run.method))
    return [
        f"OTHER DEPLOYMENT: the {_predictors(names)} tuned for {where}."
        for where, names in methods.items()
    ]


def _predictors(methods: Sequence[str]) -> str:
    return f"predictor{'s' * (len(methods) > 1)} of {', '.join(methods)} {'was' if len(methods) == 1 else 'were'}"


def predictor_cautions(run: RunDescription) -> list[str]:
    """Return how a method's predictor or head relates to the run's prompts and deployment, where
    that is doubtful.
    """
    lines = []
    method = run.method
    if trained_on := run.seen_prompts:
        of_all = count(run.dataset.count)
        remedy = (
            "record other prompts to judge it" if run.trace else "--exclude-seen leaves them out"
        )
        lines.append(
            f"SEEN PROMPTS: the predictor or the head of {method} was trained on {count(trained_on)} of these {of_all} "
            f"prompts; {remedy}."
        )
    predictor = run.inputs.predictor or PredictorUse()
    if predictor.threshold == 0:
        lines.append(
            f"FIXED LENGTH: the predictor of {method} lets every token pass (threshold 0), so that it drafts as "
            f"fixed-k:k={predictor.max_draft} does."
        )
    if rule := predictor.rule:
        lines.append(
            f"OTHER RULE: the predictor of {method} has a threshold for {rule} only; train it again."
        )
    return lines


def resumption_cautions(run: RunDocument) -> list[str]:
    """Return how often a run was resumed, and what that does to its numbers."""
    stops = run.resumptions
    if not stops:
        return []
    after = f"after {' and '.join(count(stop.done) for stop in stops)} of {count(run.requests)} requests"
    effect = (
        "makespan and throughput would include the interruption and are left out; a policy that learns started anew"
        if run.spans_interruption
        else "decoding started again from the first request, and stored results came out equal"
    )
    return resumed(run, stops, f"{after}: {effect}")


def resumed(run: RunDescription, stops: Sequence[Resumption], words: str) -> list[str]:
    """Return how often a run was resumed, with more words on it, and under which other
    conditions.
    """
    often = f"{len(stops)} {'TIME' if len(stops) == 1 else 'TIMES'}"
    changed = resumption_changes(run, stops)
    return [
        f"RESUMED {often}, {words}.",
        *([f"RESUMED UNDER OTHER CONDITIONS: {', '.join(changed)}."] if changed else []),
    ]


def not_read(problem: str) -> str:
    """Return the caution on a file, or a part of one, that a report has to do without."""
    return f"NOT READ: {problem}."


def partial_run(finished: str, planned: int) -> str:
    """Return the caution on a run that ended early; several runs together have `1 to 3` requests
    finished.
    """
    return f"PARTIAL RUN: {finished} of {planned} requests finished. The same command with --resume decodes the others."


def result_cautions(summary: RunSummary) -> list[str]:
    """Return what in the result of a run limits its numbers."""
    requests = summary.requests
    lines = []
    if summary.lossless and summary.lossless.errors and not summary.lossless.lossy:
        lines.append(
            f"NOT LOSSLESS: {summary.lossless.errors} of {summary.lossless.compared} outputs differ from "
            "autoregressive output by more than rounding."
        )
    compared = summary.lossless or summary.sampling
    if compared and compared.unjudged:
        unjudged = [case for case in compared.divergences if case.verdict == "unjudged"]
        reasons = dict.fromkeys(
            case.reason or "nothing is known of the target's rounding" for case in unjudged
        )
        lines.append(
            f"DIFFERS, CANNOT BE JUDGED: {compared.unjudged} of {compared.compared} outputs differ from "
            f"autoregressive decoding, and it is not known if this is an error: {'; '.join(reasons)}."
        )
    if summary.sampling and summary.sampling.consistent is False and not summary.sampling.lossy:
        lines.append(f"NOT LOSSLESS: {wording.sampling_sentence(summary.sampling)}")
    overall = summary.overall
    if overall.valid_share is not None and overall.valid_share + (overall.cut_share or 0.0) < 1:
        lines.append(f"GRAMMAR NOT FOLLOWED: {wording.validity_sentence(overall)}")
    if summary.partial:
        lines.append(partial_run(str(requests.finished), requests.planned))
    if requests.failed:
        lines.append(
            f"FAILED REQUESTS: {requests.failed} of {requests.planned}; no metric counts them."
        )
    return lines


def no_draft_accepted(methods: Mapping[str, MetricValues]) -> list[str]:
    """Return one line on the methods of which the target accepted no drafted token at all, by their
    names.
    """
    none = [
        name for name, overall in methods.items() if overall.submitted and overall.accepted == 0
    ]
    if not none:
        return []
    tokens = ", ".join(count(methods[name].submitted or 0) for name in none)
    return [
        f"NO DRAFT WAS ACCEPTED: {', '.join(none)} sent {tokens} drafted tokens, and the target accepted none, so that "
        "drafts only cost time: take a draft model that fits the target (--draft), or train one (skit train-draft)."
    ]
