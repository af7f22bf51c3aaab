"""The settings of `skit calibrate`. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import FIRST, MODELS, OUTPUT, RUN, SERVER, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSettings:
    """The log, the card and the model that it is of, and the settings of the engine that wrote
    it.
    """

    log: Annotated[
        Path,
        Option(
            "Log of a server: LLMServingSim's .jsonl of vLLM, details of vLLM's or SGLang's benchmark with start "
            "times, AIPerf's profile_export.jsonl, GenAI-Perf's profile_export.json, GuideLLM's benchmarks.json, "
            "or a BLIS trace (.csv).",
            RUN,
            argument=True,
        ),
        FIRST,
    ]
    gpu: Annotated[
        str, Option("Device card of the server, such as a100, or a .toml file.", MODELS), FIRST
    ]
    target: Annotated[
        str,
        Option("Model of the server: an architecture card, or a .toml file with one.", MODELS),
        FIRST,
    ]
    dtype: Annotated[
        str, Option("Number format of the weights; auto is the device's own.", MODELS)
    ] = "auto"
    cards: Annotated[
        int, Option("Number of cards that hold the model (tensor parallel).", MODELS), FIRST
    ] = 1
    interconnect: Annotated[
        str | None,
        Option(
            "Interconnect between the --cards: nvlink3, nvlink4, pcie5, pcie4 or pcie3.", MODELS
        ),
    ] = None
    expert_parallel: Annotated[
        bool,
        Option(
            "Each of the --cards has experts of its own, instead of a part of every expert.", MODELS
        ),
    ] = False
    max_batch: Annotated[
        int, Option("The engine's largest number of requests in a step.", SERVER), FIRST
    ] = 256
    batch_tokens: Annotated[
        int, Option("The engine's largest number of new tokens in a step.", SERVER), FIRST
    ] = 2048
    kv_tokens: Annotated[
        int | None,
        Option(
            "The engine's memory for KV in tokens; the default is what the weights leave free.",
            SERVER,
        ),
        FIRST,
    ] = None
    name: Annotated[
        str | None,
        Option("Name of the profile; the default is made of model and device.", OUTPUT),
        FIRST,
    ] = None
    save_to: Annotated[
        Path | None,
        Option("File to write (.toml); the default is one in your folder of profiles.", OUTPUT),
        FIRST,
    ] = None

    def __post_init__(self) -> None:
        require(self.max_batch >= 1, f"--max-batch must be at least 1, not {self.max_batch}")
        require(
            self.batch_tokens >= 1, f"--batch-tokens must be at least 1, not {self.batch_tokens}"
        )
        require(
            self.kv_tokens is None or self.kv_tokens >= 1,
            f"--kv-tokens must be at least 1, not {self.kv_tokens}",
        )
        if self.cards < 1 or (self.cards > 1) != (self.interconnect is not None):
            raise SkitError(
                "--cards above 1 needs the --interconnect between the cards, and a single card has none"
            )
        require(
            not self.expert_parallel or self.cards > 1, "--expert-parallel needs several --cards"
        )
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(
                f"--name '{self.name}' cannot be a file's name: use letters, digits, dots and dashes"
            )
        if self.save_to is not None and self.save_to.suffix != ".toml":
            raise SkitError(f"--save-to must name a .toml file, not {self.save_to}")
