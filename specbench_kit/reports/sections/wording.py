"""Sentences that reports of several kinds share, and the table of the tests of sampled outputs."""

from collections.abc import Mapping, Sequence

from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.metrics.losslessness import OutputCounts
from specbench_kit.metrics.run_summary import RunSummary, SamplingCheck, SamplingTest
from specbench_kit.metrics.typical import LASTING
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.models.description import ModelDescription
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports.document import Table, code
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    seconds,
    share,
    significant,
    times,
)
from specbench_kit.runs.document import (
    HardwareDescription,
    NumberFormat,
    RunConfig,
    RunDescription,
    RunDocument,
    TraceReference,
    grammar_words,
)
from specbench_kit.runs.machine.limits import MachineReadings


def speedup_note(run: RunDocument, summary: RunSummary) -> str:
    """Return what the speedup of a sampled run is of where answers differ in length, or nothing
    where they do not.
    """
    time_ratio = summary.overall.time_ratio
    if not run.config.temperature or time_ratio is None or not summary.baseline:
        return ""
    lengths = (
        f"{count(summary.overall.tokens)} against {count(summary.baseline.overall.tokens)} tokens"
    )
    return (
        f"Both sides sampled their own outputs, which differ in length ({lengths}), so the speedup is of times per "
        f"token. In total times it would be {times(time_ratio)}, which is partly luck."
    )


def process_words(runs: Sequence[RunDocument], is_seen: bool) -> str:
    """Return what intervals of measured times cover of what lasts as long as a process; empty for
    modelled times.
    """
    if any(run.time_kind != "measured" for run in runs):
        return ""
    lasting = "what lasts as long as a process, such as where its memory lies"
    processes = min(run.config.processes for run in runs)
    if is_seen:
        return f"Each prompt was timed in {processes} processes; intervals and verdicts cover {lasting}."
    assumed = f"Intervals and verdicts take {lasting}, to change a method's speed by {LASTING:.1%}"
    if processes > 1:
        return f"{assumed}: too few prompts were timed by all methods in as many processes."
    can_repeat = all(run.server is None and run.imported is None for run in runs)
    return (
        f"{assumed}; {code('skit bench --processes 3')} measures it."
        if can_repeat
        else f"{assumed}."
    )


def process_note(run: RunDocument, summary: RunSummary) -> str:
    """Return the same of one run, if its speedup has an interval or would have one in fewer
    processes.
    """
    if summary.overall.speedup is None:
        return ""
    return process_words(
        [run], run.config.processes > 1 and summary.overall.bounds("typical_speedup") is not None
    )


def overlap_note(run: RunDocument) -> str:
    """Return what measured time shows of a method that drafts while the target verifies."""
    if run.time_kind == "modelled":
        return ""
    if run.config.launch == "processes":
        return (
            "The target ran in a process of its own and verified while drafting went on; `verify` is only the time "
            "that was then left to wait for it."
        )
    return (
        "Drafting and verification took turns on one device, so that drafting ahead took time of its own: only a "
        "modelled deployment (`--deployment`) shows the two overlap."
    )


def warm_up(runs: Sequence[RunDocument]) -> list[tuple[str, str]]:
    """Return what is no part of the measurement, as a row of a table of facts."""
    rounds = sum(sum(run.warm_up.rounds) for run in runs)
    machine = [
        block
        for number, run in enumerate(runs)
        for block in run.machine
        if not _is_told(block, runs[:number])
    ]
    captured_s = sum(lane.uncounted_s for block in machine for lane in block.lanes.values())
    parts = [f"{count(rounds)} rounds"] if rounds else []
    parts += [f"{seconds(captured_s)} in which a GPU's graphs were captured"] if captured_s else []
    return [("warm-up", f"{' and '.join(parts)}, excluded from all numbers")] if parts else []


def _is_told(block: MachineReadings, runs: Sequence[RunDocument]) -> bool:
    """Return whether a run has the same readings: methods that took turns have theirs in common."""
    return any(block == other for run in runs for other in run.machine)


def lossless_sentence(run: RunDocument, summary: RunSummary) -> str:
    """Return the verdict on losslessness."""
    lossless = summary.lossless
    if summary.sampling:
        return sampling_sentence(summary.sampling)
    if not lossless:
        if run.imported:
            return f"Not compared: {run.imported.tool} does not record output tokens."
        if run.config.temperature:
            return "Not compared with greedy output: outputs were sampled."
        if run.config.baseline:
            return "This run is the autoregressive baseline itself."
        return "Not checked: no autoregressive baseline was run."
    if not lossless.compared:
        return "Not checked: no request finished both here and in the baseline."
    equal = f"{lossless.identical} of {lossless.compared} outputs equal autoregressive output token for token"
    ties = (
        f"; ties: {lossless.ties} (explained by rounding between forward shapes)"
        if lossless.ties
        else ""
    )
    ties += f"; differing, cannot be judged: {lossless.unjudged}" if lossless.unjudged else ""
    if lossless.lossy:
        return f"Lossy by the rule {run.config.lossy}: {equal}; {lossless.errors} differ{ties}."
    if lossless.errors:
        return f"Not lossless: {equal}; errors: {lossless.errors}{ties}."
    if lossless.unjudged:
        return f"It is not known if this is lossless: {equal}{ties}."
    bitwise = (
        "; bitwise: a token's logits do not depend on the rest of its forward"
        if lossless.bitwise
        else ""
    )
    return f"{'Lossless up to rounding' if ties else 'Lossless'}: {equal}{ties}{bitwise}."


def grammar_sentence(config: RunConfig) -> str:
    """Return which grammar all outputs had to follow, with its hash."""
    return f"{grammar_words(config.constraint)} (hash {config.constraint_hash})"


def validity_sentence(overall: MetricValues) -> str:
    """Return how many outputs follow their grammar; empty if there was none."""
    valid, cut = overall.valid_share, overall.cut_share or 0.0
    if valid is None:
        return ""
    finished = overall.finished or 0
    numbers = [round(part * finished) for part in (valid, cut)]
    whole = f"{numbers[0]} of {finished} outputs are valid by the grammar, to its end"
    was_cut = f"; {numbers[1]} were cut by --max-new-tokens before it" if numbers[1] else ""
    wrong = finished - sum(numbers)
    return f"{whole}{was_cut}{f'; {wrong} are WRONG' if wrong else ''}."


CONSISTENT = {
    (True, False): "consistent",
    (True, True): "no difference",
    (False, False): "WRONG",
    (False, True): "differs",
    (None, False): "undecided",
    (None, True): "undecided",
}
"""What the test of sampled outputs found, without and with a rule that lets outputs differ."""


def sampling_sentence(sampling: SamplingCheck) -> str:
    """Return the verdict on whether sampled outputs follow the target's distribution."""
    return (_same_seed if sampling.rule == "match" else _distribution)(sampling)


def sampling_tests(sampling: SamplingCheck) -> Table:
    """Return the statistical tests of sampled outputs, one per row."""
    acceptance = sampling.acceptance or SamplingTest()
    softness = sampling.softness or SamplingTest()
    tokens = sampling.tokens or SamplingTest()
    statistic = tokens.chi_square
    rates = share(acceptance.rate), share(acceptance.expected_rate)
    rows = [
        (
            "acceptance, 1 - total variation",
            count(acceptance.places),
            *rates,
            *_strength(acceptance),
        ),
        (
            "which drafted tokens were accepted, score against the softened rule min(1, p/q)^0.8",
            count(softness.places),
            significant(softness.score),
            "0",
            *_strength(softness),
        ),
        (
            f"committed tokens in {tokens.classes} classes of the ratio of target to draft probability, chi-square",
            count(tokens.drawn),
            ABSENT if statistic is None else f"{statistic:.1f}",
            ABSENT if statistic is None else str(tokens.degrees),
            *_strength(tokens),
        ),
    ]
    of_tokens_alone = sampling.acceptance is None
    return Table(
        ("test", "drawn", "observed", "expected", "p-value", "power"),
        rows[-1:] if of_tokens_alone else rows,
    )


def _strength(test: SamplingTest) -> tuple[str, str]:
    p_value = test.p_value
    return ABSENT if p_value is None else f"{p_value:.2g}", share(test.power)


def _same_seed(sampling: SamplingCheck) -> str:
    if not sampling.compared:
        return "Not checked: no sampled request finished both here and in the baseline."
    equal = (
        f"{sampling.identical} of {sampling.compared} sampled outputs equal those of autoregressive decoding "
        "with the same seed, token for token"
    )
    ties = f"; differing only by rounding: {sampling.ties}" if sampling.ties else ""
    ties += f"; differing, cannot be judged: {sampling.unjudged}" if sampling.unjudged else ""
    if sampling.lossy:
        return f"Lossy verification: {equal}; {sampling.errors} differ{ties}."
    if sampling.errors:
        return f"Sampling differs from autoregressive decoding: {equal}; errors: {sampling.errors}{ties}."
    if sampling.unjudged:
        return f"It is not known if sampling is lossless: {equal}{ties}."
    return f"Sampling is lossless: {equal}{ties}."


def _distribution(sampling: SamplingCheck) -> str:
    verdict = {
        True: "Sampling is consistent with the target's distribution",
        False: "Sampling does not follow the target's distribution",
        None: "Sampling is undecided: too few tokens were drawn",
    }[sampling.consistent]
    if sampling.lossy:
        verdict = {
            True: "Lossy verification, of which too little shows in this run to tell it from the target's distribution",
            False: "Lossy verification: sampling does not follow the target's distribution, as the rule lets it",
            None: "Lossy verification: too few tokens were drawn to show how it changes the target's distribution",
        }[sampling.consistent]
    if sampling.acceptance is None:
        power = share((sampling.tokens or SamplingTest()).power)
        return (
            f"{verdict}: tokens are tested at {sampling.level:.1%} against the target's distribution; power against "
            f"one token in ten from the draft model {power}."
        )
    level = f"acceptance and tokens are tested at {sampling.level:.1%} against both models' distributions"
    softness = sampling.softness or SamplingTest()
    tokens = sampling.tokens or SamplingTest()
    powers = (
        f"power against a softened acceptance {share(softness.power)}, against bonus tokens from the "
        f"wrong distribution {share(tokens.power)}"
    )
    return f"{verdict}: {level}; {powers}."


def lossless_parts(lossless: OutputCounts) -> list[str]:
    """Return how many outputs are identical, as in `80/80`, then how many differ."""
    parts = [f"{lossless.identical}/{lossless.compared}"]
    wrong = "differ" if lossless.lossy else "WRONG"
    words = ((lossless.ties, "tied"), (lossless.errors, wrong), (lossless.unjudged, "unjudged"))
    return parts + [f"{number} {word}" for number, word in words if number]


def dataset_sentence(dataset: DatasetDescription) -> str:
    """Return the dataset's name, how many of its prompts were used, where they come from, and how
    they were asked.
    """
    origins = {
        "sample": "the bundled sample",
        "hub": "the Hugging Face hub:",
        "local": "the data directory:",
        "bundled": "the kit's own file",
        "imported": "the imported file",
    }
    of_all = f" of {count(dataset.total)}" if dataset.total is not None else ""
    used = f"{count(dataset.count)}{of_all} prompts"
    if dataset.left_out:
        used += f" (without {count(len(dataset.left_out))} prompts that a predictor or head was trained on)"
    source = dataset.source or "an unnamed source"
    origin = f"{origins.get(source, source)} {dataset.location or ''}".rstrip()
    return f"{dataset.name or 'unnamed'}, {used}, from {origin}{_asked(dataset)}"


def _asked(dataset: DatasetDescription) -> str:
    """Return whether prompts were chat messages or raw text; an empty text if the run does not say
    it.
    """
    chat = dataset.chat
    prompts = dataset.count
    if chat is None:
        return ""
    if chat == 0:
        return ", as raw text without a chat template"
    return (
        ", as chat messages"
        if chat == prompts
        else f", {chat} of them as chat messages and the others as raw text"
    )


def batch_sentence(config: RunConfig) -> str:
    """Return the batch size, and how many requests of a batch were decoded together if those were
    fewer.
    """
    batch_size = config.batch_size
    decoded = config.effective_batch_size
    if decoded in (None, batch_size):
        return f"batch size {batch_size}"
    return f"batch size {batch_size} (EFFECTIVELY {decoded}: the other requests wait, and their times include it)"


def model_sentence(model: ModelDescription) -> str:
    """Return a model's name, its size and the start of its weights' hash."""
    parts = [model.name or "not stated"]
    if model.parameters:
        parts.append(f"{parameters(model.parameters)} parameters")
    if model.hash:
        parts.append(f"hash {model.hash[:12]}")
    return ", ".join(parts)


def formats_sentence(formats: Mapping[str, NumberFormat]) -> str:
    """Return the format in which each model computed, and that of its files where it is another
    one.
    """
    parts = []
    for role, format_of_model in formats.items():
        published = format_of_model.published
        other = (
            f" (published in {published})"
            if published and published != format_of_model.computed
            else ""
        )
        parts.append(f"{role}: {format_of_model.computed}{other}")
    return ", ".join(parts)


def parameters(number: float) -> str:
    """Return a number of parameters with its unit: 812 K, 494 M, 7.62 B."""
    scale, unit = next(
        size for size in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if number >= size[0]
    )
    return f"{significant(number / scale)} {unit}".rstrip()


def trace_sentence(trace: TraceReference) -> str:
    """Return the file that was replayed, its hash, which part of it if not all, and its licence."""
    parts = [str(trace.file), f"sha256 {str(trace.sha256)[:12]}"]
    if trace.requests != trace.recorded:
        parts.append(f"the first {count(trace.requests)} of its {count(trace.recorded)} requests")
    return ", ".join([*parts, *([f"licence {trace.licence}"] if trace.licence else [])])


def time_sentence(run: RunDescription) -> str:
    """Return how durations were obtained."""
    name = run.deployment_name
    if run.time_kind == "measured":
        return (
            f"measured by {run.imported.tool}"
            if run.imported
            else "measured by this machine's clock"
        )
    if run.time_kind == "modelled":
        return "modelled by the latency models of " + (
            f"the deployment '{name}'" if name else "a deployment"
        )
    return "unlabelled"


def time_kind(run: RunDescription) -> str:
    """Return `measured time`, or `modelled time` with the deployment's name."""
    name = run.deployment_name
    kind = run.time_kind or "unlabelled"
    return f"{kind} time ({name})" if name else f"{kind} time"


def hardware_sentence(hardware: HardwareDescription | None) -> str:
    """Return CPU, cores, threads, GPU and memory, as far as they are known."""
    units = {
        "cpu": "{}",
        "physical_cores": "{} cores",
        "torch_threads": "{} threads used"
        if getattr(hardware, "torch_threads", None) != 1
        else "1 thread used",
        "gpu": "{}",
        "memory_gb": "{:.0f} GB memory",
    }
    parts = [
        unit.format(value) for key, unit in units.items() if (value := getattr(hardware, key, None))
    ]
    return ", ".join(parts) or "unknown"


def outcome(pair: ComparedNumber) -> str:
    """Return the simulated over the published number, or whether the bound holds."""
    if pair.holds is None:
        return times(pair.simulated_over_published)
    return "holds" if pair.holds else "does not hold"
