"""SGLang: one request that scores the draft alone."""

from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest, engines, unexpected_answer


@engines.register("sglang")
class Sglang(EngineAdapter):
    """A greedy draft in one request, by scores from the last committed token on; its prefix cache serves the rest."""

    supports_sampling = False

    def target_tokens(self, asked: ScoringRequest) -> list[int]:
        count = len(asked.chain)
        body = {
            "input_ids": [*asked.text, *asked.chain],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": len(asked.text) - 1,
            "top_logprobs_num": 1,
        }
        found = self.post("/generate", body)
        try:
            told = found["meta_info"]
            rows = told["input_top_logprobs"][-count:] if count else []
            last = told["output_top_logprobs"][0] if "output_ids" not in found else [[0.0, found["output_ids"][0]]]
            answers = [int(row[0][1]) for row in [*rows, last]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise unexpected_answer(self._base, repr(error)) from error
        return answers

    def model(self) -> tuple[str, int | None]:
        found = self.get("/get_model_info")
        return str(found["model_path"]), None
