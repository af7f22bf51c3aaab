"""Multi-layer perceptron: trained with torch, scored with numpy."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.base import (
    Examples,
    Params,
    PredictorFamily,
    Scaler,
    Scorer,
    Space,
    families,
)
from specbench_kit.predictors.dense import Dense, Layer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Sequential

MAX_EPOCHS = 40
PATIENCE = 5
"""Number of epochs without a better validation loss after which training ends."""


@families.register("mlp")
class Mlp(PredictorFamily):
    """ReLU layers with optional batch normalisation, trained by AdamW; the weights of the best
    epoch count.
    """

    summary = "multi-layer perceptron"
    source = "Rumelhart et al. 1986"
    space: ClassVar[Space] = {
        "hidden": ("32-32", "16", "64", "64-64", "128-64", "512-128-64", "64-64-64"),
        "batch_norm": (False, True),
        "dropout": (0.0, 0.1, 0.2, 0.3),
        "learning_rate": (3e-3, 3e-4, 1e-3, 1e-2),
        "batch_size": (512, 256, 1024),
        "weight_decay": (1e-4, 0.0, 1e-5, 1e-3, 1e-2),
    }

    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        import torch

        scaler = Scaler.of(train.features)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _network(train.features.shape[1], params)
            _descend(network, _tensors(train, scaler), _tensors(valid, scaler), params)
        return Dense(scaler, list(_layers(network)))

    def scorer_type(self) -> type[Scorer]:
        return Dense


def _network(features: int, params: Params) -> "Sequential":
    from torch import nn

    width = features
    parts: list[nn.Module] = []
    for wider in map(int, params["hidden"].split("-")):
        parts.append(nn.Linear(width, wider))
        parts += [nn.BatchNorm1d(wider)] if params["batch_norm"] else []
        parts += [nn.ReLU(), nn.Dropout(params["dropout"])]
        width = wider
    return nn.Sequential(*parts, nn.Linear(width, 1), nn.Flatten(0))


def _tensors(examples: Examples, scaler: Scaler) -> "tuple[Tensor, Tensor]":
    import torch

    scaled = scaler(examples.features).astype(np.float32)
    return torch.from_numpy(scaled), torch.from_numpy(examples.labels.astype(np.float32))


def _descend(
    network: "Sequential",
    train: "tuple[Tensor, Tensor]",
    valid: "tuple[Tensor, Tensor]",
    params: Params,
) -> None:
    """Train until the validation loss no longer improves, then restore the weights of the best
    epoch.
    """
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    optimizer = torch.optim.AdamW(
        network.parameters(), lr=params["learning_rate"], weight_decay=params["weight_decay"]
    )
    best_loss = float("inf")
    best_epoch = 0
    best = copy.deepcopy(network.state_dict())
    features, labels = train
    for epoch in range(MAX_EPOCHS):
        network.train()
        batches = torch.randperm(len(labels)).split(params["batch_size"])
        # Batch normalisation needs the spread of at least two examples.
        for rows in batches if len(batches[-1]) > 1 else batches[:-1]:
            optimizer.zero_grad()
            torch.autograd.backward(
                binary_cross_entropy_with_logits(network(features[rows]), labels[rows])
            )
            optimizer.step()
        with torch.inference_mode():
            loss = float(binary_cross_entropy_with_logits(network.eval()(valid[0]), valid[1]))
        if loss < best_loss:
            best_loss = loss
            best_epoch = epoch
            best = copy.deepcopy(network.state_dict())
        elif epoch - best_epoch >= PATIENCE:
            break
    network.load_state_dict(best)


def _layers(network: "Sequential") -> Iterator[Layer]:
    """Yield weights and biases; a normalisation is folded into the layer before it, so that scores
    stay cheap.
    """
    from torch import nn

    def arrays(*tensors: "Tensor | None") -> list[NDArray[np.float64]]:
        return [tensor.detach().double().numpy() for tensor in tensors if tensor is not None]

    parts = [part for part in network if isinstance(part, nn.Linear | nn.BatchNorm1d)]
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, nn.BatchNorm1d):
            continue
        weight, bias = arrays(part.weight, part.bias)
        if isinstance(following, nn.BatchNorm1d):
            gain, shift, mean, variance = arrays(
                following.weight, following.bias, following.running_mean, following.running_var
            )
            scale = gain / np.sqrt(variance + following.eps)
            weight = weight * scale[:, None]
            bias = (bias - mean) * scale + shift
        yield weight, bias
