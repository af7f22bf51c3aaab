"""What reports say of the deployment that a run's time is modelled on."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import seconds, significant
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


def section(run: Fields) -> str:
    """Everything that decides modelled time; nothing where time was measured."""
    deployment = run.get("deployment")
    return f"## Deployment (modelled)\n\n{table(['', ''], rows(deployment))}\n\n{NOTE}" if deployment else ""


def rows(deployment: Fields) -> list[tuple[str, str]]:
    """Facts of a deployment as `run.json` holds it."""
    drafter, verifier, predictor_s = deployment["drafter"], deployment["verifier"], deployment["predictor_s"]
    found = [
        (code(deployment["name"]), deployment["description"]),
        ("drafter", f"{drafter['device']}{price(drafter)}, {PLACES[deployment['placement']]}"),
        ("a draft forward", latency(drafter)),
        ("a predictor's decision", seconds(predictor_s) if predictor_s else ""),
        ("a draft forward beside the verifier", latency(beside) if (beside := deployment.get("colocated")) else ""),
        ("verifier", f"{verifier['device']}{price(verifier)}{_stages(verifier)}"),
        ("a verification", latency(verifier)),
        ("a hand-over between stages", hand_over(verifier["hand_over"])),
        ("link", link(deployment["link"])),
        ("source", deployment["source"]),
    ]
    return [(name, text) for name, text in found if text]


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
    return ", ".join(parts)


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
