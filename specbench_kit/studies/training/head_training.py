"""From prompts or a trace to a draft head in its folder, and what it reaches on held-out prompts.

An EAGLE head trains as it will draft: from the second step on its own states replace those of the
target. Medusa heads learn the target's distribution some tokens ahead from its last state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.methods.eagle import Eagle
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.draft_library import RECORD, named, trained_folder
from specbench_kit.models.heads.config import CONFIG, HeadConfig, default_layers
from specbench_kit.models.heads.files import load_head, load_medusa, save_head, sizes_of
from specbench_kit.models.heads.medusa import MedusaConfig, MedusaModel, save_medusa
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.weights.packed import rows_of
from specbench_kit.models.weights.stored import weight_of, with_weights
from specbench_kit.studies.training.distillation.answers import Answer, TrainingAnswerStore
from specbench_kit.studies.training.distillation.batches import (
    RoundAcceptance,
    TextBatch,
    accepted_counts,
)
from specbench_kit.studies.training.distillation.live import evaluate_live
from specbench_kit.studies.training.distillation.loop import (
    LossReport,
    UnfinishedDraft,
    faster_in_bf16,
)
from specbench_kit.studies.training.distillation.options import (
    HeadRecipe,
    HeadTrainingSettings,
    require_same,
)
from specbench_kit.studies.training.distillation.study import (
    Distillation,
    TimePlan,
    TrainedDrafter,
    summarise,
)
from specbench_kit.studies.training.distillation.vocabulary import (
    ReducedTargets,
    choose_size,
    choose_tokens,
    index_of,
)


def new_medusa(
    target: PreTrainedModel, tokens: Tensor, heads: int, verifier: str = ""
) -> MedusaModel:
    """Return untrained heads that draft the given tokens; they say what the target's own head
    says.
    """
    text = target.config.get_text_config()
    config = MedusaConfig(
        heads,
        text.hidden_size,
        text.vocab_size,
        len(tokens),
        text.num_hidden_layers,
        verifier=verifier,
    )
    model = MedusaModel(config).to(target.device)
    with torch.no_grad():
        for block in model.blocks.parameters():
            block.zero_()
        model.d2t.copy_(tokens - torch.arange(len(tokens)))
        model.lm_head.weight.copy_(
            weight_of(rows_of(target.get_output_embeddings().weight, tokens))
        )
    return model


class MedusaLoss:
    """The loss of Medusa heads on a batch of answers, and their acceptance on held-out ones."""

    def __init__(self, model: MedusaModel, decay: float, total: int) -> None:
        self._model = model
        self._decay = decay
        self._index_of = index_of(model.tokens.cpu(), total).to(model.device)
        self._in_bf16 = faster_in_bf16(model.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss, in which each further head counts less by `decay`."""
        total = torch.zeros((), device=self._model.device)
        rates = []
        for head, (logits, targets, _) in enumerate(self._heads(answers, self._in_bf16)):
            total = total + self._decay**head * targets.loss(logits)
            rates.append(float(targets.hits(logits).float().mean()))
        return LossReport(total, rates)

    def acceptance(self, batches: Sequence[list[Answer]]) -> RoundAcceptance:
        """Return the acceptance on greedy answers, each round beginning where the one before
        ended.
        """
        heads = self._model.config.heads
        counts: list[int] = []
        for batch in batches:
            hits = torch.zeros(heads, len(batch), max(map(len, batch)), dtype=torch.bool)
            # In full precision, as it will decode.
            for head, (logits, targets, (rows, columns)) in enumerate(
                self._heads(batch, in_bf16=False)
            ):
                hits[head, rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(hits[:, row, len(answer.prompt) : len(answer)], 1)
        return RoundAcceptance.of(counts, heads)

    def _heads(
        self, answers: list[Answer], in_bf16: bool
    ) -> Iterator[tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]]:
        """Yield each head's logits, the targets, and where in [answers, tokens] the drafted tokens
        are.
        """
        batch = TextBatch.of(answers, self._model.device)
        assert batch.states is not None
        prompts = torch.tensor(
            [len(answer.prompt) for answer in answers], device=self._model.device
        )
        targets = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        with torch.autocast(self._model.device.type, dtype=torch.bfloat16, enabled=in_bf16):
            states = batch.states.to(self._model.dtype)
            for head in range(self._model.config.heads):
                # Drafting begins at the state of the prompt's last token, whose next token the
                # target chose itself.
                drafted = torch.nonzero(batch.columns >= prompts[batch.rows] + 1 + head)[:, 0]
                rows, columns = batch.rows[drafted], batch.columns[drafted]
                logits = self._model.head(states[rows, columns - 2 - head], head).float()
                yield logits, targets[drafted], (rows, columns)


def train_head(
    settings: HeadTrainingSettings,
    recipe: HeadRecipe,
    dataset: LoadedDataset | None,
    report: ProgressCallback,
    tell: Callable[[str], None],
) -> TrainedDrafter:
    """Train a head on the target's answers; `dataset` is answered if the settings name no trace.

    `tell` is given a line at every checkpoint.
    """
    plan = TimePlan.of(settings.minutes, settings.answer_minutes, monotonic_s())
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    target = pair.target.shell
    depth = target.config.get_text_config().num_hidden_layers
    medusa = settings.kind == "medusa"
    layers = (depth,) if medusa else settings.layers or default_layers(depth)
    require(
        all(0 <= layer <= depth for layer in layers),
        f"--layers names layers that the target does not have: {settings.layers}",
    )
    distillation = Distillation(settings, pair, layers, plan, report)
    folder = settings.save_to or trained_folder(
        pair.target.source, "medusa-head" if medusa else "head"
    )
    unfinished = UnfinishedDraft(folder)
    start = unfinished.start(resume=settings.resume)
    # What cannot be continued is refused before prompts are answered, which takes long.
    resumed = settings.resume and (start / CONFIG).is_file()
    earlier_medusa = (
        _resumed_medusa(settings, pair, recipe.steps, start) if resumed and medusa else None
    )
    earlier = _resumed(settings, pair, layers, start) if resumed and not medusa else None
    store = distillation.answer(dataset)
    total = target.config.get_text_config().vocab_size
    head: HeadModel | MedusaModel
    loss: HeadLoss | MedusaLoss
    save: Callable[[Path], None]
    save_finished: Callable[[Path], None]
    if medusa:
        head = earlier_medusa or _new_medusa(settings, pair, recipe.steps, distillation, store)
        loss, save = MedusaLoss(head, recipe.decay, total), partial(save_medusa, head)
        save_finished = save
    else:
        head = earlier or _new_head(settings, pair, layers, distillation, store)
        loss, save = HeadLoss(head, recipe, total), partial(save_head, head)
        # Training goes on from what is kept on the way, which is therefore not rounded.
        save_finished = partial(save_head, head, in_4_bits=settings.in_4_bits)
    held_out = distillation.held_out(store, recipe.tokens_per_batch)
    optimizer = HeadOptimizer(head, recipe.learning_rate)
    best = distillation.train(
        head, optimizer, loss, held_out, store, recipe, unfinished, save, tell
    )
    save_finished(folder)
    unfinished.finish()
    live = None
    if dataset is not None:
        path = str(folder)
        with_head = load_pair(
            settings.target,
            None,
            others=[named(path)],
            device=settings.device,
            dtype=settings.dtype,
        )
        method: FixedK = Eagle(k=EVALUATED_STEPS, head=path)
        if medusa:
            method = FixedK(k=recipe.steps, drafter=f"medusa.path={path}+size={recipe.steps}")
        live = evaluate_live(with_head, method, method.k, dataset.prompts, plan.end_s)
    summary = summarise(head, best, len(head.d2t), live)
    recorded = {"kind": settings.kind, "recipe": asdict(recipe), **summary}
    distillation.record(folder, RECORD, store, recorded)
    return TrainedDrafter(folder, summary)


def _resumed(
    settings: HeadTrainingSettings, pair: Pair, layers: tuple[int, ...], folder: Path
) -> HeadModel:
    """Return the head of the folder, to train it further; raise SkitError if the settings ask for
    another one.
    """
    target = pair.target.shell
    head: HeadModel = with_weights(load_head(folder, target)).float().requires_grad_(True)
    config = head.config
    require(
        config.layers == layers,
        f"the head in '{folder}' reads layers {config.layers}, not {layers}: train without --resume",
    )
    require_same(
        folder,
        inner=(settings.inner, config.layer.intermediate_size),
        vocabulary=(settings.vocabulary, config.draft_vocab_size),
        output_rows=(settings.output_rows, "target" if config.output_of_target else "trained"),
    )
    head.embed_tokens.requires_grad_(False)
    head.lm_head.requires_grad_(not config.output_of_target)
    return head


def _new_head(
    settings: HeadTrainingSettings,
    pair: Pair,
    layers: tuple[int, ...],
    distillation: Distillation,
    store: TrainingAnswerStore,
) -> HeadModel:
    """Return an untrained head of the sizes that the settings name."""
    target = pair.target.shell
    layer = layer_config(target, settings.inner)
    # fc, the attention over twice the width, and the feed-forward part, as in `HeadModel`.
    width = layer.hidden_size
    kv = layer.num_key_value_heads * layer.head_dim
    body = (
        3 * width * width
        + 2 * width * (width + 2 * kv)
        + width * width
        + 3 * width * layer.intermediate_size
    )
    tokens = _drafted_tokens(settings, pair, distillation, store, body)
    own_output = settings.output_rows != "target"
    label = pair.target.source.label
    return new_head(target, tokens, settings.seed, layers, label, layer, own_output).float()


def _resumed_medusa(
    settings: HeadTrainingSettings, pair: Pair, heads: int, folder: Path
) -> MedusaModel:
    """Return the Medusa heads of the folder, to train them further; raise SkitError if the settings
    ask for others.
    """
    target = pair.target.shell
    model = load_medusa(folder, sizes_of(target)).to(target.device).float().requires_grad_(True)
    found = model.config.heads
    require(
        found == heads,
        f"the folder '{folder}' holds {found} heads, not {heads}: train without --resume",
    )
    require_same(folder, vocabulary=(settings.vocabulary, model.config.draft_vocab_size))
    return model


def _new_medusa(
    settings: HeadTrainingSettings,
    pair: Pair,
    heads: int,
    distillation: Distillation,
    store: TrainingAnswerStore,
) -> MedusaModel:
    """Return untrained Medusa heads of the sizes that the settings name."""
    target = pair.target.shell
    # A head's block; what a step costs by the vocabulary is its rows of the output matrix, as of
    # any draft.
    body = pair.target.text_config.hidden_size**2
    tokens = _drafted_tokens(settings, pair, distillation, store, body)
    return new_medusa(target, tokens, heads, pair.target.source.label).float()


def _drafted_tokens(
    settings: HeadTrainingSettings,
    pair: Pair,
    distillation: Distillation,
    store: TrainingAnswerStore,
    body: int,
) -> Tensor:
    """Return the tokens that a head will draft, whose weights without the output matrix are
    `body`.
    """
    text = pair.target.text_config
    counts = distillation.token_counts(store)
    active = (
        pair.target.shell.num_parameters(exclude_embeddings=True)
        + text.vocab_size * text.hidden_size
    )
    size = settings.vocabulary or choose_size(
        counts, text.vocab_size, text.hidden_size, body, active
    )
    return choose_tokens(counts, size, text.vocab_size, pair.eos_ids)


EVALUATED_STEPS = 5


def layer_config(target: PreTrainedModel, inner: int | None = None) -> LlamaConfig:
    """Return the configuration of a head's single layer: the sizes of the target's layers, but for
    the `inner` one.
    """
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        num_hidden_layers=1,
        intermediate_size=inner
        or getattr(config, "intermediate_size", None)
        or 4 * config.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        tie_word_embeddings=False,
    )


def new_head(
    target: PreTrainedModel,
    tokens: Tensor,
    seed: int,
    layers: tuple[int, ...],
    verifier: str = "",
    layer: LlamaConfig | None = None,
    own_output: bool = True,
) -> HeadModel:
    """Return an untrained head that drafts the given tokens; its embedding is the target's own.

    Without `own_output` its output matrix stays the target's. The head then begins as the target's
    last states are read by the target itself, so that it need not learn what the rows mean.
    """
    torch.manual_seed(seed)
    head = HeadModel(
        HeadConfig(
            layer or layer_config(target),
            len(tokens),
            target.config.hidden_size,
            layers,
            verifier,
            output_of_target=not own_output,
        )
    )
    head.to(target.device)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.02 if "proj" in name else weight.shape[1] ** -0.5)
        head.d2t.copy_(tokens - torch.arange(len(tokens)))
        head.embed_tokens.weight.copy_(weight_of(target.get_input_embeddings().weight))
        head.lm_head.weight.copy_(weight_of(rows_of(target.get_output_embeddings().weight, tokens)))
        if not own_output:
            _read_as_target(head, target)
    head.embed_tokens.requires_grad_(False)
    head.owns_embedding = False
    head.lm_head.requires_grad_(own_output)
    return head


def _read_as_target(head: HeadModel, target: PreTrainedModel) -> None:
    """Let a new head's state be the target's highest state that it reads, normalised as the target
    does.
    """
    width = head.config.target_hidden_size
    head.fc.weight.mul_(START_NOISE)
    head.fc.weight[:, 2 * width :] += torch.eye(width, device=head.device)
    head.norm.weight.copy_(weight_of(target.get_decoder().norm.weight))


START_NOISE = 0.2
"""What a head that reads as its target begins with beside the identity, as a share of the usual."""


class HeadLoss:
    """The loss of a head on a batch of answers, and its acceptance on held-out ones."""

    def __init__(self, head: HeadModel, recipe: HeadRecipe, total: int) -> None:
        self._head = head
        self._recipe = recipe
        self._index_of = index_of(head.tokens.cpu(), total).to(head.device)
        self._in_bf16 = faster_in_bf16(head.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss, in which each further draft step counts less by the recipe's `decay`."""
        total = torch.zeros((), device=self._head.device)
        rates = []
        drafted = self._steps(answers, self._recipe.steps, self._in_bf16)
        for step, (logits, targets, _) in enumerate(drafted):
            total = total + self._recipe.decay**step * targets.loss(logits)
            rates.append(float(targets.hits(logits).float().mean()))
        return LossReport(total, rates)

    def acceptance(
        self, batches: Sequence[list[Answer]], steps: int = EVALUATED_STEPS
    ) -> RoundAcceptance:
        """Return the acceptance on greedy answers, each round beginning where the one before
        ended.
        """
        counts: list[int] = []
        for batch in batches:
            # The first step fills every answer token but the first, and each later step one fewer.
            hits = torch.zeros(steps, len(batch), max(map(len, batch)), dtype=torch.bool)
            drafted = self._steps(batch, steps, in_bf16=False)  # as it will decode
            for step, (logits, targets, (rows, columns)) in enumerate(drafted):
                hits[step, rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(hits[:, row, len(answer.prompt) : len(answer)], 1)
        return RoundAcceptance.of(counts, steps)

    def _steps(
        self, answers: list[Answer], steps: int, in_bf16: bool
    ) -> "list[tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]]":
        """Return for each draft step its logits, the targets, and where in [answers, tokens] the
        drafted tokens are.
        """
        head = self._head
        batch = TextBatch.of(answers, head.device)
        assert batch.states is not None
        # Row i of the head reads the state of token i and token i + 1, and drafts token i + 2.
        targets = torch.full(batch.tokens.shape, -1, device=head.device)
        targets[batch.rows, batch.columns] = torch.arange(len(batch.rows), device=head.device)
        # The first token of an answer is never drafted: the head has yet to see a state of the
        # target.
        for row, answer in enumerate(answers):
            targets[row, len(answer.prompt)] = -1
        targets = targets[:, 2:]
        reduced = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        # Rows before the first that any text learns from matter as inputs of later draft steps
        # only.
        first = max(0, int((targets >= 0).any(0).int().argmax()) - steps + 1)
        results = []
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=in_bf16):
            fused = head.fc(batch.states[:, :-1].to(head.dtype))
            for step, state in enumerate(unroll(head, batch.tokens[:, :-1], fused, steps, first)):
                wanted = targets[:, first + step :]
                rows, columns = torch.nonzero(wanted >= 0, as_tuple=True)
                logits = head.lm_head(head.norm(state[rows, columns])).float()
                places = rows, columns + first + step + 2
                results.append((logits, reduced[wanted[rows, columns]], places))
        return results


class HeadOptimizer:
    """Muon for the matrices of the layer, AdamW for all other weights."""

    def __init__(self, head: HeadModel | MedusaModel, learning_rate: float) -> None:
        inner = [
            w
            for n, w in head.named_parameters()
            if w.ndim == 2 and w.requires_grad and "lm_head" not in n
        ]
        outer = [
            w
            for n, w in head.named_parameters()
            if w.requires_grad and (w.ndim != 2 or "lm_head" in n)
        ]
        self._weights = inner + outer
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (
                torch.optim.Muon(inner, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                learning_rate,
            ),
            (torch.optim.AdamW(outer, betas=(0.9, 0.95), weight_decay=0.0), learning_rate / 4),
        ]

    def step(self, share: float) -> None:
        """Update the weights with `share` of the learning rate."""
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimizer, learning_rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * learning_rate
            optimizer.step()
            optimizer.zero_grad()


def unroll(
    head: HeadModel, tokens: Tensor, fused: Tensor, steps: int, first: int = 0
) -> Iterator[Tensor]:
    """Yield the head's states [texts, rows - first - j, hidden] of each draft step j.

    This is the training-time test of EAGLE-3 (Li et al. 2025, section 3). Row i stands for the token at i + 1 of
    `tokens` [texts, rows + 1] and predicts the token at i + 2. In the first step it reads the target's fused features
    of the token at i, `fused` [texts, rows, hidden]; in step j it reads the state of row i - 1 in step j - 1, as if
    drafting had begun j tokens earlier. Step j yields the rows from first + j on.
    """
    layer = head.layer
    attention = head.layer.self_attn
    rows = fused.shape[1]
    embedded = head.embed_tokens(tokens[:, 1 : rows + 1])
    cosines, sines = head.rotary_emb(fused, torch.arange(rows, device=fused.device)[None])
    keys = list[Tensor]()
    values = list[Tensor]()
    state = fused
    begin = 0
    for step in range(steps):
        read, residual = layer.enter(embedded[:, begin:], state)
        query, key, value = attention.project(read, (cosines[:, begin:], sines[:, begin:]))
        keys.append(_repeat_heads(key, query))
        values.append(_repeat_heads(value, query))
        state = layer.leave(residual, _attend(query, keys, values))
        # The first step computes all rows, since later steps attend to its keys and values.
        state = state[:, first:] if step == 0 else state
        yield state
        state = state[:, :-1]
        begin = first + step + 1


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend as in drafting: row i of step j sees the first step's rows up to i - j, and its own
    chain after that.

    The chain is one row of each later step, so that these scores are dot products and no matrix
    products.
    """
    step = len(keys) - 1
    rows = query.shape[2]
    all_rows = keys[0].shape[2]
    query = query * query.shape[-1] ** -0.5
    # The first query row has position all_rows - rows, and its chain began `step` rows before.
    hidden = torch.ones(rows, all_rows, dtype=torch.bool, device=query.device).triu(
        all_rows - rows - step + 1
    )
    scores = [(query @ keys[0].transpose(-1, -2)).masked_fill(hidden, -torch.inf)]
    scores += [(query * key[:, :, :rows]).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat(scores, -1).float().softmax(-1).to(query.dtype)
    mixed = weights[..., :all_rows] @ values[0]
    for column, value in enumerate(values[1:], all_rows):
        mixed = mixed + weights[..., column, None] * value[:, :, :rows]
    return mixed


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Return keys or values repeated so that there is one head per query head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)
