"""Which options of every method the tests over all methods try."""

import json
from pathlib import Path
from random import Random

from tiny_predictors import PAIR, confidence_predictor

from specbench_kit.decoding.drafting.base import Capability
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.ranks import RankTable, save

VARIANTS = {
    "adaedl": ["adaedl:threshold=0.2,step=0.2"],
    "specdecpp": [
        "specdecpp:predictor={predictor},threshold=0.9",
        "specdecpp:predictor={predictor},lag=1,min_draft=1",
    ],
    "batch-lengths": ["batch-lengths", "batch-lengths:lengths=2-3-0,sizes=1-3-5"],
    "banditspec": [
        "banditspec",
        "banditspec:algorithm=exp3,share=run,arms=svip+fixed-k.k=1..2+adaedl.max_draft=2,max_draft=3",
    ],
    "lookahead": ["lookahead:window=3,ngram=3,guesses=3", "lookahead:window=2,ngram=2,guesses=2"],
    "token-recycling": [
        "token-recycling:nodes=8,candidates=3",
        "token-recycling:nodes=4,depth=4,candidates=1",
    ],
    "delay-optimal": ["delay-optimal:k_max=4,forget=0.2"],
    "flexspec": ["flexspec:max_draft=4,budget_j=0.05,forget=0.2"],
    "measured-link": [
        "measured-link:max_draft=3,forget=0.2",
        "measured-link:max_draft=3,forget=0.2,link=false",
    ],
    "autodraft": [
        "autodraft:nodes=8,step=3,max_depth=4",
        "autodraft:nodes=6,step=2,max_depth=3,cost_weight=0",
    ],
    "adaptive-quantised": ["adaptive-quantised:max_draft=3,top=4,levels=5-20"],
    "reachable": ["reachable:predictor={predictor},max_draft=4"],
    "tail-pruning": ["tail-pruning:block=4,threshold=0.5,max_draft=5"],
    "goodput": ["goodput:interval=2,max_draft=3", "goodput:interval=2,max_draft=3,link=false"],
    "dsde": [
        "dsde:max_draft=4,calibration=2",
        "dsde:max_draft=5,min_draft=1,calibration=1,short=2,long=4,cap=false",
    ],
    "nightjar": ["nightjar:max_draft=3,bin=2"],
    "sglang-throughput": ["sglang-throughput:steps=2,max_draft=4,window=3,interval=2"],
    "svip": ["svip:threshold=0.6,max_draft=8"],
    "adaspec": [
        "adaspec",
        "adaspec:initial_confidence=1,elimination=false,max_draft=3",
        "adaspec:slo_tpot=0.03",
    ],
    "fixed-k": ["fixed-k", "fixed-k:k=1", "fixed-k:k=7", "fixed-k:k=3,proposal=top"],
    "oracle": ["oracle", "oracle:max_draft=3"],
    "block-verification": ["block-verification:k=3"],
    "sampled-tree": ["sampled-tree:branching=2-1-2", "sampled-tree:branching=3-2,replacement=true"],
    "specedge": [
        "specedge:budget=6,beams=3,branch=3,depth=3,proactive_depth=2",
        "specedge:budget=12,beams=4,branch=2",
        "specedge:tree=chain,depth=2,budget=4",
        "specedge:proactive=false,depth=2,budget=5",
        "specedge:depth=3,budget=8,proactive_depth=1,proactive_type=included",
    ],
    "specinfer": [
        "specinfer:branching=2-1-2",
        "specinfer:branching=1",
        "specinfer:branching=2-1-2,guesses=4",
    ],
    "rest": ["rest:corpus={corpus}", "rest:corpus={corpus},nodes=7,span=3"],
    "sparse-quantised": ["sparse-quantised:k=2,top=4,levels=5"],
    "specpipe": [
        "specpipe:stages=2,width=3,children=2,budget=request",
        "specpipe:stages=4,width=12,children=4,rows=20,prefill=first,chunk=16",
        "specpipe:stages=3,width=9,children=3,rows=12,share=greedy",
    ],
    "pipeline-ar": ["pipeline-ar:stages=3,chunk=16"],
    "pp-microbatch": ["pp-microbatch:stages=2"],
    "eagle2-tree": ["eagle2-tree", "eagle2-tree:cost=measured,total=12,depth=3,top_k=3"],
    "opt-tree": ["opt-tree:nodes=6,max_depth=3,gain=0.1"],
    "sequoia": ["sequoia:ranks={ranks},size=6,max_depth=4"],
    "decoupled": ["decoupled:k=3,in_flight=2", "decoupled:k=2"],
    "pearl": ["pearl:k=3", "pearl:k=2,pre_verify=false"],
    "ssd": ["ssd:k=3,guesses=2", "ssd:k=2,guesses=2,backup=none,allocation=geometric"],
    "server-tree": ["server-tree:depth=2,budget=6"],
    "threshold": [
        "threshold",
        "threshold:schedule=heuristic,max_draft=3",
        "threshold:schedule=heuristic-transient,max_draft=2",
        "threshold:adaptive=true,threshold=0.2",
        "threshold:unit=batch,threshold=0.6,max_draft=8",
        "threshold:unit=any,threshold=0.6,max_draft=8",
    ],
    "sglang-ema": ["sglang-ema:warmup=2,interval=1"],
    "tapout": ["tapout:arms=autoregressive+svip+fixed-k.k=2+threshold,max_draft=4"],
    "ucb-specstop": ["ucb-specstop:k_max=4,context=link"],
    "vllm-adaptive": [
        "vllm-adaptive:max_draft=3,refit_every=2,warmup_refits=1",
        "vllm-adaptive:max_draft=3,refit_every=2,warmup_refits=1,feature=margin",
        "vllm-adaptive:max_draft=3,refit_every=2,warmup_refits=1,budget=fresh,feature=drawn",
    ],
    "wisp": [
        "wisp:predictor={predictor}",
        "wisp:predictor={predictor},max_draft=3,operating_point=0.02,score=cumulative",
        "wisp:predictor={predictor},operating_point=0.02,score=cumulative,send_last=true",
    ],
}
"""Specs to try; a method that is not named here is tried as it comes. For places in braces see `filled_in`."""


def filled_in(folder: Path) -> dict[str, Path]:
    """Makes what the places in the specs stand for: `{predictor}`, `{ranks}` and `{corpus}`.

    The predictor expects acceptance where the draft model's best token has a probability of 0.15 or more.
    """
    shares = (0.5, 0.2, 0.1)
    table = RankTable(PAIR, 0.0, shares, (shares,), 100)
    corpus, random = folder / "corpus.jsonl", Random(4)
    texts = [random.choices(range(6), k=2000)]
    corpus.write_text("".join(f"{json.dumps({'output_ids': text})}\n" for text in texts))
    predictor = confidence_predictor(folder / "predictor", threshold=0.057)
    return {"corpus": corpus, "predictor": predictor, "ranks": save(table, folder)}


def kind_of(method: Method) -> tuple[object, ...]:
    """Return what decides by which code a method's tokens are drawn, judged and sent, whatever its policy decides."""
    grows, drafter = method.required_capability >= Capability.TREES, bool(method.drafting.models)
    reads = method.learned, method.needs_reference, method.verification, method.own_distributions
    return (
        method.proposal,
        method.overlaps,
        method.pipeline is not None,
        method.uses_drafter,
        grows,
        drafter,
        *reads,
    )


def one_of_each_kind() -> list[str]:
    """Return a spec of one method of every kind: the last one that is registered."""
    return list({kind_of(parse_method(spec)): spec for spec in specs()}.values())


def variants(name: str) -> list[str]:
    """The specs to try of one method."""
    return VARIANTS.get(name, [name])


def specs() -> list[str]:
    """Return the specs of every registered method."""
    return [spec for name in methods.all() for spec in variants(name)]
