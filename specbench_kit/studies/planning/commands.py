"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("plan")(
    CommandEntry(
        "specbench_kit.studies.planning.command:plan",
        "Many devices",
        "Find the cheapest fleet of GPUs that keeps a promise to many devices, and what else it would cost.",
        "Cards, how many of them hold a copy of the model, bits per weight, method, scheduler and batch limit are "
        "chosen by the analytic model of step times first and by simulation then; the verdict takes at least five "
        "seeds.",
        example="skit plan --devices 5000 --class 4:0.5,8:0.5 --link 40ms --gpus a100,h100,l40s",
    )
)
