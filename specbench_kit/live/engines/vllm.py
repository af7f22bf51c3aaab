"""The adapter to vLLM, which scores the whole text in one request."""

from collections.abc import Iterator
from functools import cached_property

from specbench_kit.live.engines.base import WRONG_ANSWER, EngineAdapter, ScoringRequest, best_token, engines
from specbench_kit.live.engines.completions import PATH, generation_body, new_tokens
from specbench_kit.live.engines.generation import GenerationRequest


@engines.register("vllm")
class Vllm(EngineAdapter):
    """Greedy drafts in one request, by `prompt_logprobs`, for which vLLM computes the whole text every time.

    It needs the token-in, token-out route, which `vllm serve --enable-scale-out` opens. vLLM does not use its prefix
    cache for scored prompts.
    """

    supports_sampling = False

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        count = len(request.chain)
        sampling: dict[str, object] = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
        if count:
            sampling["prompt_logprobs"] = 1
        body = {"token_ids": [*request.text, *request.chain], "sampling_params": sampling, "stream": False}
        answer = self.post("/inference/v1/generate", body)
        try:
            rows = answer["prompt_logprobs"][-count:] if count else []
            return [*map(best_token, rows), int(answer["choices"][0]["token_ids"][0])]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        """Yield the tokens of a streamed completion, which is what clients of vLLM ask for."""
        for event in self.stream(PATH, generation_body(self._model, request)):
            try:
                tokens = new_tokens(event)
            except WRONG_ANSWER as error:
                raise self.unexpected_answer(f"its stream must hold token ids ({error!r})") from error
            if tokens:
                yield tokens

    @cached_property
    def _model(self) -> str:
        return self.model()[0]

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])
