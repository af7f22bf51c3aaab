"""Measure a pair's rank-wise acceptance over the target's own answers."""

from collections.abc import Sequence

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.ranks import RankTable, count_ranks
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.conversations import Conversation, ConversationScript, most_tokens
from specbench_kit.studies.bench.lanes import MethodLane
from specbench_kit.studies.bench.settings import BenchSettings

DEPTHS = 8
"""Tokens of rank 1 in a row after which shares are counted apart."""


def measure(settings: BenchSettings, dataset: LoadedDataset, report: CountCallback) -> RankTable:
    """Let the target answer a dataset and rank each of its tokens by what the draft model says there.

    Every token is judged after the target's own text, so nothing is censored. `report(done, planned)` is called after
    each request.
    """
    pair = load_pair(settings.target, settings.draft, device=settings.device, dtype=settings.dtype)
    longest = max(most_tokens(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts)
    target, draft = pair.runners(settings.batch_size, longest)
    found: list[list[int]] = []
    planned = sum(len(prompt.turns) for prompt in dataset.prompts)
    asked = 0

    def take(answered: RequestRecord) -> None:
        nonlocal asked
        asked += 1
        if answered.finish_reason != "error":
            found.append(ranks_of(draft, answered.prompt_ids, answered.output_ids))
        report(asked, planned)

    lane = MethodLane(
        name="ranks",
        engine=live_engine(
            Autoregressive(),
            target,
            sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
            seed=settings.seed,
            eos_ids=pair.eos_ids,
            batch_size=settings.batch_size,
        ),
        script=ConversationScript(
            [Conversation(one, pair.tokenizer, settings.max_new_tokens) for one in dataset.prompts], {}
        ),
        decode=lambda ids: str(pair.tokenizer.decode(ids, skip_special_tokens=True)),
        sinks=[take],
    )
    while not lane.done:
        for _ in lane.turn(settings.batch_size):
            pass
    if not found:
        raise SkitError(f"no prompt of {dataset.name} fits the context: choose another dataset")
    shares, by_depth = count_ranks(found, DEPTHS)
    models = pair.describe(provenance.hash_model)
    return RankTable(
        PairHashes(models["target"]["hash"], models["draft"]["hash"]),
        settings.temperature,
        _rounded(shares),
        tuple(map(_rounded, by_depth)),
        sum(map(len, found)),
        {"dataset": dataset.describe(), "models": models, "versions": provenance.versions()},
    )


def _rounded(shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(share, 6) for share in shares)


@torch.inference_mode()
def ranks_of(draft: Runner, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[int]:
    """Of each output token the number of tokens that the draft model finds likelier there."""
    slot, tokens = draft.acquire(), [*prompt_ids, *output_ids[:-1]]
    logits = draft.forward([Append(slot, tokens, keep=len(output_ids))]).logits
    said = torch.tensor(output_ids, device=logits.device)[:, None]
    ranks: list[int] = (logits > logits.gather(1, said)).sum(1).tolist()
    draft.release(slot)
    return ranks
