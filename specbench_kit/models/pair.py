"""Load a target, a draft and the tokenizer they share."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import (
    BUNDLED,
    SYNTHETIC,
    ModelSource,
    from_pretrained,
    locate,
    read_config,
)
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.draft_library import HEAD, find, find_draft
from specbench_kit.models.drafts.reduced import (
    exit_early,
    exit_layer,
    is_reduced,
    is_reduced_draft,
    load_draft,
    load_draft_for,
)
from specbench_kit.models.executors.base import Executor, executors, make_executor
from specbench_kit.models.executors.native_narrow import require_fast
from specbench_kit.models.generation import end_tokens, ignored_settings
from specbench_kit.models.gguf import gguf_checksum
from specbench_kit.models.heads.files import load_any_head, read_embedding
from specbench_kit.models.memory import require_free_memory
from specbench_kit.models.placement import Placement, require_memory
from specbench_kit.models.runner import Runner
from specbench_kit.models.shell import OWN_KERNELS, hold_scale, make_shell, scaled_from
from specbench_kit.models.synthetic import load_synthetic
from specbench_kit.models.vocabulary_map import (
    TranslatingRunner,
    VocabularyMap,
    differ,
    map_vocabulary,
    require_room,
    unshared,
)
from specbench_kit.models.weights.stored import with_weights

ONE_DEVICE = Placement()
AUTO = "auto"
"""The device, data type or executor that suits the machine and the model."""
RandomModel = Callable[..., Any]
"""Takes the name of shapes, a `device` and a `dtype`, and returns a model with random weights."""
SLACK = 64
"""Tokens of a slot beyond prompt and output, for drafts that reach past the end of the output."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A transformers causal LM and its origin."""

    shell: Any
    """The model, or its shell, whose weights are still in their files: see
    `models/weights/stored.py`.
    """
    source: ModelSource
    executor: str = AUTO
    """The name of the executor that runs it, or the fastest that supports it."""
    translation: VocabularyMap | None = None
    """What a draft model with a vocabulary of its own shares with the target."""
    exit_layer: int | None = None
    """The number of the target's layers that a draft model consists of, if it is the target
    itself.
    """

    @property
    def model(self) -> Any:
        """Return the model with its weights in memory, which takes time and room if they were
        not.
        """
        return with_weights(self.shell)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.shell.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.shell.dtype
        return dtype

    @property
    def text_config(self) -> Any:
        return self.shell.config.get_text_config()

    @property
    def context(self) -> int:
        """Return the context length, up to where the model would rescale positions; a million
        without a limit.
        """
        named = getattr(self.text_config, "max_position_embeddings", None) or 1 << 20
        return min([int(named), *scaled_from(self.text_config)])

    def describe(self, hash_folder: Callable[[Path], str]) -> ModelDescription:
        """Return name, content hash (for hub models the commit) and size, as a run records them."""
        folder = self.source.folder
        weights = self.shell.name if self.source.synthetic else hash_folder(folder)
        weights += f"-exit{self.exit_layer}" if self.exit_layer else ""
        executor = Executor if self.executor == AUTO else executors.get(self.executor)
        bits, first = executor.weight_bits, executor.first_tokens
        name = f"{self.source.label} in {bits} bits" if bits else self.source.label
        weights += f"-{bits}bit" if bits else ""
        return ModelDescription(
            name=f"{name}, first {first:,} tokens" if first else name,
            hash=f"{weights}-first{first}" if first else weights,
            parameters=self.shell.num_parameters(),
            gguf_sha256=gguf_checksum(folder) or None,
            shared_vocabulary=round(self.translation.share, 6) if self.translation else None,
        )

    @property
    def named_executor(self) -> str | None:
        """Return the name of the executor that was asked for; None for the fastest."""
        return None if self.executor == AUTO else self.executor

    def runner(
        self, slots: int, capacity: int, vocabulary: int | None, executor: str = AUTO
    ) -> Runner:
        """Return a runner on the model's executor, or on the named one."""
        name = self.named_executor if executor == AUTO else executor
        if name is None:
            require_fast(self.shell)
        if self.translation is not None and vocabulary is not None:
            # Its own tokens of a text may be more than the target's, of which `capacity` is the
            # number.
            own = make_executor(self.shell, slots, min(capacity * 3 // 2, self.context), None, name)
            return TranslatingRunner(own, self.translation, vocabulary)
        return Runner(make_executor(self.shell, slots, capacity, vocabulary, name))


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its draft models, with one vocabulary or translated; `draft` is None if no
    method needs one.
    """

    target: LoadedModel
    draft: LoadedModel | None
    tokenizer: Any
    masked: tuple[int, ...] = ()
    """Added tokens that only some of the tokenizers have: the target may produce them, a draft
    never does.
    """
    others: Mapping[str, LoadedModel] = field(default_factory=dict)
    """Further draft models, by the name under which they were requested."""

    @property
    def needed_draft(self) -> LoadedModel:
        """Return the draft model; its absence is an error of one line."""
        if self.draft is None:
            raise SkitError(
                "no draft model was loaded, since no method here drafts with one: name a method that does"
            )
        return self.draft

    def require_head(self, name: str) -> None:
        """Raise SkitError, with the way to get it, if a head does not exist."""
        find(name, self.target.source)

    @property
    def loaded(self) -> dict[str, LoadedModel]:
        """Return all models by role or name."""
        return {
            "target": self.target,
            **({"draft": self.draft} if self.draft else {}),
            **self.others,
        }

    @property
    def eos_ids(self) -> frozenset[int]:
        """Return the tokens that end an answer of the target."""
        return end_tokens(self.target.shell.generation_config.eos_token_id, self.tokenizer)

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens that all models know, without the padding of their output
        layers.

        Draft models with a vocabulary of their own are translated, and do not count.
        """
        known = [loaded for loaded in self.loaded.values() if loaded.translation is None]
        return min(int(loaded.text_config.vocab_size) for loaded in known)

    def describe(self, hash_folder: Callable[[Path], str]) -> dict[str, ModelDescription]:
        """Describe all models by their roles, as a run records them."""
        ignored = ignored_settings(self.target.shell.generation_config)
        target = self.target.describe(hash_folder)
        models = {"target": structs.replace(target, ignored_settings=ignored or None)}
        if self.draft is not None:
            draft = self.draft.describe(hash_folder)
            models["draft"] = structs.replace(draft, masked_tokens=len(self.masked) or None)
        return models | {name: model.describe(hash_folder) for name, model in self.others.items()}

    def context_note(self, length: int) -> str:
        """Return a line on the draft model that holds fewer tokens than the target and than
        `length`; "" if none.
        """
        drafts = {name: loaded for name, loaded in self.loaded.items() if name != "target"}
        name, shortest = min(
            drafts.items(), key=lambda item: item[1].context, default=("", self.target)
        )
        if shortest.context >= min(length, self.target.context):
            return ""
        return (
            f"SHORT CONTEXT: {'the draft model' if name == 'draft' else name} holds {shortest.context} tokens and the "
            f"target {self.target.context}: requests of more than {shortest.context} tokens fail, and the longest here "
            f"may have {length}; shorten --max-new-tokens or the prompts, or choose another draft"
        )

    def runners(self, slots: int, length: int, executor: str = AUTO) -> tuple[Runner, Runner]:
        """Return the runners of target and draft of `all_runners`."""
        runners = self.all_runners(slots, length, executor)
        return runners["target"], runners["draft"]

    def all_runners(self, slots: int, length: int, executor: str = AUTO) -> dict[str, Runner]:
        """Return a runner per model whose slots hold `length` tokens and a draft, at most the
        context.

        Each uses its model's executor or, heads excepted, the named one.
        """
        # A list, since a pair with its target on a server may hold no model at all.
        size = min([length + SLACK, *(loaded.context for loaded in self.loaded.values())])
        runners = {
            name: loaded.runner(
                slots, size, self.vocabulary, executor if _is_choosable(name, loaded) else AUTO
            )
            for name, loaded in self.loaded.items()
        }
        for name, runner in runners.items():
            runner.masked = () if name == "target" or name.startswith(HEAD) else self.masked
        return runners


def _is_choosable(name: str, loaded: LoadedModel) -> bool:
    """Return whether a model runs on the executor that the user names; heads and reduced drafts
    have their own.
    """
    return not name.startswith(HEAD) and not is_reduced(loaded.shell)


def load_pair(
    target: str = BUNDLED,
    draft: str | None = AUTO,
    *,
    others: Sequence[str] = (),
    device: str = "auto",
    dtype: str = AUTO,
    executor: str = AUTO,
    placement: Placement = ONE_DEVICE,
    random_model: RandomModel | None = None,
) -> Pair:
    """Load all models; a missing model, or tokenizers that share no token, is an error of one line.

    A draft model whose vocabulary is not the target's is translated. `random_model` makes what
    computes the forwards of synthetic models with a shape.
    """
    target_device, draft_device = devices_of(device)
    target_executor, draft_executor = executors_of(executor)
    target_dtype = resolve_dtype(dtype, target_device, target_executor)
    draft_dtype = resolve_dtype(dtype, draft_device, draft_executor)
    heads = [name for name in others if name.startswith(HEAD)]
    drafts = [name for name in (draft, *others) if name is not None and name not in heads]
    target_source = locate(target, "target")
    sources = [target_source, *(_draft_source(name, target_source) for name in drafts)]
    if len({source.synthetic for source in sources}) > 1:
        raise SkitError(
            f"a synthetic model agrees with no other: give --target {SYNTHETIC} and --draft {SYNTHETIC}:ranks=0.8+0.1, "
            "or neither"
        )
    tokenizer = _load_tokenizer(target_source)
    tokenizers = [load_draft_tokenizer(source, target_source) for source in sources[1:]]
    named_tokenizers = list(zip(tokenizers, drafts, strict=True))
    foreign = [differ(tokenizer, own) for own in tokenizers]
    differing = [
        [] if apart else unshared(tokenizer, own, (target, name))
        for (own, name), apart in zip(named_tokenizers, foreign, strict=True)
    ]
    translations = [
        map_vocabulary(tokenizer, own, (target, name)) if apart else None
        for (own, name), apart in zip(named_tokenizers, foreign, strict=True)
    ]
    shell = _load_model(sources[0], target_device, target_dtype, placement, random_model)
    loaded = [LoadedModel(shell, sources[0], target_executor)]
    for name, source, translation in zip(drafts, sources[1:], translations, strict=True):
        shares_weights = exit_layer(name) is not None or _is_reduced(source)
        if shares_weights and draft_device != target_device:
            raise SkitError(
                f"draft model {name} computes with weights of the target, so that it cannot run on {draft_device}: "
                f"give --device {target_device}"
            )
        if (layers := exit_layer(name)) is not None:
            loaded.append(
                LoadedModel(
                    exit_early(loaded[0].shell, layers), source, draft_executor, exit_layer=layers
                )
            )
        elif _is_reduced(source):
            loaded.append(LoadedModel(load_draft(source.folder, loaded[0].shell), source))
        else:
            model = _load_model(source, draft_device, draft_dtype, placement, random_model)
            loaded.append(LoadedModel(model, source, draft_executor, translation))
    for place in {model.device for model in loaded}:
        here = [model for model in loaded if model.device == place]
        require_free_memory(
            {model.source.label: (model.shell, model.named_executor) for model in here}, place
        )
    for model in (own for own in loaded if own.translation is None):
        require_room(tokenizer, model.source.label, int(model.text_config.vocab_size))
    room = min(int(model.text_config.vocab_size) for model in loaded if model.translation is None)
    by_name = dict(zip(drafts, loaded[1:], strict=True)) | {
        name: _load_head(name, loaded[0]) for name in heads
    }
    return Pair(
        target=loaded[0],
        draft=None if draft is None else loaded[1],
        tokenizer=tokenizer,
        masked=tuple(sorted({token for tokens in differing for token in tokens if token < room})),
        others={name: by_name[name] for name in others},
    )


def devices_of(name: str) -> tuple[torch.device, torch.device]:
    """Return the devices of target and draft models that `TARGET+DRAFT`, or one name for both,
    stands for.
    """
    target, plus, draft = name.partition("+")
    device = resolve_device(target)
    return device, resolve_device(draft) if plus else device


def executors_of(name: str) -> tuple[str, str]:
    """Return the executors of target and draft models that `TARGET+DRAFT`, or one name for both,
    stands for.
    """
    target, plus, draft = name.partition("+")
    return target, draft if plus else target


def _draft_source(name: str, target: ModelSource) -> ModelSource:
    """Return the source of a draft model, which is the target's for one that exits early."""
    if exit_layer(name) is not None:
        return replace(target, label=f"{target.label}/{name}")
    return find_draft(name, target)


def load_model(
    source: ModelSource, *, device: str = AUTO, dtype: str = AUTO, executor: str = AUTO
) -> LoadedModel:
    """Load one model without its tokenizer; a missing one is an error of one line."""
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device, executor)
    return LoadedModel(_load_model(source, torch_device, torch_dtype), source, executor)


def load_apart(
    source: ModelSource,
    target: ModelSource,
    *,
    device: str = AUTO,
    dtype: str = AUTO,
    executor: str = AUTO,
) -> LoadedModel:
    """Load a draft model without its target, which runs elsewhere.

    One that `skit train-draft` made for the target reads the embedding in the target's files on
    this machine.
    """
    if not _is_reduced(source):
        return load_model(source, device=device, dtype=dtype, executor=executors_of(executor)[1])
    torch_device = resolve_device(device)
    draft = load_draft_for(
        source.folder,
        read_config(target),
        lambda: read_embedding(target.complete_folder(weights=True)),
    )
    return LoadedModel(
        draft.to(device=torch_device, dtype=resolve_dtype(dtype, torch_device)), source
    )


def load_draft_tokenizer(source: ModelSource, target: ModelSource) -> Any:
    """Load the tokenizer of a draft model: the target's for one that `skit train-draft` made for
    it.
    """
    return _load_tokenizer(target if _is_reduced(source) else source)


def resolve_device(name: str) -> torch.device:
    """Return a torch device; `auto` is the first CUDA device, or the CPU without one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise SkitError(f"unknown device '{name}': use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SkitError(
            f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return device


def resolve_dtype(name: str, device: torch.device, executor: str = AUTO) -> torch.dtype:
    """Return a torch data type; `auto` is the executor's, or float32 on a CPU, for exact
    comparison, or bfloat16.
    """
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    dtypes["auto"] = torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in dtypes:
        raise SkitError(f"unknown dtype '{name}': use {', '.join(sorted(dtypes))}")
    if executor == AUTO or (held := executors.get(executor).dtype) is None:
        return dtypes[name]
    if name != AUTO and dtypes[name] != held:
        raise SkitError(
            f"executor '{executor}' holds weights in {_short(held)}: leave out --dtype {name}"
        )
    return held


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_reduced(source: ModelSource) -> bool:
    """Return whether a draft was made for its target by `skit train-draft`, whose tokenizer and
    embedding it uses.
    """
    return is_reduced_draft(source.folder)


def _load_tokenizer(source: ModelSource) -> Any:
    """Load a tokenizer; synthetic models use the bundled target's."""
    return from_pretrained(AutoTokenizer, locate(BUNDLED, "target") if source.synthetic else source)


def _load_head(name: str, target: LoadedModel) -> LoadedModel:
    source = find(name, target.source)
    return LoadedModel(load_any_head(source.folder, target.shell), source)


def _load_weights(source: ModelSource, options: Mapping[str, Any]) -> Any:
    """Load a model with transformers, and refuse files that do not fit its configuration in one
    line.

    Transformers would print a table of all weights, and leave those random that are missing.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    reporting = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, report = from_pretrained(
            AutoModelForCausalLM, source, weights=True, **options, **reporting
        )
    finally:
        logging.set_verbosity(verbosity)
    if report["mismatched_keys"]:
        name, stored, wanted = min(report["mismatched_keys"])
        raise SkitError(
            f"cannot load model '{source.label}': {name} has the shape {list(stored)} in its weights, but its "
            f"config.json asks for {list(wanted)}; use the config.json that came with the weights"
        )
    if report["missing_keys"]:
        raise SkitError(
            f"cannot load model '{source.label}': its weights lack {min(report['missing_keys'])}"
        )
    return model


def _load_model(
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    placement: Placement = ONE_DEVICE,
    random_model: RandomModel | None = None,
) -> Any:
    if source.synthetic:
        vocabulary = int(read_config(locate(BUNDLED, "target")).vocab_size)
        make_body = (
            partial(random_model, device=device, dtype=dtype) if random_model is not None else None
        )
        return load_synthetic(source, vocabulary, make_body)
    logging.disable_progress_bar()
    config = read_config(source)
    placed = placement.options(config, source.label, device)
    if (
        device.type == "cpu"
        and not placed
        and (shell := make_shell(source, config, dtype)) is not None
    ):
        hold_scale(shell)
        return shell.eval()
    model = _load_weights(source, {"config": config, "dtype": dtype, **OWN_KERNELS, **placed})
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the fused attention has no soft cap
    hold_scale(model)
    require_memory(model, source.label)
    return (model if placed else model.to(device)).eval().requires_grad_(False)
