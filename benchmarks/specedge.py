"""specedge on the pair: tokens per verification beside chains of equal depth, and speed beside its baselines."""

from collections.abc import Mapping, Sequence

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Setting
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.summary import summarise_run

DEPLOYMENT = "specedge"
DEPTHS = (4, 7)
PROACTIVE = "specedge"
BASELINES = ("specedge:proactive=false", "specedge:tree=chain", "server-tree", "layer-split", AUTOREGRESSIVE)


def run(setting: Setting) -> Outcome:
    """Modelled time; the speed-up is over plain decoding on the server."""
    chains = {depth: (f"specedge:depth={depth}", f"fixed-k:k={depth}") for depth in DEPTHS}
    specs = [spec for pair in chains.values() for spec in pair] + [PROACTIVE, *BASELINES]
    found = _decode(setting, specs)
    figures = [figure for depth, pair in chains.items() for figure in _per_verification(found, depth, *pair)]
    figures += [figure for spec in (PROACTIVE, *BASELINES) for figure in _speed(spec, found[spec], found)]
    for name, unit in (("alignment_rate", ""), ("proactive_hit_depth", "tokens")):
        figures.append(Figure(f"{PROACTIVE}: {name}", found[PROACTIVE][name], unit))
    return Outcome(f"specedge, time as in the deployment {DEPLOYMENT}", figures)


def _decode(setting: Setting, specs: Sequence[str]) -> dict[str, Metrics]:
    trees = max(getattr(parse_method(spec), "budget", 0) for spec in specs)
    runners = setting.runners(setting.executor_names[0], max_new_tokens=setting.max_new_tokens + 4 * trees)
    deployment = find(DEPLOYMENT).build()

    def decode(spec: str) -> list[RequestRecord]:
        return setting.decode(runners, spec, setting.requests, deployment=deployment)[0]

    return {spec: summarise_run(decode(spec), None, describe(deployment))["overall"] for spec in specs}


def _per_verification(found: Mapping[str, Metrics], depth: int, tree: str, chain: str) -> list[Figure]:
    tokens = {spec: found[spec]["acceptance_length"] for spec in (tree, chain)}
    return [
        Figure(f"depth {depth}: tokens per verification, fixed-k", tokens[chain], "tokens"),
        Figure(f"depth {depth}: tokens per verification, specedge", tokens[tree], "tokens", Bound(least=tokens[chain])),
    ]


def _speed(spec: str, overall: Metrics, found: Mapping[str, Metrics]) -> list[Figure]:
    return [
        Figure(f"{spec}: speed-up", overall["throughput"] / found[AUTOREGRESSIVE]["throughput"], "x"),
        Figure(f"{spec}: tokens per dollar", overall["cost_efficiency"] / 1000, "thousand"),
        Figure(f"{spec}: server idle", 100 * overall["server_idle_share"], "%"),
    ]
