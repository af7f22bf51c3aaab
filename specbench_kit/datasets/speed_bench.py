"""SPEED-Bench: prompts of eleven domains, and long ones in three degrees of predictability."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets
from specbench_kit.datasets.turns import user_turns

PATH = "nvidia/SPEED-Bench"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
HOW = (
    "a placeholder stands for the prompt, since its source forbids to pass it on: have examples/specdec_bench/"
    "prepare_data.py of NVIDIA's Model Optimizer write the whole into the data directory (--output_dir)"
)


@datasets.register("speed-bench")
class SpeedBench(Dataset):
    """Fields `question_id`, `category`, and `turns` or, as other tools prepare it, `messages`.

    On the hub about half of the prompts are placeholders, which are refused rather than decoded.
    """

    summary = "880 prompts of eleven domains, 80 each (the qualitative split)"
    paper = "Abramovich et al. 2026 (arXiv 2604.09557)"
    local = "speed/qualitative/test.parquet"
    hub = Hub(PATH, "test", "qualitative")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        turns = user_turns(row["messages"] if row.get("messages") else row["turns"])
        if any(isinstance(turn, str) and turn.startswith(PLACEHOLDER) for turn in turns):
            raise ValueError(HOW)
        return Prompt(str(row["question_id"]), row["category"], turns)


@datasets.register("speed-bench-1k")
class SpeedBench1k(SpeedBench):
    """The same fields; the category says how predictable the answer is."""

    summary = "1,536 prompts of about 1,000 tokens, of low, mixed and high entropy"
    local = "speed/throughput_1k/test.parquet"
    hub = Hub(PATH, "test", "throughput_1k")


@datasets.register("speed-bench-2k")
class SpeedBench2k(SpeedBench):
    """The same with longer prompts."""

    summary = "1,536 prompts of about 2,000 tokens, of low, mixed and high entropy"
    local = "speed/throughput_2k/test.parquet"
    hub = Hub(PATH, "test", "throughput_2k")


@datasets.register("speed-bench-8k")
class SpeedBench8k(SpeedBench):
    """The same with longer prompts."""

    summary = "1,536 prompts of about 8,000 tokens, of low, mixed and high entropy"
    local = "speed/throughput_8k/test.parquet"
    hub = Hub(PATH, "test", "throughput_8k")


@datasets.register("speed-bench-16k")
class SpeedBench16k(SpeedBench):
    """The same with longer prompts."""

    summary = "1,536 prompts of about 16,000 tokens, of low, mixed and high entropy"
    local = "speed/throughput_16k/test.parquet"
    hub = Hub(PATH, "test", "throughput_16k")


@datasets.register("speed-bench-32k")
class SpeedBench32k(SpeedBench):
    """The same with longer prompts."""

    summary = "1,536 prompts of about 32,000 tokens, of low, mixed and high entropy"
    local = "speed/throughput_32k/test.parquet"
    hub = Hub(PATH, "test", "throughput_32k")
