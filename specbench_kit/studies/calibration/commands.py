"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("calibrate")(
    CommandEntry(
        "specbench_kit.studies.calibration.command:calibrate",
        "Latencies",
        "Fit what a step costs to the log of a real server, and save it as a profile.",
        "The first third of the log is fitted by simulating it; the rest tells how far simulated times are off.",
        example="skit calibrate log.jsonl --gpu rtx4090 --target llama3.1-8b",
    )
)
