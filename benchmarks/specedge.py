"""Compare specedge with chains of equal depth in acceptance length, and with its baselines in speed."""

from collections.abc import Mapping, Sequence

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Setting
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.description import described
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.metrics.summary import summarise_run

DEPLOYMENT = "specedge"
DEPTHS = (4, 7)
PROACTIVE = "specedge"
BASELINES = (
    "specedge:proactive=false",
    "specedge:tree=chain",
    "server-tree",
    "layer-split",
    AUTOREGRESSIVE,
)


def run(setting: Setting) -> Outcome:
    """Decode in modelled time; the speedup is over plain decoding on the server."""
    chains = {depth: (f"specedge:depth={depth}", f"fixed-k:k={depth}") for depth in DEPTHS}
    specs = [spec for pair in chains.values() for spec in pair] + [PROACTIVE, *BASELINES]
    metrics = _decode(setting, specs)
    figures = [
        figure for depth, pair in chains.items() for figure in _acceptance(metrics, depth, *pair)
    ]
    figures += [
        figure
        for spec in (PROACTIVE, *BASELINES)
        for figure in _speed(spec, metrics[spec], metrics)
    ]
    for name, unit in (("alignment_rate", ""), ("proactive_hit_depth", "tokens")):
        figures.append(Figure(f"{PROACTIVE}: {name}", metrics[PROACTIVE][name], unit))
    return Outcome(f"specedge, time as in the deployment {DEPLOYMENT}", figures)


def _decode(setting: Setting, specs: Sequence[str]) -> dict[str, Metrics]:
    trees = max(getattr(parse_method(spec), "budget", 0) for spec in specs)
    runners = setting.runners(
        setting.executor_names[0], max_new_tokens=setting.max_new_tokens + 4 * trees
    )
    deployment = find(DEPLOYMENT).build()

    def decode(spec: str) -> list[RequestRecord]:
        return setting.decode(runners, spec, setting.requests, deployment=deployment)[0]

    return {
        spec: summarise_run(RequestGroup(decode(spec)), None, described(deployment))["overall"]
        for spec in specs
    }


def _acceptance(metrics: Mapping[str, Metrics], depth: int, tree: str, chain: str) -> list[Figure]:
    tokens = {spec: metrics[spec]["acceptance_length"] for spec in (tree, chain)}
    return [
        Figure(f"depth {depth}: acceptance length, fixed-k", tokens[chain], "tokens"),
        Figure(
            f"depth {depth}: acceptance length, specedge",
            tokens[tree],
            "tokens",
            Bound(least=tokens[chain]),
        ),
    ]


def _speed(spec: str, overall: Metrics, metrics: Mapping[str, Metrics]) -> list[Figure]:
    return [
        Figure(
            f"{spec}: speedup", overall["throughput"] / metrics[AUTOREGRESSIVE]["throughput"], "x"
        ),
        Figure(f"{spec}: tokens per dollar", overall["cost_efficiency"] / 1000, "thousand"),
        Figure(f"{spec}: server idle", 100 * overall["server_idle_share"], "%"),
    ]
