"""What a reader has to know before trusting a number."""

from typing import Any

from specbench_kit.deployments.base import RECORDED
from specbench_kit.metrics.setting import deployment_name
from specbench_kit.predictors.thresholds import LOCAL
from specbench_kit.reports.writing import sampling_check
from specbench_kit.reports.writing.formatting import count
from specbench_kit.runs.resumption import environment_changes, environment_of, resumptions, spans_interruption

Fields = dict[str, Any]


def _model_cautions(models: Fields) -> list[str]:
    ignored = (models.get("target") or {}).get("ignored_settings") or {}
    masked = (models.get("draft") or {}).get("masked_tokens")
    asked = ", ".join(f"{name} {value}" for name, value in ignored.items())
    lines = [f"IGNORED: the target's generation config asks for {asked}; outputs are without."] if ignored else []
    if masked is None and (draft := str((models.get("draft") or {}).get("name"))).startswith("synthetic"):
        lines.append(
            f"SYNTHETIC PAIR: no model ran; how often and how surely drafts are right was given ({draft}), and texts "
            "mean nothing. Times are those of a deployment, or of nothing but the kit."
        )
    unlike = "TOKENIZERS DIFFER in {} added tokens, which are never drafted; the target may say those it has."
    return [*lines, unlike.format(masked)] if masked else lines


def setting_cautions(run: Fields) -> list[str]:
    """What in the setting a reader must know before quoting a number."""
    dataset, lines = run.get("dataset") or {}, []
    if dataset.get("source") == "sample":
        name = dataset.get("name")
        lines.append(f"SAMPLE DATA: a few bundled prompts stand in for {name}; these are not results on {name}.")
    if run.get("time_kind") == "modelled":
        place = f"the deployment '{name}'" if (name := deployment_name(run)) else "a deployment"
        lines.append(f"MODELLED TIME: durations come from the latency models of {place}, not from a clock.")
    if link := run.get("shaped_link"):
        told = ", ".join(f"{name}={value:g}" for name, value in link.items() if value)
        lines.append(f"SHAPED LINK: messages were held back on this machine as a link with {told} would; no network.")
    if lost := run.get("reconnections"):
        often = "once" if lost == 1 else f"{lost} times"
        lines.append(f"RECONNECTED: the connection to the server was lost {often}; times span what it was away.")
    if imported := (run.get("trace") or {}).get("imported"):
        notes = "; ".join([f"what was accepted is from {imported['tool']}", *imported["notes"]])
        lines.append(f"IMPORTED TRACE: {notes}.")
    lines += _model_cautions(run.get("models") or {})
    return [*lines, *_predictor_cautions(run)]


def _predictor_cautions(run: Fields) -> list[str]:
    """What the predictor of a run's method has to do with its prompts and its deployment."""
    lines, method = [], run.get("method")
    if seen := run.get("seen_prompts"):
        of_all = count((run.get("dataset") or {}).get("count"))
        lines.append(
            f"SEEN PROMPTS: the predictor or the head of {method} was trained on {count(seen)} of these {of_all} "
            "prompts; --exclude-seen leaves them out."
        )
    predictor = (run.get("uses") or {}).get("predictor") or {}
    if predictor.get("threshold") == 0:
        lines.append(
            f"FIXED LENGTH: the predictor of {method} lets every token pass (threshold 0), so that it drafts as "
            f"fixed-k:k={predictor.get('max_draft')} does."
        )
    tuned, here = predictor.get("deployment"), deployment_name(run) or LOCAL
    if tuned and tuned != here and not (tuned == LOCAL and here == RECORDED):
        lines.append(f"OTHER DEPLOYMENT: the predictor of {method} was tuned for '{tuned}', and time here is '{here}'.")
    if rule := predictor.get("rule"):
        lines.append(f"OTHER RULE: the predictor of {method} has a threshold for {rule} alone; train it again.")
    return lines


def resumption_cautions(run: Fields) -> list[str]:
    """How often a run was taken up again, and what that does to its numbers."""
    found = resumptions(run)
    if not found:
        return []
    times_word = "TIME" if len(found) == 1 else "TIMES"
    after = f"after {' and '.join(count(one.get('done')) for one in found)} of {count(run.get('requests'))} requests"
    effect = (
        "makespan and throughput span the interruption and are not given, and a policy that learns began anew"
        if spans_interruption(run)
        else "decoded again from the start, with what was stored coming out equal"
    )
    changed = dict.fromkeys(line for one in found for line in environment_changes(run, environment_of(one)))
    return [
        f"RESUMED {len(found)} {times_word}, {after}: {effect}.",
        *([f"RESUMED UNDER OTHER CONDITIONS: {', '.join(changed)}."] if changed else []),
    ]


def not_read(problem: str) -> str:
    """A file, or a part of one, that a report has to do without."""
    return f"NOT READ: {problem}."


def result_cautions(summary: Fields) -> list[str]:
    """What in the outcome a reader must know before quoting a number."""
    lossless, requests, lines = summary.get("lossless") or {}, summary["requests"], []
    if lossless.get("errors"):
        wrong = f"{lossless['errors']} of {lossless['compared']}"
        lines.append(f"NOT LOSSLESS: outputs that differ from autoregressive output by more than rounding: {wrong}.")
    if (summary.get("sampling") or {}).get("consistent") is False:
        lines.append(f"NOT LOSSLESS: {sampling_check.sentence(summary['sampling'])}")
    if summary.get("partial"):
        lines.append(f"PARTIAL RUN: {requests['finished']} of {requests['planned']} requests finished.")
    if requests["failed"]:
        lines.append(f"FAILED REQUESTS: {requests['failed']} of {requests['planned']}; no metric counts them.")
    return lines
