"""llama.cpp's server samples as the kit's sampler says, and a server that does not is refused."""

import engine_server as stand_in
import pytest
from engine_server import engine_server
from tiny_models import GREEDY

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.base import ScoringRequest
from specbench_kit.live.engines.llama_cpp import LlamaCpp, differences, sampling_fields

TEXT = [3, 1, 4, 1, 5]
SAMPLED = Sampler(0.8, top_p=0.9, top_k=20)


def used(sampler: Sampler) -> stand_in.Body:
    """Return the settings that the server says it sampled with, where it is asked for a sampler."""
    body = {"prompt": [TEXT], "seed": 7, **sampling_fields(sampler)}
    answer = stand_in.llama_cpp(body)
    assert isinstance(answer, dict)
    settings: stand_in.Body = answer["generation_settings"]
    return settings


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED, Sampler(1.0)])
def test_no_default_of_the_server_is_left_in_force(sampler: Sampler) -> None:
    defaults, settings = stand_in.LLAMA_CPP_DEFAULTS, used(sampler)
    assert {name for name in defaults if name not in sampling_fields(sampler)} == {"seed"}
    assert settings["samplers"] == [
        "top_k",
        "temperature",
        "top_p",
    ]  # the order of the kit's own sampler
    assert (settings["min_p"], settings["repeat_last_n"]) == (0.0, 0)
    assert differences(sampling_fields(sampler), settings) == []


def test_numbers_of_the_server_are_float32() -> None:
    assert (
        differences({"temperature": 0.8}, {**used(GREEDY), "temperature": 0.800000011920929}) == []
    )


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("grammar", 'root ::= "a"', "another distribution than it was asked for: grammar 'root"),
        ("logit_bias", [{"bias": 5.0, "token": 3}], None),
    ],
)
def test_a_server_with_settings_of_its_own_is_refused_before_work_begins(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: object, message: str | None
) -> None:
    monkeypatch.setitem(stand_in.LLAMA_CPP_DEFAULTS, setting, value)
    with engine_server() as base:
        adapter = LlamaCpp(base)
        if message is None:  # a field of the request replaces it
            assert adapter.model() == ("tiny", 160)
        else:
            with pytest.raises(SkitError, match=message):
                adapter.model()


def test_a_server_that_does_not_say_what_it_used_is_refused() -> None:
    answer = {"samplers": ["top_k"], "temperature": 0.0, "top_k": 0}
    sent = sampling_fields(GREEDY)
    assert differences(sent, answer) == [
        "samplers ['top_k'] instead of ['top_k', 'temperature', 'top_p']",
        "top_p unknown",
    ]


def test_the_tokens_are_those_of_the_model() -> None:
    with engine_server() as base:
        adapter = LlamaCpp(base)
        drawn = adapter.target_tokens(ScoringRequest(TEXT, [2], SAMPLED, [7, 8]))
        assert adapter.target_tokens(ScoringRequest(TEXT, [], SAMPLED, [7])) == drawn[:1]
        assert adapter.target_tokens(ScoringRequest([*TEXT, 2], [], SAMPLED, [8])) == drawn[1:]


def test_another_server_is_told_apart_in_one_line() -> None:
    with (
        engine_server() as base,
        pytest.raises(SkitError, match=r"answered 404.*llama-cpp-python.*llama-server"),
    ):
        LlamaCpp(f"{base}/x").model()
