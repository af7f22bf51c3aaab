"""Ranks of a synthetic pair that bring as many tokens per verification as were published, or as a run had."""

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Deployment
from specbench_kit.studies.synthetic.prompts import SyntheticPrompts

TAIL = (0.3, 0.12)
"""Of what the first rank leaves, the shares of the second and the third (ours)."""
LEAST, MOST, STEPS = 0.25, 0.98, 7


def draft_of(first: float, others: str = "") -> str:
    """The pair whose likeliest token is right with that chance; `others` are further options."""
    ranks = "+".join(f"{rank:.4f}" for rank in (first, *((1 - first) * share for share in TAIL)))
    return ",".join(filter(None, (f"ranks={ranks}", others)))


def fit(prompts: SyntheticPrompts, spec: str, deployment: Deployment, tokens: float, others: str = "") -> str:
    """The `draft` with which a method commits so many tokens a verification, by halving the range of the first rank."""
    low, high = LEAST, MOST
    for _ in range(STEPS):
        middle = (low + high) / 2
        records = prompts.decode(spec, deployment, draft_of(middle, others))
        rounds = [one for record in records for one in record.rounds[:-1]]
        found = sum(one.committed for one in rounds) / len(rounds)
        low, high = (middle, high) if found < tokens else (low, middle)
    if high == MOST or low == LEAST:
        raise SkitError(f"no synthetic pair brings {tokens:g} tokens a verification with {spec}: draft longer or less")
    return draft_of((low + high) / 2, others)
