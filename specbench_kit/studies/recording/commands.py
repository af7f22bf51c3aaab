"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("record")(
    CommandEntry(
        "specbench_kit.studies.recording.record_command:record",
        "Benchmark",
        "Record a trace: the target's greedy answers and, at every position, the draft model's proposal.",
        example="skit record --limit 16 --max-new-tokens 64 --out trace.parquet",
    )
)
commands.register("measure-ranks")(
    CommandEntry(
        "specbench_kit.studies.recording.ranks_command:measure_ranks",
        "Train and measure what methods need",
        "Measure how often the target's token is the draft model's 1st, 2nd, ... choice, for `--method sequoia`.",
        example="skit measure-ranks --target bundled --limit 20",
    )
)
