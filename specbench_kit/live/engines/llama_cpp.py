"""The adapter to llama.cpp's server, which cannot score a draft in one pass."""

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.engines.base import WRONG_ANSWER, EngineAdapter, ScoringRequest, engines


@engines.register("llama-cpp")
class LlamaCpp(EngineAdapter):
    """llama.cpp's own route: one token after every prefix, greedy or by its own sampler."""

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        sampler = request.sampler
        if sampler.greedy:
            return self._complete(request.prefixes, {"temperature": 0.0})
        sampling = {"temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": sampler.top_k}
        return [
            self._complete([prefix], {"seed": seed, **sampling})[0]
            for prefix, seed in zip(request.prefixes, request.seeds, strict=True)
        ]

    def _complete(self, prompts: list[list[int]], sampling: JsonObject) -> list[int]:
        """Return the next token of every prompt."""
        body = {"prompt": prompts, "n_predict": 1, "return_tokens": True, "cache_prompt": True, "ignore_eos": False}
        answer = self.post("/completion", {**body, **sampling})
        try:
            rows = answer if isinstance(answer, list) else [answer]  # one prompt is answered without a list
            return [int(row["tokens"][0]) for row in sorted(rows, key=lambda row: int(row["index"]))]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error

    def model(self) -> tuple[str, int | None]:
        name, _ = super().model()
        return name, int(self.get("/props")["default_generation_settings"]["n_ctx"])

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"content": text})["tokens"])
