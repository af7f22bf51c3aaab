"""The acceptance that a finished draft reaches in real decoding of prompts that it was not trained
on.
"""

from collections.abc import Sequence
from typing import TypedDict

from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method
from specbench_kit.models.pair import Pair
from specbench_kit.studies.conversations import Conversation
from specbench_kit.studies.training.distillation.batches import RoundAcceptance, is_held_out

MOST_PROMPTS = 24
ANSWER_TOKENS = 96


class LiveResult(TypedDict):
    """What a draft reached live; `acceptance` is by position, `speedup` over plain decoding in time
    per token.
    """

    prompts: int
    acceptance_length: float
    acceptance: list[float]
    speedup: float


def evaluate_live(
    pair: Pair, method: Method, length: int, prompts: Sequence[Prompt], until_s: float | None
) -> LiveResult | None:
    """Decode held-out prompts one by one, plainly and with the draft, until the monotonic clock
    shows `until_s`.

    Return None if no round of full length was decoded.
    """
    held_out = [prompt for index, prompt in enumerate(prompts) if is_held_out(index)] or list(
        prompts[-1:]
    )
    conversations = [
        Conversation(prompt, pair.tokenizer, ANSWER_TOKENS) for prompt in held_out[:MOST_PROMPTS]
    ]
    requests = [
        request
        for conversation in conversations
        if (request := conversation.next_request()) is not None
    ]
    longest = max(len(request.prompt_ids) for request in requests) + ANSWER_TOKENS
    runners = pair.all_runners(1, min(longest, pair.target.context))
    target = runners.pop("target")
    draft = runners.pop("draft", None)

    def decode(chosen: Method, number: int) -> RequestRecord | None:
        uses_models = chosen is method
        loop = local_loop(
            chosen,
            target,
            draft if uses_models else None,
            setup=DecodingSetup(eos_ids=pair.eos_ids),
            others=runners if uses_models else {},
        )
        loop.submit(requests[number])
        finished: list[RequestRecord] = []
        while not loop.idle:
            finished += loop.step()
        return finished[0] if finished and finished[0].error is None else None

    counts = list[int]()
    plain_s = 0.0
    drafted_s = 0.0
    done = 0
    for number in range(len(requests)):
        if until_s is not None and monotonic_s() > until_s and done:
            break
        plain = decode(Autoregressive(), number)
        drafted = decode(method, number)
        if plain is None or drafted is None:
            continue
        # Rounds that the end of the output cut short say nothing about the draft.
        counts += [record.accepted for record in drafted.rounds if record.submitted == length]
        # Per token, since where rounding depends on the batch the two answers may differ in length.
        plain_s += (plain.e2e_s or 0.0) / max(1, len(plain.output_ids))
        drafted_s += (drafted.e2e_s or 0.0) / max(1, len(drafted.output_ids))
        done += 1
    if not counts or not drafted_s:
        return None
    acceptance = RoundAcceptance.of(counts, length)
    return {
        "prompts": done,
        "acceptance_length": round(acceptance.length, 4),
        "acceptance": [round(rate, 4) for rate in acceptance.by_position],
        "speedup": round(plain_s / drafted_s, 4),
    }
