"""The configuration of an EAGLE head: config.json in the format of the `speculators` library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from specbench_kit.core.errors import SkitError

ALGORITHM = "eagle3"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OUTPUT_OF_TARGET = "output_rows_of_target"
"""The key, beside those of the format, of a head whose output matrix is the target's rows of the drafted tokens."""


@dataclass(frozen=True)
class HeadConfig:
    """The sizes of a head, and the three layers of the target that it reads.

    `layer` holds the sizes of the head's own layer and the target's vocabulary. Layer n of the target is the output of
    its first n layers. `speculative_tokens` is the number of tokens that the head was trained to draft in a row.
    """

    layer: LlamaConfig
    draft_vocab_size: int
    target_hidden_size: int
    layers: tuple[int, ...]
    verifier: str
    speculative_tokens: int = 4
    norm_before_residual: bool = True
    fc_bias: bool = False
    output_of_target: bool = False
    """True if the output matrix is the target's rows of the drafted tokens, which need no place in the file."""

    model_type = ALGORITHM

    def get_text_config(self) -> LlamaConfig:
        """Return the layer's configuration, as configurations of transformers do."""
        return self.layer

    def as_json(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        proposal = {
            "proposal_type": "greedy",
            "speculative_tokens": self.speculative_tokens,
            "verifier_accept_k": 1,
            "accept_tolerance": 0.0,
        }
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": ALGORITHM,
            "speculators_config": {
                "algorithm": ALGORITHM,
                "proposal_methods": [proposal],
                "default_proposal_method": "greedy",
                "verifier": {"name_or_path": self.verifier, "architectures": ["LlamaForCausalLM"]},
            },
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size,
            "eagle_aux_hidden_state_layer_ids": list(self.layers),
            "norm_before_residual": self.norm_before_residual,
            "transformer_layer_config": self.layer.to_diff_dict(),
            **({OUTPUT_OF_TARGET: True} if self.output_of_target else {}),
        }


def default_layers(depth: int) -> tuple[int, ...]:
    """Return a low, a middle and a high layer, the format's default for a head that does not name
    its layers.
    """
    return min(2, depth), depth // 2, max(depth - 3, 0)


def read_config(folder: Path, depth: int, fc_bias: bool = False) -> HeadConfig:
    """Read the configuration of a head for a target of `depth` layers; refuse what this kit cannot
    run exactly.
    """
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return _checked(data, depth, fc_bias)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkitError(
            f"the folder '{folder}' holds no head: {CONFIG} is missing, or is damaged ({error})"
        ) from error


def _checked(data: dict[str, Any], depth: int, fc_bias: bool) -> HeadConfig:
    kind = data.get("speculators_model_type")
    if kind != ALGORITHM:
        raise SkitError(f"heads of type '{kind}' are not known: only '{ALGORITHM}' is")
    speculation = data["speculators_config"]
    for proposal in speculation["proposal_methods"]:
        if proposal.get("accept_tolerance", 0) or proposal.get("verifier_accept_k", 1) != 1:
            raise SkitError(
                "the head asks for lossy acceptance (accept_tolerance, verifier_accept_k): only lossless is done; "
                "set them to 0 and 1 in its config.json"
            )
    layer = LlamaConfig(**data["transformer_layer_config"])
    if layer.num_hidden_layers != 1 or data.get("norm_before_fc"):
        raise SkitError(
            "the head has more than one layer, or a norm before its projection: only one layer is known"
        )
    layers = tuple(data.get("eagle_aux_hidden_state_layer_ids") or default_layers(depth))
    if len(layers) != 3 or not all(0 <= index <= depth for index in layers):
        raise SkitError(
            f"the head reads layers {layers} of a target that has {depth}: choose a head made for it"
        )
    return HeadConfig(
        layer=layer,
        draft_vocab_size=data["draft_vocab_size"],
        target_hidden_size=data.get("target_hidden_size") or layer.hidden_size,
        layers=layers,
        verifier=str(speculation["verifier"].get("name_or_path")),
        speculative_tokens=speculation["proposal_methods"][0].get("speculative_tokens", 4),
        norm_before_residual=data.get("norm_before_residual", False),
        fc_bias=fc_bias,
        output_of_target=data.get(OUTPUT_OF_TARGET, False),
    )
