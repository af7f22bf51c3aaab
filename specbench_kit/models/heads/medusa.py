"""Medusa heads (Cai et al. 2024): some small heads on the target's last hidden state, one per
further token.

Head i reads the state of a token and predicts the token i + 2 places behind it: the target's own
head predicts the next. Every head is one residual block; all share one output matrix over a reduced
vocabulary, where the authors give each head its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from specbench_kit.core.errors import SkitError
from specbench_kit.models.heads.config import CONFIG, WEIGHTS

ALGORITHM = "medusa"


@dataclass(frozen=True)
class MedusaConfig:
    """The number of heads, the target's hidden size and vocabulary, and the number of tokens that
    are drafted.
    """

    heads: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    depth: int
    """The number of the target's layers: the heads read the normalised output of the last one."""
    verifier: str = ""

    model_type = ALGORITHM

    def get_text_config(self) -> "MedusaConfig":
        """Return the configuration itself, as configurations of transformers do."""
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the contents of config.json, which the `speculators` library has no format for."""
        return {
            "architectures": ["MedusaHeads"],
            "speculators_model_type": ALGORITHM,
            "num_heads": self.heads,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "num_target_layers": self.depth,
            "verifier": self.verifier,
        }


class MedusaModel(nn.Module):
    """Predicts the tokens after next from one hidden state; `d2t` is as in `HeadModel`."""

    d2t: Tensor

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(config.heads)])
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    def forward(self, states: Tensor, heads: int | None = None) -> Tensor:
        """Return logits [..., heads, draft vocabulary] of the first `heads` heads, or of all, for
        states [..., width].

        The residual is the state itself, so that heads whose blocks are zero predict as the
        target's own head does.
        """
        return torch.stack(
            [self.head(states, number) for number in range(heads or self.config.heads)], dim=-2
        )

    def head(self, states: Tensor, number: int) -> Tensor:
        """Return the logits [..., draft vocabulary] of one head."""
        logits: Tensor = self.lm_head(states + silu(self.blocks[number](states)))
        return logits

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    @property
    def tokens(self) -> Tensor:
        """Return the target's token id of every token of the heads' vocabulary."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def num_parameters(self) -> int:
        """Return the number of parameters, as models of transformers do."""
        return sum(weight.numel() for weight in self.parameters())


def is_medusa(folder: Path) -> bool:
    """Return whether a folder claims to hold Medusa heads, even if they are damaged."""
    try:
        return bool(
            json.loads((folder / CONFIG).read_text(encoding="utf-8"))["speculators_model_type"]
            == ALGORITHM
        )
    except (OSError, ValueError, TypeError, KeyError):
        return False


def make_medusa(folder: Path, weights: dict[str, Tensor]) -> MedusaModel:
    """Return the heads of a folder with the weights that were read from it."""
    config = _read_config(folder)
    model = MedusaModel(config)
    expected = model.state_dict()
    wrong = [
        name
        for name in expected
        if name not in weights or weights[name].shape != expected[name].shape
    ]
    if wrong:
        raise SkitError(
            f"the heads in '{folder}' are not whole: {min(wrong)} is missing or has another shape"
        )
    model.load_state_dict({name: weights[name] for name in expected})
    if not 0 <= int(model.tokens.min()) <= int(model.tokens.max()) < config.vocab_size:
        raise SkitError(
            f"the heads in '{folder}' draft tokens that the target does not have: their d2t is damaged"
        )
    return model.eval().requires_grad_(False)


def save_medusa(model: MedusaModel, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write heads as config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(
        json.dumps(model.config.as_json(), indent=2) + "\n", encoding="utf-8"
    )
    weights = {
        name: (weight.to(dtype) if weight.is_floating_point() else weight).contiguous().cpu()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _read_config(folder: Path) -> MedusaConfig:
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        names = ("num_heads", "hidden_size", "vocab_size", "draft_vocab_size", "num_target_layers")
        heads, width, vocabulary, drafted, depth = sizes = [int(data[name]) for name in names]
        verifier = str(data["verifier"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkitError(
            f"the folder '{folder}' holds no Medusa heads: {CONFIG} is damaged ({error})"
        ) from error
    if min(sizes) < 1:
        raise SkitError(
            f"the folder '{folder}' holds no Medusa heads: a size in {CONFIG} is below 1"
        )
    return MedusaConfig(heads, width, vocabulary, drafted, depth, verifier)
