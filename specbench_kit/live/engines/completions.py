"""Any server with OpenAI's completions that tells token ids: one token asked for after every prefix of the draft."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest, engines, unexpected_answer


@engines.register("completions")
class Completions(EngineAdapter):
    """OpenAI's completions with token ids: one token after every prefix, greedy or by the server's own sampler.

    Greedy ones go as one batch; sampled ones each with the seed of its place in the output.
    """

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._at_once = ThreadPoolExecutor(16, "completions")

    def target_tokens(self, asked: ScoringRequest) -> list[int]:
        if asked.sampler.greedy:
            return self._tokens({"prompt": asked.prefixes, "temperature": 0.0})
        sampler = asked.sampler
        sampling = {"temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": sampler.top_k or -1}
        bodies = [
            {"prompt": [prefix], "seed": seed, **sampling}
            for prefix, seed in zip(asked.prefixes, asked.seeds, strict=True)
        ]
        return [token for (token,) in self._at_once.map(self._tokens, bodies)]

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        more = {"max_tokens": 1, "ignore_eos": True, "return_token_ids": True, "model": self._model}
        found = self.post("/v1/completions", {**body, **more})
        try:
            choices = sorted(found["choices"], key=lambda choice: int(choice["index"]))
            tokens = [int(choice["token_ids"][0]) for choice in choices]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise unexpected_answer(self._base, f"it has to tell token ids ({error!r})") from error
        if len(tokens) != len(body["prompt"]):
            raise unexpected_answer(self._base, f"{len(tokens)} answers to {len(body['prompt'])} prompts")
        return tokens

    @property
    def _model(self) -> str:
        if not hasattr(self, "_name"):
            self._name = self.model()[0]
        return self._name
