"""Sentences that every report form says in the same words."""

from collections.abc import Sequence
from typing import Any

from specbench_kit.metrics.setting import deployment_name
from specbench_kit.metrics.verdicts import (
    NO_DIFFERENCE,
    NOT_LOSSLESS,
    TOO_FEW,
    UNCHECKED,
    as_allowed,
    may_win,
    verdict,
)
from specbench_kit.reports.writing import sampling_check
from specbench_kit.reports.writing.formatting import count, interval, rate, significant, times

Fields = dict[str, Any]

DOUBTS = {
    NO_DIFFERENCE: "which shows no difference from it",
    TOO_FEW: TOO_FEW,
    NOT_LOSSLESS: "which is no win, since its outputs are not lossless",
    UNCHECKED: "its outputs unchecked",
}
"""What is said of a speedup that shows nothing, or may not be quoted by itself, by its verdict."""


def headline(run: Fields, summary: Fields) -> str:
    """The result in one sentence."""
    overall = summary["overall"]
    if not overall["finished"]:
        return "No request finished."
    parts = [
        _speed(overall),
        speedup_doubt(run, summary),
        f"{significant(overall['acceptance_length'])} tokens per verification",
    ]
    lossless = summary.get("lossless") or {}
    if lossless.get("compared"):
        parts.append(f"{lossless['identical']} of {lossless['compared']} outputs identical")
    parts.append(f"{count(overall['finished'])} requests in {time_kind(run)}")
    return f"{', '.join(part for part in parts if part)}."


def _speed(overall: Fields) -> str:
    if overall.get("speedup") is None:
        return rate(overall["throughput"]) if overall.get("throughput") else ""
    bounds = overall["intervals"]["speedup"]
    within = f" (95% interval {interval(bounds)})" if bounds else ""
    return f"{times(overall['speedup'])} the speed of autoregressive decoding{within}"


def speedup_doubt(run: Fields, summary: Fields) -> str:
    """Why a speedup shows no difference from autoregressive decoding, or no win; nothing where it shows one."""
    overall = summary["overall"]
    if overall.get("speedup") is None:
        return ""
    repeats = (run.get("config") or {}).get("repeats") or 1
    units = overall.get("speedup_units", (overall.get("speedup_pairs") or 0) // repeats)
    found = verdict(overall["speedup"], overall["intervals"].get("speedup"), units)
    return DOUBTS.get(as_allowed(found, may_win(summary)), "")


def speedup_note(run: Fields, summary: Fields) -> str:
    """What limits the speedup's meaning in a sampled run."""
    if not (run.get("config") or {}).get("temperature") or summary["overall"].get("speedup") is None:
        return ""
    lengths = f"{count(summary['overall']['tokens'])} against {count(summary['baseline']['overall']['tokens'])} tokens"
    return f"Both sides sampled their own outputs, so the speedup also holds their difference in length ({lengths})."


def overlap_note(run: Fields) -> str:
    """What one device cannot show of a method that drafts while the target verifies."""
    if run.get("time_kind") == "modelled":
        return ""
    if (run.get("config") or {}).get("launch") == "processes":
        return (
            "The target ran in a process of its own and verified while this one went on drafting; "
            "`verify` is the time that was left to wait for it."
        )
    turns = "Drafting and verifying took turns on one device, so what was drafted meanwhile cost time like the rest"
    return f"{turns}: that the two can overlap is only seen under a modelled deployment (`--deployment`)."


def warm_up(runs: Sequence[Fields]) -> list[tuple[str, str]]:
    """What was decoded before the measurement, as a row of a table."""
    rounds = sum(sum((run.get("warm_up") or {}).get("rounds", [])) for run in runs)
    return [("warm-up", f"{count(rounds)} rounds, in none of the numbers")] if rounds else []


def lossless_sentence(run: Fields, summary: Fields) -> str:
    """The verdict on losslessness."""
    lossless = summary.get("lossless")
    if summary.get("sampling"):
        return sampling_check.sentence(summary["sampling"])
    if not lossless:
        return _why_unchecked(run)
    if not lossless["compared"]:
        return "Not checked: no request finished both here and in the baseline."
    equal = f"{lossless['identical']} of {lossless['compared']} outputs equal autoregressive output token for token"
    ties = f"; ties: {lossless['ties']} (explained by rounding between the forward shapes)" if lossless["ties"] else ""
    if lossless["errors"]:
        return f"Not lossless: {equal}; errors: {lossless['errors']}{ties}."
    bitwise = "; bitwise, since a token's logits do not depend on what is computed beside it"
    how = bitwise if lossless.get("bitwise") else ""
    return f"{'Lossless up to rounding' if ties else 'Lossless'}: {equal}{ties}{how}."


def _why_unchecked(run: Fields) -> str:
    config = run.get("config") or {}
    if "imported" in run:
        return f"Not compared: {run['imported']['tool']} does not record the tokens of outputs."
    if config.get("baseline") and not config.get("temperature"):
        return "This run is the autoregressive baseline itself."
    if config.get("temperature"):
        return "Not compared with greedy output: outputs were sampled."
    return "Not checked: no autoregressive baseline was run."


def lossless_short(summary: Fields) -> str:
    """The verdict in a narrow table cell: `80/80`, with a line each for ties and errors."""
    lossless = summary.get("lossless")
    if summary.get("sampling"):
        return sampling_check.short(summary["sampling"])
    if not lossless or not lossless["compared"]:
        return "unchecked"
    return "\n".join(lossless_parts(lossless))


def lossless_parts(lossless: Fields) -> list[str]:
    """`80/80`, then what differs."""
    parts = [f"{lossless['identical']}/{lossless['compared']}"]
    return parts + [f"{lossless[key]} {word}" for key, word in (("ties", "tied"), ("errors", "WRONG")) if lossless[key]]


def dataset_sentence(dataset: Fields) -> str:
    """Which prompts, how many of how many, and where from."""
    origins = {
        "sample": "the bundled sample",
        "hub": "the Hugging Face hub:",
        "local": "the data directory:",
        "imported": "the imported file",
    }
    of_all = f" of {count(dataset['total'])}" if dataset.get("total") is not None else ""
    used = f"{count(dataset.get('count'))}{of_all} prompts"
    if dataset.get("left_out"):
        used += f" (drawn without {count(len(dataset['left_out']))} that a predictor or head was trained on)"
    source = str(dataset.get("source", "an unnamed source"))
    origin = f"{origins.get(source, source)} {dataset.get('location', '')}".rstrip()
    return f"{dataset.get('name', 'unnamed')}, {used}, from {origin}"


def batch_sentence(config: Fields) -> str:
    """How many requests are asked at a time, and how many of them are decoded where the others wait."""
    asked, decoded = config.get("batch_size"), config.get("effective_batch_size")
    waiting = "" if decoded in (None, asked) else f" (EFFECTIVELY {decoded}: the others wait, which is in their time)"
    return f"batch size {asked}{waiting}"


def model_sentence(model: Fields) -> str:
    """Name, size and the start of the weights' hash."""
    parts = [str(model.get("name") or "not stated")]
    if model.get("parameters"):
        parts.append(f"{parameters(model['parameters'])} parameters")
    if model.get("hash"):
        parts.append(f"hash {str(model['hash'])[:12]}")
    return ", ".join(parts)


def parameters(number: float) -> str:
    """A model's size: 812 K, 494 M, 7.62 B."""
    scale, unit = next(size for size in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if number >= size[0])
    return f"{significant(number / scale)} {unit}".rstrip()


def trace_sentence(trace: Fields) -> str:
    """The file that was replayed, and under which licence."""
    parts = [str(trace.get("file")), f"sha256 {str(trace.get('sha256'))[:12]}"]
    return ", ".join([*parts, *([f"licence {trace['licence']}"] if trace.get("licence") else [])])


def time_sentence(run: Fields) -> str:
    """How durations were obtained."""
    name = deployment_name(run)
    under = f": what the deployment '{name}' would take" if name else ""
    clock = f"measured by {run['imported']['tool']}" if "imported" in run else "measured by this machine's clock"
    meanings = {"measured": clock, "modelled": f"modelled{under}, by latency models"}
    return meanings.get(run.get("time_kind", ""), "unlabelled")


def time_kind(run: Fields) -> str:
    """`measured`, or `modelled` and where."""
    name, kind = deployment_name(run), run.get("time_kind", "unlabelled")
    return f"{kind} time ({name})" if name else f"{kind} time"


def hardware_sentence(hardware: Fields) -> str:
    """CPU, cores, threads, GPU and memory, as far as known."""
    units = {
        "cpu": "{}",
        "physical_cores": "{} cores",
        "torch_threads": "{} threads used" if hardware.get("torch_threads") != 1 else "1 thread used",
        "gpu": "{}",
        "memory_gb": "{:.0f} GB memory",
    }
    known = [unit.format(hardware[key]) for key, unit in units.items() if hardware.get(key)]
    return ", ".join(known) or "unknown"
