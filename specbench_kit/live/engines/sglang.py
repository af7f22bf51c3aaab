"""The adapter to SGLang, which scores the draft alone in one request."""

from collections.abc import Iterator, Sequence

from specbench_kit.live.engines.base import WRONG_ANSWER, EngineAdapter, GenerationRequest, ScoringRequest, engines

LIKELIEST = 20
"""Tokens whose log-probabilities are asked for at a divergence."""


@engines.register("sglang")
class Sglang(EngineAdapter):
    """Greedy drafts in one request, scored from the last committed token on; its prefix cache holds the text.

    The adapter was never run against a real SGLang: it follows the documented form of requests and answers. It cannot
    verify sampled drafts, does not compare the tokenizers of target and draft model, and does not ask for the context
    length.
    """

    supports_sampling = False
    has_shapes = True

    def target_tokens(self, request: ScoringRequest) -> list[int]:
        count = len(request.chain)
        body = {
            "input_ids": [*request.text, *request.chain],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": len(request.text) - 1,
            "top_logprobs_num": 1,
        }
        answer = self.post("/generate", body)
        try:
            info = answer["meta_info"]
            rows = info["input_top_logprobs"][-count:] if count else []
            # Rows hold [log-probability, token id, text]. Newer versions return the generated token separately.
            last = [[0.0, answer["output_ids"][0]]] if "output_ids" in answer else info["output_top_logprobs"][0]
            return [int(row[0][1]) for row in [*rows, last]]
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error

    def generate(self, request: GenerationRequest) -> Iterator[list[int]]:
        body = {
            "input_ids": list(request.text),
            "sampling_params": {"max_new_tokens": request.max_tokens, "temperature": 0.0, "ignore_eos": True},
            "stream": True,
        }
        count = 0
        for event in self.stream("/generate", body):
            try:
                tokens = [int(token) for token in event["output_ids"]]
                total = int(event["meta_info"]["completion_tokens"])
            except WRONG_ANSWER as error:
                raise self.unexpected_answer(repr(error)) from error
            # An event holds all tokens so far, or the new ones alone if the server was started so.
            new = tokens[count:] if len(tokens) == total else tokens
            count = total
            if new:
                yield new

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        """Ask for the likeliest next tokens, and score each other one as the last token of a prompt.

        SGLang computes anew what is to be scored, hence the whole text if its first token is.
        """
        body = {
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0 if fresh else len(text) - 1,
            "top_logprobs_num": LIKELIEST,
        }
        answer = self.post("/generate", {**body, "input_ids": list(text)})
        try:
            values = {int(row[1]): float(row[0]) for row in answer["meta_info"]["output_top_logprobs"][0]}
            for token in set(tokens) - values.keys():
                answer = self.post("/generate", {**body, "input_ids": [*text, token]})
                value, scored = answer["meta_info"]["input_token_logprobs"][-1][:2]
                if int(scored) != token:
                    raise ValueError(f"a log-probability of token {scored} in place of {token}")
                values[token] = float(value)
        except WRONG_ANSWER as error:
            raise self.unexpected_answer(repr(error)) from error
        return values

    def model(self) -> tuple[str, int | None]:
        return str(self.get("/get_model_info")["model_path"]), None
