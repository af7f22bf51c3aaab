"""A policy of the kit as vLLM's drafter: `{"method": "custom_class", "model":
"specbench_kit.engines.vllm.Drafts"}`.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from torch import nn

from specbench_kit.engines.drafter import EngineDrafter
from specbench_kit.engines.options import EngineFacts, EngineOptions
from specbench_kit.engines.rows import EngineRow, Tokens


class ModelConfig(Protocol):
    """The fields of vLLM's configuration of the target that are read here."""

    model: str
    dtype: object
    max_model_len: int

    def get_vocab_size(self) -> int:
        """Return the size of the target's vocabulary."""

    def try_get_generation_config(self) -> Mapping[str, object]:
        """Return the target's generation config."""


class SchedulerConfig(Protocol):
    """The field of vLLM's scheduler that is read here."""

    max_num_seqs: int


class SpeculativeConfig(Protocol):
    """The field of vLLM's `--speculative-config` that is read here."""

    num_speculative_tokens: int


class DeviceConfig(Protocol):
    """The field of vLLM's device that is read here."""

    device_type: str


class ParallelConfig(Protocol):
    """The field of vLLM's parallel processes that is read here."""

    rank: int


class VllmConfig(Protocol):
    """The parts of vLLM's configuration that are read here."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    speculative_config: SpeculativeConfig
    device_config: DeviceConfig
    parallel_config: ParallelConfig


class Drafts:
    """A proposer: vLLM makes it with its configuration, and calls `propose` after every step."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.drafter = EngineDrafter(
            _facts(vllm_config), EngineOptions.from_environment(os.environ)
        )

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Tokens,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return the draft tokens of every row.

        Row i of `token_ids_cpu` holds `num_tokens_no_spec[i]` tokens, of which those of
        `sampled_token_ids[i]` are new: none where a prompt, or the text of a preempted request, is
        not processed whole yet.
        """
        rows = [
            EngineRow(token_ids_cpu[number, : int(num_tokens_no_spec[number])], len(sampled))
            for number, sampled in enumerate(sampled_token_ids)
        ]
        return self.drafter.speculator.propose(rows)

    def load_model(self, model: nn.Module) -> None:
        """Watch the target's forwards, which tell when a step begins after the engine was idle."""
        model.register_forward_pre_hook(lambda *_: self.drafter.speculator.step_begins())


def _facts(config: VllmConfig) -> EngineFacts:
    model = config.model_config
    eos = model.try_get_generation_config().get("eos_token_id")
    return EngineFacts(
        engine="vllm",
        version=_version(),
        target=model.model,
        dtype=str(model.dtype).removeprefix("torch."),
        device=config.device_config.device_type,
        vocabulary=model.get_vocab_size(),
        context=model.max_model_len,
        batch_size=config.scheduler_config.max_num_seqs,
        longest_draft=config.speculative_config.num_speculative_tokens,
        eos_ids=frozenset(eos if isinstance(eos, list) else [eos] if isinstance(eos, int) else []),
        recorded=config.parallel_config.rank == 0,
    )


def _version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "unknown"
