"""The comparison with other programs: where outputs differ first, and that a peer verifies what it decodes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.gguf_types import Agreement
from benchmarks.peer_models import Kit, LlamaCpp, Peer, Transformers
from benchmarks.peers import Results, first_difference
from specbench_kit.decoding.session import Request
from specbench_kit.models.catalogue import locate
from specbench_kit.models.executors.base import make_executor

PROMPT = list(range(40, 60))
LENGTH = 8


def test_the_first_difference_is_the_first_token_that_only_one_output_has() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 5, 3], [1, 2, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_agreement_counts_outputs_and_places() -> None:
    outputs = {"kit, native": [[1, 2, 3], [4, 5, 6]], "other": [[1, 2, 3], [4, 5, 7]]}
    assert Results(outputs, {}, {}).agreement("other") == (0.5, 2)
    assert Results(outputs, {}, {}).agreement("kit, native") == (1.0, None)


def test_divergence_is_that_of_the_distributions() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).numpy()
    assert Agreement.between([logits], [logits + 3]) == Agreement(pytest.approx(0.0, abs=1e-9), 1.0)
    peer_logits = torch.tensor([[0.0, 0.0]]).numpy(), torch.tensor([[0.0, 1.0]]).numpy()
    expected = torch.nn.functional.kl_div(
        torch.tensor([[0.0, 1.0]]).log_softmax(-1), torch.tensor([[0.5, 0.5]]), reduction="sum"
    )
    assert Agreement.between([peer_logits[0]], [peer_logits[1]]).divergence == pytest.approx(
        expected.item()
    )


@pytest.fixture(scope="module")
def model() -> object:
    return AutoModelForCausalLM.from_pretrained(
        locate("bundled", "target").location, dtype=torch.float32
    )


def assert_it_verifies_what_it_decodes(peer: Peer) -> list[int]:
    """A peer's own answer, given as a draft, is verified token by token, twice from the same context."""
    answer = peer.decode(Request("1", "", tuple(PROMPT), LENGTH))
    peer.prefill([*PROMPT, answer[0]])
    for count in (len(answer) - 1, 3):
        assert peer.verify(answer[1 : count + 1])[:-1] == answer[2 : count + 1]
    return answer


def test_the_kit_and_transformers_verify_what_they_decode(model: object) -> None:
    executor = make_executor(model, 1, 64, None)
    answers = [
        assert_it_verifies_what_it_decodes(peer)
        for peer in (Kit(executor, frozenset()), Transformers(model))
    ]
    assert answers[0] == answers[1]


def test_llama_cpp_verifies_what_it_decodes(model: object, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from transformers import AutoTokenizer

    from benchmarks import gguf_file
    from specbench_kit.models.pair import LoadedModel

    source = locate("bundled", "target")
    tokenizer = AutoTokenizer.from_pretrained(source.location)
    gguf_file.write(LoadedModel(model, source), tokenizer, tmp_path / "target.gguf")
    answer = assert_it_verifies_what_it_decodes(LlamaCpp(tmp_path / "target.gguf", 64, frozenset()))
    assert len(answer) == LENGTH
