"""Draft models with a vocabulary of their own: what is shared, what is drafted, and that outputs stay the target's."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from command_line import TinyPair
from scipy.stats import chisquare
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    make_requests,
    make_runner,
    outputs,
    plain_logits,
    tiny_llama,
)
from tiny_tokenizers import SPACED, TARGET
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.generation.candidate_generator import AssistantToTargetTranslator

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Append
from specbench_kit.models.vocabulary_map import TranslatingRunner, VocabularyMap, map_vocabulary
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.runs.document import RunDescription

NAMES = ("target", "draft")


def test_tokens_are_shared_by_their_text() -> None:
    """a, b, c, the space, d and " a" are in both; ab and abc are not, and end in b and c."""
    vocabulary_map = map_vocabulary(TARGET, SPACED, NAMES)
    assert vocabulary_map.shared == {0: 4, 1: 3, 2: 2, 3: 0, 4: 1, 6: 7}
    assert vocabulary_map.read_as == (4, 3, 2, 0, 1, 3, 7, 2)
    assert vocabulary_map.share == 6 / 8


@pytest.mark.parametrize(
    ("target", "draft"), [(TARGET, SPACED), (SPACED, TARGET), (TARGET, TARGET)]
)
def test_the_intersection_is_that_of_transformers(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase
) -> None:
    theirs = AssistantToTargetTranslator(target, draft, len(target.get_vocab()))
    assert map_vocabulary(target, draft, NAMES).shared == theirs.target_to_assistant_input_ids


def permuted(tiny: TinyPair, folder: Path) -> Path:
    """Return the draft model with its tokens numbered backwards, in its tokenizer and in its weights."""
    draft = Path(shutil.copytree(tiny.draft, folder / "backwards"))
    file = draft / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {piece: 257 - number for piece, number in vocabulary.items()}
    for added in content["added_tokens"]:
        added["id"] = 257 - added["id"]
    file.write_text(json.dumps(content))
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(draft)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight.data = layer.weight.data.flip(0).contiguous()
    model.save_pretrained(draft)
    return draft


@pytest.fixture(scope="module")
def pairs(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    """The tiny pair, and the same with a draft that numbers its tokens differently."""
    draft = permuted(tiny, tmp_path_factory.mktemp("other"))
    return tuple(
        load_pair(str(tiny.target), str(name), device="cpu") for name in (tiny.draft, draft)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("spec", ["fixed-k", "opt-tree:nodes=6,max_depth=3,gain=0.1", "svip"])
def test_a_renumbered_draft_model_drafts_as_before(spec: str, pairs: tuple[Pair, Pair]) -> None:
    requests, method = make_requests([[70, 80], [90, 3, 200]], 16), parse_method(spec)
    records_of_pairs = [
        decode(method, pair.runners(2, 64, "transformers"), requests, batch_size=2)
        for pair in pairs
    ]
    plain = decode(AUTOREGRESSIVE, pairs[1].runners(2, 64, "transformers"), requests, batch_size=2)
    assert outputs(records_of_pairs[1]) == outputs(plain)
    accepted = [
        [step.accepted for name in sorted(records) for step in records[name].rounds]
        for records in records_of_pairs
    ]
    assert accepted[0] == accepted[1]
    assert sum(accepted[0]) > 0
    assert pairs[0].draft is not None
    assert pairs[0].draft.translation is None
    assert pairs[1].vocabulary == 258


def test_the_run_says_what_part_is_shared(pairs: tuple[Pair, Pair]) -> None:
    described = pairs[1].describe(lambda _: "0")
    assert described["draft"].shared_vocabulary == 1.0
    cautions = setting_cautions(RunDescription(models=described))
    assert any("shares 100.0% of the target's tokens" in caution for caution in cautions)


# A draft of five tokens that shares four of the target's six: 0, 2, 3 and 5.
PARTLY = VocabularyMap({0: 4, 2: 1, 3: 0, 5: 2}, (4, 3, 1, 0, 3, 2))
SIZES: dict[str, int] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def test_only_shared_tokens_are_drafted() -> None:
    model = tiny_llama(6, vocab_size=5, **SIZES)
    runner = TranslatingRunner(make_executor(model, 1, 16, None), PARTLY, 6)
    drafted = runner.forward([Append(runner.acquire(), [2, 1, 4], keep=3)])[0]
    own = plain_logits(model, [1, 3, 3])
    torch.testing.assert_close(drafted[:, [0, 2, 3, 5]], own[:, [4, 1, 0, 2]], atol=1e-4, rtol=1e-4)
    assert float(drafted.softmax(-1)[:, [1, 4]].max()) < 1e-12


@pytest.mark.slow
def test_sampling_keeps_the_targets_distribution() -> None:
    """All outputs of two tokens, by the chi-square test."""
    target, draft = tiny_llama(5, vocab_size=6, **SIZES), tiny_llama(6, vocab_size=5, **SIZES)
    runners = (
        make_runner(target, 400, 40),
        TranslatingRunner(make_executor(draft, 400, 40, None), PARTLY, 6),
    )
    sampler, draws = Sampler(temperature=1.0), 3000
    records = decode(
        parse_method("fixed-k:k=2"),
        runners,
        make_requests([(2,)] * draws, 2),
        sampler=sampler,
        seed=11,
        batch_size=400,
    )
    counts = Counter(tuple(record.output_ids) for record in records.values())
    first = plain_logits(target, [2])[-1].softmax(-1)
    probabilities = {
        (token, following): float(first[token] * after[following])
        for token in range(6)
        for after in [plain_logits(target, [2, token])[-1].softmax(-1)]
        for following in range(6)
    }
    common = [tokens for tokens, chance in probabilities.items() if chance * draws >= 5]
    observed = [
        *(counts[tokens] for tokens in common),
        draws - sum(counts[tokens] for tokens in common),
    ]
    expected = [draws * probabilities[tokens] for tokens in common]
    assert chisquare(observed, [*expected, draws - sum(expected)]).pvalue > 1e-3
    assert sum(step.accepted for record in records.values() for step in record.rounds) > 1000


def test_the_translated_pair_loads_its_own_tokenizer(
    pairs: tuple[Pair, Pair], tiny: TinyPair
) -> None:
    """Prompts are read by the target's."""
    assert pairs[1].tokenizer.get_vocab() == AutoTokenizer.from_pretrained(tiny.target).get_vocab()
