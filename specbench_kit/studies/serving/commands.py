"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("simulate")(
    CommandEntry(
        "specbench_kit.studies.serving.command:simulate",
        "Many devices",
        "Simulate many devices that draft for one server: which devices meet their SLO, and why the others miss "
        "it.",
        example="skit simulate --acceptance qwen2.5-coder --method fixed-k --devices 50,100",
    )
)
commands.register("capacity")(
    CommandEntry(
        "specbench_kit.studies.serving.command:capacity",
        "Many devices",
        "Find the largest number of devices that one server can promise a token speed to.",
        example="skit capacity --acceptance qwen2.5-coder --method fixed-k",
    )
)
