"""Metrics of a run as a whole: throughput over its makespan, money, idle devices, headroom."""

from specbench_kit.metrics.paired import request_seconds
from specbench_kit.metrics.rounds import Metrics, RequestGroup, RoundColumns
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.runs.deployment import DeploymentDescription

DRAFTING_PHASES = ("prefill", "draft", "policy")


def per_makespan(
    group: RequestGroup, makespan_s: float | None, slo_tpot_s: float | None = None
) -> Metrics:
    """Return throughput in tokens per second and, with an SLO, goodput: tokens of the requests
    whose TPOT meets it.
    """
    throughput = ratio_of_sums(group.rounds.sum("joined"), makespan_s or 0.0)
    metrics: Metrics = {"makespan_s": makespan_s, "throughput": throughput}
    if slo_tpot_s is not None:
        met = RoundColumns(
            [r for r in group.finished if r.tpot_s is None or r.tpot_s <= slo_tpot_s]
        )
        metrics |= {
            "goodput": ratio_of_sums(met.sum("joined"), makespan_s or 0.0),
            "slo_tpot_s": slo_tpot_s,
        }
    return metrics


def device_cost(
    deployment: DeploymentDescription, group: RequestGroup, makespan_s: float
) -> float | None:
    """Return the dollars of a run by the prices per hour in its `run.json`; None if the deployment
    has no prices.

    The verifier is paid for the makespan, a drafter for the time in which it works.
    """
    server = deployment.verifier.price_per_hour
    edge = deployment.drafter.price_per_hour
    if not server and not edge:
        return None
    return float(server * makespan_s + edge * _drafting_s(group)) / 3600


def _drafting_s(group: RequestGroup) -> float:
    return sum(group.rounds.sum(f"{phase}_s") for phase in DRAFTING_PHASES)


def idle_shares(
    deployment: DeploymentDescription, group: RequestGroup, makespan_s: float | None
) -> Metrics:
    """Return the idle share of the verifier over the run and, of drafting devices at the edge, over
    their requests.

    That of the verifier is left out without a makespan.
    """
    edge_s = _drafting_s(group)
    busy = {"server_idle_share": ratio_of_sums(group.rounds.sum("verify_s"), makespan_s or 0.0)}
    if deployment.placement == "edge" and edge_s:
        busy["edge_idle_share"] = ratio_of_sums(
            edge_s, sum(request_seconds(group.records).values())
        )
    return {name: max(0.0, 1 - share) for name, share in busy.items() if share is not None}


def headroom(method: float | None, autoregressive: float | None, oracle: float) -> float | None:
    """Return the share of the throughput gap between autoregressive and oracle that the method
    closes.

    None where there is no gap, and for a method that is faster than the oracle, which then does not
    bound it.
    """
    if method is None or autoregressive is None or not autoregressive < oracle >= method:
        return None
    return (method - autoregressive) / (oracle - autoregressive)
