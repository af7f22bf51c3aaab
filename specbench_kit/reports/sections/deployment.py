"""The section on the deployment that a run's time is modelled on."""

from specbench_kit.deployments.description import restore_latency
from specbench_kit.metrics.run_summary import SentStates
from specbench_kit.reports.document import Blocks, Heading, Paragraph, code, facts
from specbench_kit.reports.sections.profiles import UNITS, typical_times
from specbench_kit.reports.writing.formatting import data, seconds, share, significant
from specbench_kit.runs.deployment import DeploymentDescription, EndpointDescription, HandOver, Link
from specbench_kit.runs.document import RunDescription

PLACEMENTS = {
    "edge": "on the edge: every request has a device of its own, and each round crosses the link",
    "server": "on the server: the batch shares it, and a request crosses the link once",
}
NOTE = (
    "Only time is modelled: which tokens were drafted and accepted comes from the models named above, which need not "
    "be the models whose latencies these are. The requests of a batch proceed in lockstep: a round lasts as long as "
    "its slowest request."
)


def section(run: RunDescription, hidden_states: SentStates | None = None) -> Blocks:
    """Return everything that decides modelled time, or nothing where time was measured.

    `hidden_states` is what the summary holds of the states that verdicts carried to the drafter.
    """
    if not run.deployment:
        return []
    rows = description(run.deployment)
    return [
        Heading("Deployment (modelled)"),
        facts([*rows, *states_row(hidden_states)]),
        Paragraph(NOTE),
    ]


def states_row(hidden_states: SentStates | None) -> list[tuple[str, str]]:
    """Return the row on the hidden states that crossed the link, modelled or real; none if there
    were none.
    """
    if not hidden_states:
        return []
    layers = ", ".join(map(str, hidden_states.layers))
    text = (
        f"of layers {layers}: {data(hidden_states.bytes_per_token)} for every token that the target keeps "
        f"cross the link with the verdicts, {data(hidden_states.bytes)} in all, of which "
        f"{data(hidden_states.prompt_bytes)} for prompts"
    )
    return [("hidden states", text)]


def description(deployment: DeploymentDescription) -> list[tuple[str, str]]:
    """Return names and values of a deployment, as `run.json` holds it."""
    drafter = deployment.drafter
    verifier = deployment.verifier
    server_drafter = deployment.colocated
    stages = f", {verifier.stages} pipeline stages" if verifier.stages > 1 else ""
    decision = seconds(deployment.predictor_s) if deployment.predictor_s else ""
    if decision and deployment.predictor_origin:
        decision += f" ({deployment.predictor_origin})"
    rows = [
        (code(deployment.name), deployment.description),
        ("drafter", f"{drafter.device}{_price(drafter)}, {PLACEMENTS[deployment.placement]}"),
        ("a draft forward", _latency("drafter", drafter)),
        ("a decision of the predictor", decision),
        (
            "a draft forward on the server",
            _latency("drafter", server_drafter) if server_drafter else "",
        ),
        ("verifier", f"{verifier.device}{_price(verifier)}{stages}"),
        ("a verification", _latency("verifier", verifier)),
        ("a hand-over between stages", _hand_over(verifier.hand_over)),
        ("link", _link(deployment.link)),
        ("source", deployment.source),
    ]
    return [(name, text) for name, text in rows if text]


SUMS = ("interactions", "context", "work", "served")
"""The forms of latency models whose terms add up, so that they can be told one by one."""


def _latency(role: str, endpoint: EndpointDescription) -> str:
    """Return an endpoint's latency model in words, with its origin."""
    model = endpoint.latency
    if model["form"] == "table":
        times = model["by_new_tokens_s"]
        text = f"{seconds(times[0])} for 1 new token"
        text += f" to {seconds(times[-1])} for {len(times)}" if len(times) > 1 else ""
    elif model["form"] in SUMS:
        terms = [
            f"{seconds(value)} per {UNITS[name]}"
            for name, value in model.items()
            if name in UNITS and value
        ]
        text = " + ".join(reversed(terms)) or "no time"
    else:
        text = typical_times(role, restore_latency(model))
    return f"{text} ({endpoint.origin})"


def _link(link: Link) -> str:
    """Return round trip, jitter, bandwidths and losses of a link in words."""
    parts = [f"{seconds(link.rtt_s)} round trip" if link.rtt_s else "no delay"]
    if link.jitter_s:
        parts.append(f"jitter of up to ±{seconds(link.jitter_s)} each way (seed {link.seed})")
    for way, rate in (("up", link.up_bytes_per_s), ("down", link.down_bytes_per_s)):
        parts.append(f"{significant(8 * rate / 1e6)} Mbit/s {way}" if rate else f"unlimited {way}")
    if link.draft_bytes:
        parts.append(f"{data(link.draft_bytes)} up with the id of each drafted token")
    if link.loss:
        parts.append(
            f"{share(link.loss)} of messages lost and sent again after {seconds(link.retry_s)}"
        )
    return ", ".join(parts)


def _hand_over(hand_over: HandOver) -> str:
    """Return what passing work from one pipeline stage to the next costs, or nothing if it takes no
    time.
    """
    bandwidth = hand_over.bytes_per_s
    terms = {
        "": hand_over.latency_s,
        " per token": hand_over.bytes_per_token / bandwidth if bandwidth else 0.0,
        " of pruning after every step": hand_over.prune_s,
        " of batching per step and further request": hand_over.batching_s,
    }
    text = " + ".join(f"{seconds(value)}{term}" for term, value in terms.items() if value)
    return f"{text}, {hand_over.per_pass} in a pass" if text else ""


def _price(endpoint: EndpointDescription) -> str:
    """Return the price per hour, or nothing if the endpoint has none."""
    return f" at ${endpoint.price_per_hour:g} per hour" if endpoint.price_per_hour else ""
