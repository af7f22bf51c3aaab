"""The bundled samples: enough prompts of each kind, and only theirs."""

import pytest

from specbench_kit.datasets.loading import SAMPLES, load, read_prompts


@pytest.mark.parametrize(
    ("name", "least", "category"),
    [
        ("gsm8k", 48, "math_reasoning"),
        ("code", 16, "code"),
        ("translation", 16, "translation"),
        ("summarisation", 12, "summarization"),
    ],
)
def test_a_sample_of_one_task_has_enough_single_prompts(
    name: str, least: int, category: str
) -> None:
    prompts = read_prompts(SAMPLES / f"{name}.jsonl")
    assert len(prompts) >= least
    assert {prompt.category for prompt in prompts} == {category}
    assert {len(prompt.turns) for prompt in prompts} == {1}
    assert len({prompt.turns for prompt in prompts}) == len(prompts)


def test_the_chat_sample_mixes_topics_and_has_two_turn_dialogues() -> None:
    prompts = read_prompts(SAMPLES / "chat.jsonl")
    assert len(prompts) >= 24
    assert len({prompt.category for prompt in prompts}) >= 8
    assert {len(prompt.turns) for prompt in prompts} == {1, 2}
    assert all(prompt.chat for prompt in prompts)


def test_the_code_sample_is_python_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIT_DATA_DIR", raising=False)
    prompts = read_prompts(SAMPLES / "code.jsonl")
    assert all(prompt.chat for prompt in prompts)
    raw = load("humaneval-raw", data_dir=None, allow_sample=True, limit=None, seed=0)
    assert [prompt.turns for prompt in raw.prompts] == [prompt.turns for prompt in prompts]
    assert not any(prompt.chat for prompt in raw.prompts)
    for prompt in prompts:
        compile(
            prompt.turns[0] + "        pass\n" * prompt.turns[0].rstrip().endswith(":"),
            prompt.id,
            "exec",
        )


def test_the_passages_to_summarise_are_paragraphs() -> None:
    for prompt in read_prompts(SAMPLES / "summarisation.jsonl"):
        assert 80 <= len(prompt.turns[0].partition("\n\n")[2].split()) <= 150
