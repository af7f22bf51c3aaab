"""What a run as a whole brings and costs: tokens per second of its makespan, money, idle devices, headroom."""

from collections.abc import Sequence

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.paired import request_seconds
from specbench_kit.metrics.rounds import Metrics, RequestGroup, RoundColumns
from specbench_kit.metrics.statistics import ratio_of_sums


def makespan_s(records: Sequence[RequestRecord]) -> float:
    """When the last request of a run finished."""
    return max((record.finished_s or 0.0 for record in records), default=0.0)


def per_makespan(group: RequestGroup, makespan_s: float | None, slo_tpot_s: float | None = None) -> Metrics:
    """Throughput in tokens per second; with an SLO, goodput: tokens of the requests whose tpot meets it."""
    metrics: Metrics = {"makespan_s": makespan_s, "throughput": _per_second(group.rounds.sum("committed"), makespan_s)}
    if slo_tpot_s is not None:
        met = RoundColumns([r for r in group.finished if r.tpot_s is None or r.tpot_s <= slo_tpot_s])
        metrics |= {"goodput": _per_second(met.sum("committed"), makespan_s), "slo_tpot_s": slo_tpot_s}
    return metrics


def _per_second(tokens: float, seconds: float | None) -> float | None:
    return ratio_of_sums(tokens, seconds or 0.0)


def device_cost(deployment: Metrics, records: Sequence[RequestRecord]) -> float | None:
    """What a run costs by the prices per hour in `run.json`: the verifier all along, a drafter while it works."""
    server, edge = (deployment[role]["price_per_hour"] for role in ("verifier", "drafter"))
    if not server and not edge:
        return None
    rounds = RequestGroup(records).rounds
    busy_s = sum(rounds.sum(f"{phase}_s") for phase in ("prefill", "draft", "policy"))
    return float(server * makespan_s(records) + edge * busy_s) / 3600


def idle_shares(deployment: Metrics, records: Sequence[RequestRecord]) -> Metrics:
    """Of the verifier over the run, and of the requests' own drafting devices, where they draft, over the requests."""
    rounds = RequestGroup(records).rounds
    edge_s = sum(rounds.sum(f"{phase}_s") for phase in ("prefill", "draft", "policy"))
    busy = {"server_idle_share": ratio_of_sums(rounds.sum("verify_s"), makespan_s(records))}
    if deployment["placement"] == "edge" and edge_s:
        busy["edge_idle_share"] = ratio_of_sums(edge_s, sum(request_seconds(records).values()))
    return {name: max(0.0, 1 - share) for name, share in busy.items() if share is not None}


def headroom(method: float | None, autoregressive: float | None, oracle: float) -> float | None:
    """Share of the throughput gap between autoregressive and oracle that the method closes."""
    if method is None or autoregressive is None or oracle <= autoregressive:
        return None
    return (method - autoregressive) / (oracle - autoregressive)
