"""Synthetic pairs, whose models agree as often as their options say; they are loaded like any other pair."""

import torch
from transformers import GenerationConfig, PretrainedConfig

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.models.catalogue import SYNTHETIC, ModelSource
from specbench_kit.models.executors.agreement import Agreement

CONTEXT = 1 << 20


class SyntheticConfig(PretrainedConfig):
    """The configuration of a model without weights."""

    model_type = SYNTHETIC


class SyntheticModel:
    """Stands in for a transformers model; it never produces an end token.

    Without an `agreement` it is the target, whose tokens follow from the context alone.
    """

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, name: str, agreement: Agreement | None, vocabulary: int) -> None:
        self.agreement = agreement
        self.config = SyntheticConfig(vocab_size=vocabulary, hidden_size=1, max_position_embeddings=CONTEXT)
        self.config._commit_hash = name
        self.generation_config = GenerationConfig(eos_token_id=[])

    def num_parameters(self) -> int:
        """Return 0."""
        return 0

    def forward(self) -> None:
        """Exist only so that executors can look at its signature; the synthetic executor never calls it."""


def load_synthetic(source: ModelSource, vocabulary: int) -> SyntheticModel:
    """Return the target `synthetic`, or the draft `synthetic:ranks=0.8+0.1,...`."""
    name, _, tail = source.location.partition(":")
    is_target = source.label == f"{SYNTHETIC}/target"
    if is_target and tail:
        raise SkitError(f"the target is {SYNTHETIC} without options: give {source.location} as the draft")
    agreement = None if is_target else from_options(name, Agreement, tail)
    return SyntheticModel(source.location, agreement, vocabulary)
