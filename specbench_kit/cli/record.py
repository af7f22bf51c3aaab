"""`skit record`: write a trace that chain methods can be replayed on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import command_line, load_dataset, require_all, require_file, say
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import DECODING, OUTPUT, RUN, Option, select_fields
from specbench_kit.studies.bench.settings import BenchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What is recorded, and where to."""

    out: Annotated[Path, Option("The Parquet file to write.", OUTPUT)] = Path("results/trace.parquet")
    share: Annotated[
        str | None,
        Option("The licence under which others may use the file, such as CC-BY-4.0: it names it.", OUTPUT),
    ] = None
    text: Annotated[
        bool, Option("Whether token ids of prompts and answers are in the file; statistics always are.", OUTPUT)
    ] = True
    train_split: Annotated[
        bool, Option("DatasetOptions that bench does not ask: the train split, or else a part chosen by hash.", RUN)
    ] = False
    max_draft: Annotated[int, Option("Draft tokens recorded at every offset.", DECODING)] = 8
    limit: common.Limit = None
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    device_map: common.DeviceMap = ""
    max_memory: common.MaxMemory = ""
    max_new_tokens: common.MaxNewTokens = 128
    batch_size: common.BatchSize = 8
    seed: common.Seed = 0
    strict: common.Strict = False

    def __post_init__(self) -> None:
        if self.max_draft < 1:
            raise SkitError(f"--max-draft must be at least 1, not {self.max_draft}")
        if self.share is not None and not self.share.strip():
            raise SkitError("--share names a licence, such as CC-BY-4.0")

    def decoding(self) -> BenchSettings:
        """Of what is recorded."""
        shared = {name: value for name, value in select_fields(BenchSettings, asdict(self)).items() if name != "out"}
        return BenchSettings(methods=("autoregressive",), argv=command_line(), **shared)


def record(asked: Recording, prompts: DatasetOptions) -> None:
    """Record a trace: the target's greedy answers and, at every offset, what the draft model would propose."""
    from rich.console import Console

    require_file(asked.out)
    settings, console = asked.decoding(), Console()
    loaded = load_dataset(prompts, asked.limit, asked.seed, console, to_train=asked.train_split)
    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.studies.recording.trace import record as record_trace

    with counting_bar("recording") as report:
        done = record_trace(settings, loaded, asked.out, asked.max_draft, report, asked.share, asked.text)
    for line in done.warnings:
        say(console, line, style="bold red")
    failed = f"; {done.failed} did not fit the context" if done.failed else ""
    shared = "" if asked.share is None else f"; to be shared under {asked.share}"
    text = "" if asked.text else "; without text"
    say(console, f"trace: {done.path} ({done.requests} requests, {done.offsets} offsets{failed}{text}{shared})")
    if asked.strict:
        require_all({"the trace": done.failed})
