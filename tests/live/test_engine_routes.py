"""vLLM is asked by the faster of two routes, and never for more than it has."""

from typing import Any

import engine_server as stand_in
import pytest
from engine_server import engine_server
from live_server import TARGET
from tiny_models import GREEDY, plain_logits

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines import vllm
from specbench_kit.live.engines.base import ScoringRequest
from specbench_kit.live.engines.vllm import BY_PREFIXES, FROM_CACHE, WHOLE, Vllm

TEXT, CHAIN = [3, 1, 4, 1, 5, 9, 2, 6], [2, 7]
REQUEST = ScoringRequest(TEXT, CHAIN, GREEDY, [0] * 3)


def expected() -> list[int]:
    """The target's tokens after the text and after each token of the chain."""
    best: list[int] = plain_logits(TARGET, [*TEXT, *CHAIN]).argmax(-1).tolist()
    return best[len(TEXT) - 1 :]


class Recorder(Vllm):
    """Notes which paths were asked."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.asked: list[str] = []

    def post(self, path: str, body: Any) -> Any:
        self.asked.append(path)
        return super().post(path, body)


def seconds(monkeypatch: pytest.MonkeyPatch, by_prefixes_s: float, scoring_s: float) -> None:
    """Let the two routes take these times, in the order in which they are tried."""
    times = iter((by_prefixes_s, scoring_s))

    def take(ask: Any) -> float:
        ask()
        return next(times)

    monkeypatch.setattr(vllm, "_fastest_s", take)


def test_long_texts_go_the_cached_route_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds(monkeypatch, 0.1, 1.0)
    with engine_server() as base:
        adapter = Recorder(base)
        route = adapter.verification_route()
        assert (
            route == f"{BY_PREFIXES}; texts of up to 8 tokens {WHOLE}, which is faster there"
        )  # a tenth of 80
        adapter.asked.clear()
        assert adapter.target_tokens(REQUEST) == expected()
        longer = REQUEST._replace(text=[7, *TEXT])
        adapter.target_tokens(longer)
    assert adapter.asked == ["/inference/v1/generate", "/v1/completions"]


def test_all_texts_are_scored_where_the_cache_gains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds(monkeypatch, 1.0, 1.0)
    with engine_server() as base:
        adapter = Recorder(base)
        assert adapter.verification_route() == WHOLE
        adapter.asked.clear()
        adapter.target_tokens(REQUEST._replace(text=TEXT * 10))
    assert adapter.asked == ["/inference/v1/generate"]


def test_a_closed_scoring_route_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(stand_in.ROUTES, "/inference/v1/generate")
    with engine_server() as base:
        adapter = Recorder(base)
        assert adapter.verification_route() == (
            f"{BY_PREFIXES}; vllm serve --enable-scale-out would let it score short ones in one request"
        )
        assert adapter.target_tokens(REQUEST) == expected()


def test_a_server_that_goes_away_is_no_reason_for_another_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine_server() as base:
        adapter = Vllm(base)
    monkeypatch.setattr(adapter, "model", lambda: ("tiny", 160))
    with pytest.raises(SkitError, match="gave no answer"):
        adapter.verification_route()


@pytest.mark.parametrize("cached", [0, 5, len(TEXT) - 1])
def test_the_newer_runner_scores_from_behind_its_prefix_cache(
    monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    monkeypatch.setattr(stand_in, "V2_RUNNER", {"cached": cached, "begun": 0})
    with engine_server() as base:
        adapter = Recorder(base)
        assert adapter.verification_route() == FROM_CACHE
        adapter.asked.clear()
        assert adapter.target_tokens(REQUEST) == expected()
        assert adapter.asked == ["/inference/v1/generate"]
        assert stand_in.V2_RUNNER["begun"] == 1


def test_a_draft_that_the_cache_holds_is_scored_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was made before: rows of cached tokens are not computed, and so not returned."""
    monkeypatch.setattr(stand_in, "V2_RUNNER", {"cached": len(TEXT), "begun": 0})
    with engine_server() as base:
        adapter = Recorder(base)
        adapter.verification_route()
        adapter.asked.clear()
        assert adapter.target_tokens(REQUEST) == expected()
    assert adapter.asked == ["/inference/v1/generate"] * 2


def test_sampled_tokens_come_from_the_servers_own_sampler() -> None:
    sampled = REQUEST._replace(sampler=Sampler(0.8, top_k=20), seeds=[7, 8, 9])
    with engine_server() as base:
        adapter = Recorder(base)
        tokens = adapter.target_tokens(sampled)
        assert tokens[:1] == adapter.target_tokens(sampled._replace(chain=[], seeds=[7]))
    assert set(adapter.asked) == {"/v1/completions"}


def test_an_answer_without_scores_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_scores(body: stand_in.Body) -> stand_in.Body:
        return {**(stand_in.vllm(body) or {}), "prompt_logprobs": None}

    monkeypatch.setitem(stand_in.ROUTES, "/inference/v1/generate", without_scores)
    with engine_server() as base, pytest.raises(SkitError, match="did not score the whole draft"):
        Vllm(base).target_tokens(REQUEST)
