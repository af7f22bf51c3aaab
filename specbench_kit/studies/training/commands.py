"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("train-predictor")(
    CommandEntry(
        "specbench_kit.studies.training.predictor_command:train_predictor",
        "Train and measure what methods need",
        "Train rejection predictors for `--method wisp` and report if they pay off.",
        "Prompts come from the dataset's train split or, if it has none, from the 30% of its prompts that a hash "
        "reserves for training; benchmarks with the predictor leave these prompts out.",
        example="skit train-predictor --limit 200",
    )
)
commands.register("train-head")(
    CommandEntry(
        "specbench_kit.studies.training.head_command:train_head",
        "Train and measure what methods need",
        "Train an EAGLE head for `--method eagle` and `drafter=head` on the target's own answers.",
        "Prompts come from each dataset's train split or, if it has none, from the 30% of its prompts that a hash "
        "reserves for training. The answers are kept for later trainings.",
        example="skit train-head --target models/large --minutes 30",
    )
)
commands.register("train-draft")(
    CommandEntry(
        "specbench_kit.studies.training.draft_command:train_draft",
        "Train and measure what methods need",
        "Train a small draft model out of some of a target's layers, on the target's own answers.",
        "It drafts the most frequent tokens only and reads the target's embedding. Prompts come from each "
        "dataset's train split or, if it has none, from the 30% of its prompts that a hash reserves for training.",
        example="skit train-draft --target models/large --minutes 30",
    )
)
