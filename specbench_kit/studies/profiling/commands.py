"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("profile-verifier")(
    CommandEntry(
        "specbench_kit.studies.profiling.command:profile_verifier",
        "Latencies",
        "Profile a verifier: time WISP's 173 configurations, fit a latency model, check it against the roofline.",
        example="skit profile-verifier --target bundled --gpu a100",
    )
)
commands.register("profile-drafter")(
    CommandEntry(
        "specbench_kit.studies.profiling.command:profile_drafter",
        "Latencies",
        "Profile a pair of models: time draft steps and verifications, and fit AdaSpec's latency model; or derive "
        "both from the data sheet of a --gpu.",
        example="skit profile-drafter --target bundled",
    )
)
