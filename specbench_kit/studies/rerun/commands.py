"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("rerun")(
    CommandEntry(
        "specbench_kit.studies.rerun.command:rerun",
        "Results",
        "Repeat a run from its run.json and report what differs: environment, outputs, rounds and time.",
    )
)
