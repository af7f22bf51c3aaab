"""Synthetic pairs, whose models agree as often as their options say; they are loaded like any other
pair.

With `shape=`, a model of these shapes with random weights computes every forward too, so that it
takes its time.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, PretrainedConfig

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.models.catalogue import SHAPE, SYNTHETIC, ModelSource, shape_of
from specbench_kit.models.executors.agreement import Agreement

CONTEXT = 1 << 20


class SyntheticConfig(PretrainedConfig):
    """The configuration of a model without weights."""

    model_type = SYNTHETIC


class SyntheticModel:
    """Stands in for a transformers model; it never produces an end token.

    Without an `agreement` it is the target, whose tokens follow from the context alone. A `body` is
    a model with random weights that computes the same forwards, and whose results nobody reads.
    """

    def __init__(
        self, name: str, agreement: Agreement | None, vocabulary: int, body: Any = None
    ) -> None:
        self.name = name
        self.agreement = agreement
        self.body = body
        self.device: torch.device = body.device if body is not None else torch.device("cpu")
        self.dtype: torch.dtype = body.dtype if body is not None else torch.float32
        context = CONTEXT if body is None else int(body.config.max_position_embeddings)
        self.config = SyntheticConfig(
            vocab_size=vocabulary, hidden_size=1, max_position_embeddings=context
        )
        self.generation_config = GenerationConfig(eos_token_id=[])

    def num_parameters(self) -> int:
        """Return the number of weights: those of the body, or none."""
        return 0 if self.body is None else int(self.body.num_parameters())

    def forward(self) -> None:
        """Exist only so that executors can look at its signature; the synthetic executor never
        calls it.
        """


MakeBody = Callable[[str], Any]
"""Returns a model with random weights of the shapes that a name or a file stands for."""


def load_synthetic(
    source: ModelSource, vocabulary: int, make_body: MakeBody | None = None
) -> SyntheticModel:
    """Return the target `synthetic`, or the draft `synthetic:ranks=0.8+0.1,...`; either may have a
    `shape=`.
    """
    name, _, tail = source.location.partition(":")
    options = [option for option in tail.split(",") if option and not option.startswith(SHAPE)]
    is_target = source.label.startswith(f"{SYNTHETIC}/target")
    if is_target and options:
        draft = f"{SYNTHETIC}:{','.join(options)}"
        raise SkitError(
            f"the target is {SYNTHETIC}, with no option but {SHAPE}NAME: give {draft} as the draft"
        )
    agreement = None if is_target else from_options(name, Agreement, ",".join(options))
    shape = shape_of(source.location)
    if not shape and SHAPE in tail:
        raise SkitError(f"{source.location}: {SHAPE} needs a name, like {SHAPE}qwen3-0.6b")
    if shape and make_body is None:
        raise SkitError(f"{SHAPE}{shape} has no effect here, since nothing is timed: leave it out")
    body = make_body(shape) if shape and make_body is not None else None
    return SyntheticModel(source.label.replace("/target", "", 1), agreement, vocabulary, body)
