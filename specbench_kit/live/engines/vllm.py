"""vLLM: one request that scores the whole draft."""

from typing import Any

from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest, best_token, engines, unexpected_answer


@engines.register("vllm")
class Vllm(EngineAdapter):
    """A greedy draft in one request, by `prompt_logprobs`: the context is computed anew every time.

    By its token-in, token-out route, which `vllm serve --enable-scale-out` opens. Its prefix cache stays out of this,
    as it does by itself where prompts are scored.
    """

    supports_sampling = False

    def target_tokens(self, asked: ScoringRequest) -> list[int]:
        count = len(asked.chain)
        sampling: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
        if count:
            sampling["prompt_logprobs"] = 1
        body = {"token_ids": [*asked.text, *asked.chain], "sampling_params": sampling, "stream": False}
        found = self.post("/inference/v1/generate", body)
        try:
            rows = found["prompt_logprobs"][-count:] if count else []
            answers = [*map(best_token, rows), int(found["choices"][0]["token_ids"][0])]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise unexpected_answer(self._base, repr(error)) from error
        return answers

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])
