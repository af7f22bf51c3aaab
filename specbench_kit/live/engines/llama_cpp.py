"""llama.cpp's server: one token asked for after every prefix of the draft; it cannot score a draft in one pass."""

from typing import Any

from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest, engines, unexpected_answer


@engines.register("llama-cpp")
class LlamaCpp(EngineAdapter):
    """llama.cpp's own route: one token after every prefix, greedy or by its own sampler."""

    def target_tokens(self, asked: ScoringRequest) -> list[int]:
        if asked.sampler.greedy:
            return self._tokens({"prompt": asked.prefixes, "temperature": 0.0})
        sampler = asked.sampler
        sampling = {"temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": sampler.top_k}
        return [
            self._tokens({"prompt": [prefix], "seed": seed, **sampling})[0]
            for prefix, seed in zip(asked.prefixes, asked.seeds, strict=True)
        ]

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        more = {"n_predict": 1, "return_tokens": True, "cache_prompt": True, "ignore_eos": False}
        found = self.post("/completion", {**body, **more})
        try:
            answers = found if isinstance(found, list) else [found]
            return [int(one["tokens"][0]) for one in sorted(answers, key=lambda one: int(one["index"]))]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise unexpected_answer(self._base, repr(error)) from error

    def model(self) -> tuple[str, int | None]:
        name, _ = super().model()
        return name, int(self.get("/props")["default_generation_settings"]["n_ctx"])

    def tokenize(self, text: str) -> list[int] | None:
        return list(self.post("/tokenize", {"content": text})["tokens"])
