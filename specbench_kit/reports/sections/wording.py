"""Sentences that reports of several kinds share."""

from collections.abc import Mapping, Sequence

from specbench_kit.metrics.run_summary import OutputCounts, RunSummary
from specbench_kit.metrics.setting import deployment_name
from specbench_kit.reports.document import RunFile
from specbench_kit.reports.sections import cautions
from specbench_kit.reports.writing.formatting import count, significant


def speedup_note(run: RunFile, summary: RunSummary) -> str:
    """Return what limits the meaning of the speedup of a sampled run, or nothing for a greedy one."""
    if not (run.get("config") or {}).get("temperature") or summary.overall.speedup is None or not summary.baseline:
        return ""
    lengths = f"{count(summary.overall.tokens)} against {count(summary.baseline.overall.tokens)} tokens"
    return f"Both sides sampled their own outputs, so the speedup also reflects their difference in length ({lengths})."


def overlap_note(run: RunFile) -> str:
    """Return what measured time shows of a method that drafts while the target verifies."""
    if run.get("time_kind") == "modelled":
        return ""
    if (run.get("config") or {}).get("launch") == "processes":
        return (
            "The target ran in a process of its own and verified while drafting went on; `verify` is only the time "
            "that was then left to wait for it."
        )
    return (
        "Drafting and verification took turns on one device, so that drafting ahead took time of its own: only a "
        "modelled deployment (`--deployment`) shows the two overlap."
    )


def warm_up(runs: Sequence[RunFile]) -> list[tuple[str, str]]:
    """Return what was decoded before the measurement, as a row of a table of facts."""
    rounds = sum(sum((run.get("warm_up") or {}).get("rounds", [])) for run in runs)
    return [("warm-up", f"{count(rounds)} rounds, excluded from all numbers")] if rounds else []


def lossless_sentence(run: RunFile, summary: RunSummary) -> str:
    """Return the verdict on losslessness."""
    lossless = summary.lossless
    if summary.sampling:
        return cautions.sentence(summary.sampling)
    if not lossless:
        config = run.get("config") or {}
        if "imported" in run:
            return f"Not compared: {run['imported']['tool']} does not record output tokens."
        if config.get("temperature"):
            return "Not compared with greedy output: outputs were sampled."
        if config.get("baseline"):
            return "This run is the autoregressive baseline itself."
        return "Not checked: no autoregressive baseline was run."
    if not lossless.compared:
        return "Not checked: no request finished both here and in the baseline."
    equal = f"{lossless.identical} of {lossless.compared} outputs equal autoregressive output token for token"
    ties = f"; ties: {lossless.ties} (explained by rounding between forward shapes)" if lossless.ties else ""
    ties += f"; differing, cannot be judged: {lossless.unjudged}" if lossless.unjudged else ""
    if lossless.errors:
        return f"Not lossless: {equal}; errors: {lossless.errors}{ties}."
    if lossless.unjudged:
        return f"It is not known if this is lossless: {equal}{ties}."
    bitwise = "; bitwise: a token's logits do not depend on the rest of its forward" if lossless.bitwise else ""
    return f"{'Lossless up to rounding' if ties else 'Lossless'}: {equal}{ties}{bitwise}."


def lossless_parts(lossless: OutputCounts) -> list[str]:
    """Return how many outputs are identical, as in `80/80`, then how many differ."""
    parts = [f"{lossless.identical}/{lossless.compared}"]
    words = ((lossless.ties, "tied"), (lossless.errors, "WRONG"), (lossless.unjudged, "unjudged"))
    return parts + [f"{number} {word}" for number, word in words if number]


def dataset_sentence(dataset: RunFile) -> str:
    """Return the dataset's name, how many of its prompts were used, where they come from, and how they were asked."""
    origins = {
        "sample": "the bundled sample",
        "hub": "the Hugging Face hub:",
        "local": "the data directory:",
        "bundled": "the kit's own file",
        "imported": "the imported file",
    }
    of_all = f" of {count(dataset['total'])}" if dataset.get("total") is not None else ""
    used = f"{count(dataset.get('count'))}{of_all} prompts"
    if dataset.get("left_out"):
        used += f" (without {count(len(dataset['left_out']))} prompts that a predictor or head was trained on)"
    source = str(dataset.get("source", "an unnamed source"))
    origin = f"{origins.get(source, source)} {dataset.get('location', '')}".rstrip()
    return f"{dataset.get('name', 'unnamed')}, {used}, from {origin}{_asked(dataset)}"


def _asked(dataset: RunFile) -> str:
    """Return whether prompts were chat messages or raw text; an empty text if the run does not say it."""
    chat = dataset.get("chat")
    prompts = dataset.get("count")
    if chat is None:
        return ""
    if chat == 0:
        return ", as raw text without a chat template"
    return ", as chat messages" if chat == prompts else f", {chat} of them as chat messages and the others as raw text"


def batch_sentence(config: RunFile) -> str:
    """Return the batch size, and how many requests of a batch were decoded together if those were fewer."""
    batch_size = config.get("batch_size")
    decoded = config.get("effective_batch_size")
    if decoded in (None, batch_size):
        return f"batch size {batch_size}"
    return f"batch size {batch_size} (EFFECTIVELY {decoded}: the other requests wait, and their times include it)"


def model_sentence(model: RunFile) -> str:
    """Return a model's name, its size and the start of its weights' hash."""
    parts = [str(model.get("name") or "not stated")]
    if model.get("parameters"):
        parts.append(f"{parameters(model['parameters'])} parameters")
    if model.get("hash"):
        parts.append(f"hash {str(model['hash'])[:12]}")
    return ", ".join(parts)


def formats_sentence(formats: Mapping[str, RunFile]) -> str:
    """Return the format in which each model computed, and that of its files where it is another one."""
    parts = []
    for role, format_of_model in formats.items():
        computed = format_of_model.get("computed")
        published = format_of_model.get("published")
        other = f" (published in {published})" if published and published != computed else ""
        parts.append(f"{role}: {computed}{other}")
    return ", ".join(parts)


def parameters(number: float) -> str:
    """Return a number of parameters with its unit: 812 K, 494 M, 7.62 B."""
    scale, unit = next(size for size in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if number >= size[0])
    return f"{significant(number / scale)} {unit}".rstrip()


def trace_sentence(trace: RunFile) -> str:
    """Return the file that was replayed, its hash, which part of it if not all, and its licence."""
    parts = [str(trace.get("file")), f"sha256 {str(trace.get('sha256'))[:12]}"]
    if trace.get("requests") != trace.get("recorded"):
        parts.append(f"the first {count(trace['requests'])} of its {count(trace['recorded'])} requests")
    return ", ".join([*parts, *([f"licence {trace['licence']}"] if trace.get("licence") else [])])


def time_sentence(run: RunFile) -> str:
    """Return how durations were obtained."""
    kind = run.get("time_kind", "")
    name = deployment_name(run)
    if kind == "measured":
        return f"measured by {run['imported']['tool']}" if "imported" in run else "measured by this machine's clock"
    if kind == "modelled":
        return "modelled by the latency models of " + (f"the deployment '{name}'" if name else "a deployment")
    return "unlabelled"


def time_kind(run: RunFile) -> str:
    """Return `measured time`, or `modelled time` with the deployment's name."""
    name = deployment_name(run)
    kind = run.get("time_kind", "unlabelled")
    return f"{kind} time ({name})" if name else f"{kind} time"


def hardware_sentence(hardware: RunFile) -> str:
    """Return CPU, cores, threads, GPU and memory, as far as they are known."""
    units = {
        "cpu": "{}",
        "physical_cores": "{} cores",
        "torch_threads": "{} threads used" if hardware.get("torch_threads") != 1 else "1 thread used",
        "gpu": "{}",
        "memory_gb": "{:.0f} GB memory",
    }
    parts = [unit.format(hardware[key]) for key, unit in units.items() if hardware.get(key)]
    return ", ".join(parts) or "unknown"
