"""Sentences on the result of a training run, computed from its numbers; its headline is in `headlines.py`."""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from specbench_kit.reports.document import Summary
from specbench_kit.reports.writing.formatting import interval, rate, seconds, share, significant, times
from specbench_kit.runs.document import RunDescription


class TraceRequests(Struct):
    """The requests that a trace holds, and those that did not fit the context."""

    recorded: int = 0
    failed: int = 0


class TrainingDescription(RunDescription, kw_only=True):
    """What `run.json` says of the training of predictors."""

    requests: TraceRequests = field(default_factory=TraceRequests)


FEW_PROMPTS = 20
"""Test prompts below which a reader is warned."""


def classifier_adds(summary: Summary) -> str:
    """Return what the classifier adds to a tuned threshold on a single feature."""
    name = summary["recommended"]
    feature = summary["leaders"]["feature"]
    ratio = summary["classifier_over_feature"]
    scores = summary["classification"]
    if ratio["interval"] is None:
        verdict = "too few prompts to tell."
    elif ratio["interval"][0] > 1:
        verdict = "speed."
    else:
        verdict = "nothing; it costs speed." if ratio["interval"][1] < 1 else "no speed that these prompts can show."
    return (
        f"What the classifier adds: {verdict} `{name}` has {factor(ratio)} the speed of the best threshold on a "
        f"single feature ({feature}), tuned on the same validation prompts by the same rule; AUC "
        f"{significant(scores[name]['auc'])} against {significant(scores[feature]['auc'])}."
    )


def potential_gain(summary: Summary) -> str:
    """Return what there is to gain, and which costs keep the recommended classifier from it."""
    leaders = summary["leaders"]
    timing = summary["timing"]
    longest = summary["max_draft"]
    fixed = summary["decoding"][leaders["fixed"]]["throughput"]
    oracle = times(summary["decoding"]["oracle"]["throughput"] / fixed)
    right, free, sent = (
        times(summary["attribution"][key] / fixed) for key in ("never_wrong", "deciding_for_free", "last_token_sent")
    )
    stops_nothing = ""
    if leaders["rule"] in let_all_pass(summary):
        stops_nothing = (
            f"At these prices it lets every token pass and drafts {contender(summary, leaders['rule'])['longest']} in "
            "each round: any stop on its scores would cost more than it saves. "
        )
    decision_s = contender(summary, summary["recommended"])["policy_s"]
    origin = f", {timing['origin']}" if timing["origin"] else ""
    return (
        "What there is to gain, as a multiple of the best fixed length: an oracle that is never wrong and decides in "
        f"no time reaches {oracle}. `{leaders['classifier']}` would reach {right} if it were never wrong, {free} if it "
        f"decided in no time, and {sent} if it sent the token at which it stops instead of dropping it. "
        f"{stops_nothing}Prices: a draft step {seconds(timing['draft_s'])}, a decision {seconds(decision_s)} per "
        f"drafted token (of which {seconds(timing['statistics_s'])} before the score{origin}), a plain target step "
        f"{seconds(timing['verify_s'][0])}, verifying {longest} drafted tokens {seconds(timing['verify_s'][longest])}."
    )


def time_sentence(run: TrainingDescription) -> str:
    """Return where the durations come from."""
    name = run.deployment_name
    if name in (None, "recorded"):
        return "modelled: as measured while the trace was recorded; scores take what they took in training"
    return f"modelled: by the deployment '{name}', at the trace's mean context; prompts take no time"


def to_measure(run: TrainingDescription, summary: Summary) -> str:
    """Return the command that measures the recommended predictor by a clock."""
    leaders = summary["leaders"]
    methods = (f"wisp:predictor={leaders['rule']}", leaders["threshold"], leaders["fixed"])
    command = " ".join(["skit bench", *(f"--method {spec}" for spec in methods)])
    bundled = all(str(model.name).startswith("bundled/") for model in run.models.values() if model)
    models = "" if bundled else ", with the same `--target` and `--draft`,"
    return f"All these speeds are modelled; `{command}`{models} measures them."


def let_all_pass(summary: Summary) -> list[str]:
    """Return the contenders whose threshold of 0 stops no token."""
    return [contender["name"] for contender in summary["contenders"] if contender["threshold"] == 0]


def contender(summary: Summary, name: str) -> Summary:
    """Return what was chosen for a contender: its threshold, longest draft and price."""
    return next(contender for contender in summary["contenders"] if contender["name"] == name)


def cautions(run: TrainingDescription, summary: Summary) -> list[str]:
    """Return what a reader must know before quoting a number."""
    lines = []
    failed = run.requests.failed
    if summary["split"]["test"]["prompts"] < FEW_PROMPTS:
        lines.append(f"FEW PROMPTS: all results come from {test_prompts(summary)}; record more before you conclude.")
    fixed = [
        f"{name} as fixed-k:k={contender(summary, name)['longest']}"
        for name in let_all_pass(summary)
        if name in summary["families"]
    ]
    if fixed:
        lines.append(
            "FIXED LENGTH: a classifier that lets every token pass (threshold 0) drafts a fixed length: "
            f"{', '.join(fixed)}."
        )
    if failed:
        lines.append(f"FAILED REQUESTS: {failed} did not fit the context; nothing was learned from them.")
    return lines


def label(name: str, kind: str) -> str:
    """Return a contender's name in a table."""
    family, _, rule = name.partition(",")
    labels = {"classifier": f"`wisp`, {family}", "variant": f"`wisp:{rule}`, {family}", "feature": name}
    return labels.get(kind, f"`{name}`")


def share_range(bounds: Sequence[float]) -> str:
    """Return both ends of an interval of shares."""
    return " to ".join(share(bound) for bound in bounds)


def test_prompts(summary: Summary) -> str:
    """Return the number of test prompts, in words."""
    prompts = summary["split"]["test"]["prompts"]
    return f"{prompts} prompt{'s' if prompts != 1 else ''}"


def factor(estimate: Summary) -> str:
    """Return a factor with its interval."""
    return times(estimate["value"]) + interval_note(estimate, interval)


def interval_note(estimate: Summary, show: Callable[[Sequence[float]], str]) -> str:
    """Return an estimate's interval in brackets, or nothing if it has none."""
    return f" (95% interval {show(estimate['interval'])})" if estimate["interval"] else ""


def headline(summary: Summary) -> str:
    """Return the recommended predictor, its speed and its acceptance rate."""
    leaders = summary["leaders"]
    name = leaders["rule"]
    decoding = summary["decoding"][name]
    ratio = decoding["against_best_fixed"]
    gap = decoding["gap_closed"]
    gain = decoding["acceptance_gain"]["value"]
    is_fixed = name in let_all_pass(summary)
    same = f", which is `fixed-k:k={contender(summary, name)['longest']}`," if is_fixed else ""
    # Only an interval that does not contain 1 shows a difference.
    decided = ratio["interval"] and not ratio["interval"][0] <= 1 <= ratio["interval"][1]
    doubt = "" if decided else ": no difference is shown"
    relative = "with nothing to compare it to in" if gain is None else f"{times(1 + gain)} that of"
    if gap["value"] is None:
        closed = "the oracle is no faster than the best fixed length here, so there is no gap to close"
    else:
        part = share(gap["value"]) if gap["value"] >= 0 else "nothing"
        bounds = interval_note(gap, share_range)
        closed = f"it closes {part} of the gap between the best fixed length and the oracle{bounds}"
    return (
        f"On {test_prompts(summary)} that nothing was chosen on, `wisp:predictor={name}`{same} decodes "
        f"{rate(decoding['throughput'])}, {factor(ratio)} the speed of the best fixed length "
        f"(`{leaders['fixed']}`){doubt}. "
        f"Its acceptance rate is {share(decoding['acceptance_rate'])}, {relative} `{leaders['longest']}`; {closed}."
    )
