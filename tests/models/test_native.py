"""The native executor: what transformers computes, and to the bit the same however tokens are put together."""

import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from command_line import TinyPair
from native_models import MODELS, SIZES, builds, in_a_tree, in_pieces, llama
from tiny_models import make_runner, plain_logits, random_prompts
from transformers import LlamaForCausalLM

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import features_of_row
from specbench_kit.models.executors import library
from specbench_kit.models.executors.base import Row, executors, make_executor
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append

if library.load_library() is None:
    pytest.skip("the native executor was not compiled: no C++ compiler", allow_module_level=True)

ROOT = Path(__file__).parents[2]
VARIED = (
    "llama",
    "heads of 80",
    "bf16 weights",
    "fp16 weights",
    "qwen3, norms of queries and keys",
)


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_what_transformers_computes(name: str) -> None:
    model = MODELS[name]()
    assert executors.get("native").supports(model)
    runner = make_runner(model, 2, 120, "native")
    (text,) = random_prompts([60], model.config.vocab_size)
    slot = runner.acquire()
    forward = runner.forward([Append(slot, text, keep=60)])
    expected = plain_logits(model, text)
    torch.testing.assert_close(forward[0], expected, atol=2e-4, rtol=2e-4)
    assert forward.argmax() == [forward[0].argmax(-1).tolist()]


@pytest.mark.parametrize("name", VARIED)
def test_a_tokens_logits_are_the_same_to_the_bit_alone_in_chunks_and_in_a_tree(name: str) -> None:
    model = MODELS[name]()
    runner = make_runner(model, 3, 200, "native")
    (text,) = random_prompts([112], model.config.vocab_size)
    at_once = in_pieces(runner, text, 112)
    for size in (1, 2, 5, 7, 40):
        assert torch.equal(in_pieces(runner, text, size), at_once), size
    assert torch.equal(in_a_tree(runner, text, 100), at_once[100:])


def test_the_number_of_threads_changes_no_bit() -> None:
    runner = make_runner(llama(hidden_size=128, intermediate_size=320), 3, 200, "native")
    (text,) = random_prompts([112], SIZES["vocab_size"])
    before, logits_by_threads = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            logits_by_threads.append(
                torch.cat((in_pieces(runner, text, 7), in_a_tree(runner, text, 100)))
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(logits, logits_by_threads[0]) for logits in logits_by_threads[1:])


def test_hidden_states_are_those_of_transformers() -> None:
    model = llama()
    (text,) = random_prompts([20], SIZES["vocab_size"])
    executor = make_executor(model, 1, 40, None, "native")
    hidden = executor.forward([Row(0, text, 0, 0, None, 20)], layers=range(4)).hidden
    with torch.inference_mode():
        expected = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    for layer, states in enumerate(expected):
        torch.testing.assert_close(hidden[layer], states[0], atol=1e-4, rtol=1e-4)


def test_a_row_tells_more_hidden_states_than_logits() -> None:
    """A prompt of 20 tokens beside a row of 3: the logits of one token each, the states of 20 and of 3."""
    texts = random_prompts([20, 3], SIZES["vocab_size"])
    rows = [Row(slot, text, 0, 0, None, len(text)) for slot, text in enumerate(texts)]
    whole = make_executor(llama(), 2, 40, None, "native").forward(rows, layers=range(4))
    executor = make_executor(llama(), 2, 40, None, "native")
    assert executor.states_apart
    few = [row._replace(keep=1, states=states) for row, states in zip(rows, (20, 0), strict=True)]
    forward = executor.forward(few, layers=range(4))
    for row in (0, 1):
        assert torch.equal(forward[row], whole[row][-1:])
        assert forward.argmax()[row] == whole.argmax()[row][-1:]
    assert torch.equal(forward.states(0, range(4)), whole.states(0, range(4)))
    assert torch.equal(forward.states(1, range(4)), whole.states(1, range(4))[-1:])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_draft_statistics_are_those_of_the_logits(temperature: float) -> None:
    executor = make_executor(llama(), 1, 40, 85, "native")
    (text,) = random_prompts([9], 85)
    forward = executor.forward([Row(0, text, 0, 0, None, 9)])
    assert forward.statistics is not None
    for row, statistics in zip(forward.logits, forward.statistics(temperature), strict=True):
        assert len(row) == 85
        probabilities = (row.double() / temperature).softmax(-1)
        expected = features_of_row(row.double().numpy(), probabilities.numpy(), temperature)
        assert statistics == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_masked_tokens_are_never_the_likeliest() -> None:
    executor = make_executor(llama(), 1, 40, None, "native")
    forward = executor.forward([Row(0, [1, 2, 3], 0, 0, None, 3)])
    likeliest = forward.argmax()[0]
    forward.mask(likeliest)
    assert not set(forward.argmax()[0]) & set(likeliest)
    assert forward.statistics is None


def test_another_one_over_the_same_weights_has_kv_of_its_own() -> None:
    model = llama()
    first = make_executor(model, 1, 40, None, "native")
    alone = first.forward([Row(0, [5, 6, 7], 0, 0)]).logits.clone()
    second = first.with_slots(2, 60)
    assert (second.slots, second.capacity) == (2, 60)
    second.forward([Row(0, [8, 9, 10], 0, 0), Row(1, [11], 0, 0)])
    assert torch.equal(first.forward([Row(0, [7], 2, 2)]).logits, alone)
    del first
    assert torch.equal(second.forward([Row(1, [5, 6, 7], 0, 0)]).logits, alone)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (Row(0, [90], 0, 0), "a token id outside its vocabulary"),
        (Row(0, [-1], 0, 0), "a token id outside its vocabulary"),
        (Row(0, [1], 256, 256), "a position beyond its context"),
        (Row(2, [1], 0, 0), "a slot that is not there"),
        (Row(0, [1, 2], 39, 39), "a place beyond its slot"),
        (Row(0, [1], 4, 5), "a prefix that ends behind its tokens"),
        (Row(0, [1, 2], 5, 5, [1, -1]), "a token that comes before its parent"),
        (Row(0, [1], 5, 5, [-2]), "a token that comes before its parent"),
        (Row(0, [1], 5, 4, [-1]), "parents of other nodes"),
        (Row(0, [1], 5, 5, None, 2), "logits of a token that is not in the batch"),
        (Row(0, [1], 5, 5, None, 1, 2), "hidden states of a token that is not in the batch"),
    ],
)
def test_what_lies_outside_is_refused_and_never_read(row: Row, named: str) -> None:
    executor = make_executor(llama(), 1, 40, None, "native")
    before = executor.forward([Row(0, [1, 2, 3], 0, 0, None, 3)]).logits.clone()
    with pytest.raises(SkitError, match=named):
        executor.forward([row])
    assert torch.equal(executor.forward([Row(0, [1, 2, 3], 0, 0, None, 3)]).logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
@pytest.mark.parametrize("build", list(builds()))
def test_a_weight_of_a_file_that_is_not_finite_is_noticed(
    build: str,
    weight: float,
    dtype: torch.dtype,
    tiny: TinyPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = next(library._find(build))
    monkeypatch.setattr(executors.get("native"), "library", classmethod(lambda _: compiled))
    folder = shutil.copytree(tiny.target, tmp_path / "target")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] = weight
    model.save_pretrained(folder)
    runner = load_pair(
        str(folder), None, executor="native", dtype="float32", device="cpu"
    ).target.runner(1, 40, None)
    assert runner.forward([Append(runner.acquire(), [1, 2, 3])]).is_nan()


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_act": "gelu"},
        {"head_dim": 8},
        {"hidden_size": 40},
        {"attention_bias": True},
        {"mlp_bias": True},
    ],
)
def test_what_it_does_not_compute_falls_to_the_next_executor(options: dict[str, object]) -> None:
    model = llama(**options)
    assert not executors.get("native").supports(model)
    assert type(make_executor(model, 1, 40, None)) is not executors.get("native")


def test_half_precision_arithmetic_is_left_to_others() -> None:
    """A dtype other than float32 is a request for its rounding."""
    assert not executors.get("native").supports(llama().to(torch.bfloat16))
    assert type(make_executor(llama().to(torch.float16), 1, 40, None)) is executors.get(
        "transformers"
    )


def test_every_build_is_compiled_from_a_source_of_its_own() -> None:
    """They are built side by side into one folder: object files of one name would overwrite each other."""
    extensions = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
    names = {
        extension["name"].rpartition(".")[2]
        for extension in extensions
        if "executors" in extension["name"]
    }
    assert names == {*library.BUILDS, library.NARROW_BUILD}
    assert len({tuple(extension["sources"]) for extension in extensions}) == len(extensions)
    assert not hasattr(library.load_library(), "products")  # which only the narrow build has


def test_without_a_build_the_others_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench_kit.models.executors.native.load_library", lambda: None)
    model = llama()
    assert isinstance(make_executor(model, 1, 40, None), executors.get("llama-cpu"))
    with pytest.raises(
        SkitError, match=r"^executor 'native' was not compiled: install a C\+\+ compiler"
    ):
        make_executor(model, 1, 40, None, "native")


def test_no_candidates_are_chosen_where_none_are_asked_for() -> None:
    runner = make_runner(llama(), 1, 20, "native")
    forward = runner.forward([Append(runner.acquire(), [1, 2, 3], keep=1)])
    assert forward.candidates is not None
    assert forward.candidates(1.0, [0], [0.0], 0, 4, -float("inf")) == []
    assert forward.candidates(1.0, [0], [0.0], 4, 0, -float("inf")) == []
    assert forward.candidates(1.0, [0], [0.0], -1, -1, -float("inf")) == []
    assert len(forward.candidates(1.0, [0], [0.0], 3, 2, -float("inf"))) == 2


def test_the_number_of_threads_may_change_between_forwards() -> None:
    model = llama()
    (text,) = random_prompts([40], model.config.vocab_size)
    before = torch.get_num_threads()
    expected = in_pieces(make_runner(model, 1, 60, "native"), text, 40)
    runner = make_runner(model, 1, 60, "native")
    try:
        for threads in (3, 2, 3, 2, 4, 1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(in_pieces(runner, text, 5), expected), threads
    finally:
        torch.set_num_threads(before)


def test_a_second_forward_on_a_busy_decoder_is_refused() -> None:
    model = llama(hidden_size=256, intermediate_size=512)
    (text,) = random_prompts([100], model.config.vocab_size)
    runner = make_runner(model, 1, 120, "native")
    slot = runner.acquire()
    row = Row(slot, text, 0, 0, None, len(text))
    expected = runner.executor.forward([row])[0].clone()

    def forward() -> bool:
        try:
            return torch.equal(runner.executor.forward([row])[0], expected)
        except SkitError as error:
            return "two forwards at once" in str(error)

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda _: forward(), range(40)))


def test_the_pool_runs_each_thread_once_a_round_however_many_are_needed(tmp_path: Path) -> None:
    """A worker that is not needed is held up, so that the next round begins before it has looked again."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = Path(library.__file__).with_name("csrc")
    test = Path(__file__).with_name("csrc") / "pool_test.cpp"
    binary = tmp_path / "pool_test"
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-pthread", f"-I{sources}", str(test), "-o", str(binary)],
        check=True,
    )
    result = subprocess.run([binary], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
