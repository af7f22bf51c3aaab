"""Measure how often the target's token is the draft model's first, second, ... choice over the
target's own answers.
"""

from collections.abc import Sequence

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.ranks import DIGITS, RankTable, count_ranks
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.answering import answer_dataset
from specbench_kit.studies.conversations import max_conversation_tokens
from specbench_kit.studies.recording.settings import RecordingSettings

DEPTHS = 8
"""Consecutive tokens of rank 1 after which the shares are counted separately."""


def measure(
    settings: RecordingSettings, dataset: LoadedDataset, report: CountCallback
) -> RankTable:
    """Let the target answer a dataset and return the shares of its tokens' ranks in the draft
    model's distribution.

    Every token is ranked after the target's own text, so that no rejection hides later tokens.
    `report` is called after each request.
    """
    pair = load_pair(
        settings.target,
        settings.draft,
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
    )
    longest = max(
        max_conversation_tokens(prompt, pair.tokenizer, settings.max_new_tokens)
        for prompt in dataset.prompts
    )
    target, draft = pair.runners(settings.batch_size, longest)
    ranks: list[list[int]] = []
    planned = sum(len(prompt.turns) for prompt in dataset.prompts)
    done = 0

    def rank(answered: RequestRecord) -> None:
        nonlocal done
        done += 1
        if answered.finish_reason != "error":
            ranks.append(ranks_of(draft, answered.prompt_ids, answered.output_ids))
        report(done, planned)

    sampler = Sampler(settings.temperature)
    answer_dataset(dataset, target, pair, settings, sampler, rank)
    if not ranks:
        raise SkitError(f"no prompt of {dataset.name} fits the context: choose another dataset")
    shares, by_depth = count_ranks(ranks, DEPTHS)
    models = pair.describe(provenance.hash_model)
    return RankTable(
        PairHashes(str(models["target"].hash), str(models["draft"].hash)),
        settings.temperature,
        _rounded(shares),
        tuple(map(_rounded, by_depth)),
        sum(map(len, ranks)),
        stated(
            {"dataset": dataset.describe(), "models": models, "versions": provenance.versions()}
        ),
    )


def _rounded(shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(share, DIGITS) for share in shares)


@torch.inference_mode()
def ranks_of(draft: Runner, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[int]:
    """Return, for each output token, the number of tokens to which the draft model gives a higher
    probability.
    """
    slot = draft.acquire()
    tokens = [*prompt_ids, *output_ids[:-1]]
    logits = draft.forward([Append(slot, tokens, keep=len(output_ids))]).logits
    targets = torch.tensor(output_ids, device=logits.device)[:, None]
    ranks: list[int] = (logits > logits.gather(1, targets)).sum(1).tolist()
    draft.release(slot)
    return ranks
