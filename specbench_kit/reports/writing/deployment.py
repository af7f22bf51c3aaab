"""What reports say of the deployment that a run's time is modelled on."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import data, seconds, share, significant
from specbench_kit.reports.writing.markup import code, table
from specbench_kit.reports.writing.profiles import UNITS

Fields = Mapping[str, Any]

PLACES = {
    "edge": "on the edge: every request has a device of its own, and each round crosses the link",
    "server": "on the server: the batch shares it, and the link is crossed once per request",
}
NOTE = (
    "Only time is modelled: which tokens were drafted and accepted comes from the models named above, which need not "
    "be the ones whose latencies these are. Requests of a batch go in step: a round ends with its slowest."
)


def section(run: Fields, sent: Fields | None = None) -> str:
    """Everything that decides modelled time; nothing where time was measured.

    `sent` is what a summary says of hidden states.
    """
    deployment = run.get("deployment")
    if not deployment:
        return ""
    found = rows(deployment) + ([("hidden states", _states(sent))] if sent else [])
    return f"## Deployment (modelled)\n\n{table(['', ''], found)}\n\n{NOTE}"


def rows(deployment: Fields) -> list[tuple[str, str]]:
    """Facts of a deployment as `run.json` holds it."""
    drafter, verifier = deployment["drafter"], deployment["verifier"]
    found = [
        (code(deployment["name"]), deployment["description"]),
        ("drafter", f"{drafter['device']}{price(drafter)}, {PLACES[deployment['placement']]}"),
        ("a draft forward", latency(drafter)),
        ("a predictor's decision", _decision(deployment)),
        ("a draft forward beside the verifier", latency(beside) if (beside := deployment.get("colocated")) else ""),
        ("verifier", f"{verifier['device']}{price(verifier)}{_stages(verifier)}"),
        ("a verification", latency(verifier)),
        ("a hand-over between stages", hand_over(verifier["hand_over"])),
        ("link", link(deployment["link"])),
        ("source", deployment["source"]),
    ]
    return [(name, text) for name, text in found if text]


def _decision(deployment: Fields) -> str:
    """Nothing where it takes no time, or what each predictor's own takes."""
    if not deployment["predictor_s"]:
        return ""
    origin = deployment.get("predictor_origin")
    return seconds(deployment["predictor_s"]) + (f" ({origin})" if origin else "")


def latency(endpoint: Fields) -> str:
    """The latency model in words, and where it is from."""
    return f"{_law(endpoint['latency'])} ({endpoint['origin']})"


def link(fields: Fields) -> str:
    """Round trip, jitter and bandwidths."""
    parts = [f"{seconds(fields['rtt_s'])} round trip" if fields["rtt_s"] else "no delay"]
    if fields["jitter_s"]:
        parts.append(f"each way up to {seconds(fields['jitter_s'])} more or less (seed {fields['seed']})")
    parts += [
        f"{significant(8 * rate / 1e6)} Mbit/s {way}" if (rate := fields[f"{way}_bytes_per_s"]) else f"unlimited {way}"
        for way in ("up", "down")
    ]
    if beside := fields.get("draft_bytes"):
        parts.append(f"{data(beside)} up beside the id of each drafted token")
    if lost := fields.get("loss"):
        parts.append(f"{share(lost)} of messages lost and sent again after {seconds(fields['retry_s'])}")
    return ", ".join(parts)


def _states(sent: Fields) -> str:
    """What verdicts carried for a drafter that reads the target's states."""
    layers = ", ".join(map(str, sent["layers"]))
    return (
        f"of layers {layers}, {data(sent['bytes_per_token'])} for every token that the target keeps, cross the link "
        f"with the verdicts: {data(sent['bytes'])} in all, {data(sent['prompt_bytes'])} of them for prompts"
    )


def hand_over(fields: Fields) -> str:
    """What lies between two stages, where that takes time."""
    bandwidth = fields["bytes_per_s"]
    per_token_s = fields["bytes_per_token"] / bandwidth if bandwidth else 0.0
    terms = {
        "": fields["latency_s"],
        " per token": per_token_s,
        " of pruning after every step": fields["prune_s"],
        " of batching per step and further request": fields.get("batching_s", 0.0),
    }
    text = " + ".join(f"{seconds(value)}{what}" for what, value in terms.items() if value)
    return f"{text}, {fields['per_pass']} in a pass" if text else ""


def price(endpoint: Fields) -> str:
    """The price per hour, where there is one."""
    return f" at ${endpoint['price_per_hour']:g} per hour" if endpoint["price_per_hour"] else ""


def _law(model: Fields) -> str:
    if model["form"] == "table":
        times = model["by_new_tokens_s"]
        spread = f" to {seconds(times[-1])} for {len(times)}" if len(times) > 1 else ""
        return f"{seconds(times[0])} for 1 new token{spread}"
    terms = [f"{seconds(value)} per {UNITS[name]}" for name, value in model.items() if name in UNITS and value]
    return " + ".join(reversed(terms)) or "no time"


def _stages(verifier: Fields) -> str:
    return f", {verifier['stages']} pipeline stages" if verifier["stages"] > 1 else ""
