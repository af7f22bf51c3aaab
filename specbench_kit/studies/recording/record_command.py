"""`skit record`: record a trace on which methods can be replayed without models."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import (
    command_line,
    load_dataset,
    require_all,
    require_file,
    say,
    say_target,
)
from specbench_kit.cli.interrupts import kept_when_interrupted
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import require
from specbench_kit.core.option import DECODING, FIRST, MODELS, OUTPUT, RUN, Option, select_fields
from specbench_kit.studies.recording.settings import RecordingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The models and prompts of a trace, and its file."""

    out: Annotated[Path, Option("Parquet file to write.", OUTPUT), FIRST] = Path(
        "results/trace.parquet"
    )
    share: Annotated[
        str | None,
        Option(
            "Licence under which others may use the file, such as CC-BY-4.0; stored in the file.",
            OUTPUT,
        ),
    ] = None
    text: Annotated[
        bool,
        Option(
            "Store the token ids of prompts and answers; without them, only statistics are stored.",
            OUTPUT,
        ),
        FIRST,
    ] = True
    train_split: Annotated[
        bool,
        Option(
            "Use prompts that no benchmark uses: the dataset's train split or, if it has none, a part chosen by hash.",
            RUN,
        ),
    ] = False
    max_draft: Annotated[
        int, Option("Number of draft tokens recorded at every position.", DECODING), FIRST
    ] = 8
    drafter: Annotated[
        str,
        Option(
            "Drafter whose drafts are recorded: model, head, suffix, prompt-lookup or first-of, with options as in "
            "head.path=FOLDER. Only model needs --draft.",
            MODELS,
        ),
        FIRST,
    ] = "model"
    trees: Annotated[
        tuple[str, ...],
        Option(
            "Method whose trees the trace holds: name or name:key=value,...; may be given several times.",
            DECODING,
        ),
    ] = ()
    trees_for: Annotated[
        tuple[str, ...],
        Option(
            "Deployment by whose times the methods of --trees decide; may be given several times.",
            DECODING,
        ),
    ] = ("specedge", "wan", "wisp-roofline")
    limit: Annotated[common.Limit, FIRST] = None
    minutes: common.Minutes = None
    target: Annotated[common.Target, FIRST] = "auto"
    draft: Annotated[common.Draft, FIRST] = "auto"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    executor: common.ExecutorName = "auto"
    device_map: common.DeviceMap = ""
    max_memory: common.MaxMemory = ""
    max_new_tokens: Annotated[common.MaxNewTokens, FIRST] = 128
    batch_size: common.BatchSize = 8
    seed: common.Seed = 0
    resume: Annotated[
        bool,
        Option(
            "Continue an interrupted recording of the same file, whose finished requests were kept.",
            OUTPUT,
        ),
        FIRST,
    ] = False
    strict: common.Strict = False

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"--max-draft must be at least 1, not {self.max_draft}")
        require(
            self.text or not self.trees,
            "the trees of a trace consist of token ids: leave out --trees or --no-text",
        )
        require(
            self.share is None or bool(self.share.strip()),
            "--share names a licence, such as CC-BY-4.0",
        )


def record(options: RecordOptions, dataset: DatasetOptions) -> None:
    """Record the trace and print its path and size."""
    from rich.console import Console

    require_file(options.out, "trace.parquet")
    settings = RecordingSettings(
        argv=command_line(), **select_fields(RecordingSettings, asdict(options))
    )
    console = Console()
    prompts = load_dataset(
        dataset, options.limit, options.seed, console, to_train=options.train_split
    )
    say_target(console, options.target)
    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.studies.recording.trace import record as record_trace
    from specbench_kit.studies.recording.trace import recorded_drafter

    recorded_drafter(
        options.drafter, settings
    )  # an unknown one is an error before anything is loaded
    trees = None
    if options.trees:
        from specbench_kit.deployments.loading import load
        from specbench_kit.studies.recording.trace import TreeMethods

        trees = TreeMethods(options.trees, [load(name) for name in options.trees_for])
    with kept_when_interrupted(lambda: _kept(options.out)), counting_bar("recording") as report:
        trace = record_trace(
            settings,
            prompts,
            options.out,
            options.max_draft,
            report,
            options.share,
            options.text,
            options.drafter,
            options.resume,
            trees,
        )
    for line in trace.warnings:
        say(console, line, style="bold red")
    failed = f"; {trace.failed} did not fit the context" if trace.failed else ""
    shared_as = "" if options.share is None else f"; to be shared under {options.share}"
    text = "" if options.text else "; without text"
    if trace.partial:
        done = (
            f"{trace.requests} of {trace.planned} requests were recorded before --minutes were over"
        )
        onward = (
            "the same command with --resume records the others"
            if trace.resumable
            else "give more for the others"
        )
        say(console, f"PARTIAL RUN: {done}; {onward}", style="bold red")
    say(
        console,
        f"trace: {trace.path} ({trace.requests} requests, {trace.offsets} offsets{failed}{text}{shared_as})",
    )
    if options.strict:
        require_all({"the trace": trace.failed})


def _kept(path: Path) -> str:
    """Return what an interrupted recording leaves, which is nothing before its first request has
    finished.
    """
    from specbench_kit.traces.writing import UnfinishedTrace

    finished = len(UnfinishedTrace(path, ()).recorded)
    return (
        f"finished requests are kept ({finished}), --resume continues with the others"
        if finished
        else ""
    )
