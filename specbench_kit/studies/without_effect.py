"""The options of each command that have no effect beside others.

The command and the function of `specbench_kit.api` that does the same refuse them before any work.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.core.addresses import is_host_and_port
from specbench_kit.core.option import OptionValues
from specbench_kit.core.without_effect import WithoutEffect, beside, unless

if TYPE_CHECKING:
    from specbench_kit.papers.experiment import Experiment

DATASET = ("dataset", "data_dir", "sample")
PROMPTS = (*DATASET, "limit")
DECODED = (*PROMPTS, "minutes")
"""Options of what a command decodes first."""
PAIR = ("target", "draft", "device", "dtype", "executor")
SAMPLING = ("top_p", "top_k")
LIVE = (
    *(*PAIR, "device_map", "max_memory", "max_new_tokens", "draft_top_n", "lossy", *SAMPLING),
    "constraint",
    *("draft_answers", "answer_rule", "launch", "force"),
    *("server", "link", "server_silence", "server_wait"),
    *("server_token", "server_ca", "server_name", "server_cert", "server_key"),
)
"""Options of a benchmark that concern decoding with models."""

RECORDED = "a trace has its own prompts, models and answers; leave out one of them"
GREEDY = "greedy decoding takes the most likely token; give a --temperature above 0 or leave it out"


def _greedily(given: OptionValues) -> str:
    return "" if given.get("temperature") else "without --temperature"


def _recordless(given: OptionValues) -> str:
    """Return that all acceptance is stated, by the options or by the preset that they change."""
    from specbench_kit.serving.options import RECORD

    preset = _experiment(given).options if "preset" in given else {}
    acceptance: Any = given.get("acceptance", preset.get("acceptance", (RECORD,)))
    acceptance = (
        (acceptance,) if isinstance(acceptance, str) else acceptance
    )  # Python may give one alone
    words = "with --acceptance" if "acceptance" in given else f"with --preset {given.get('preset')}"
    return "" if RECORD in acceptance else words


def _preset_of(command: str) -> Callable[[OptionValues], str]:
    """Return the case in which the preset is one of another command, whose options count."""

    def case(given: OptionValues) -> str:
        is_other = "preset" in given and _experiment(given).command == command
        return f"with --preset {given['preset']}" if is_other else ""

    return case


def _experiment(given: OptionValues) -> "Experiment":
    from specbench_kit.studies.serving.presets import presets

    return presets.get(str(given["preset"]))


def _synthetic(given: OptionValues) -> str:
    from specbench_kit.models.catalogue import SYNTHETIC

    return "with --target synthetic" if given.get("target") == SYNTHETIC else ""


def _files(given: OptionValues) -> str:
    servers: Any = given.get("servers", ())
    # What looks like the address of a server is told so when the settings are read.
    are_files = not any(
        "://" in server or is_host_and_port(server.rpartition("=")[2]) for server in servers
    )
    return "with result files" if are_files else ""


def _action(action: str) -> Callable[[OptionValues], str]:
    """Return the case of one action of a suite."""
    return lambda given: f"with {action}" if given.get("action") == action else ""


def _serverless(given: OptionValues) -> str:
    return "" if given.get("servers") else "without --server"


def _not_run(given: OptionValues) -> str:
    return "" if given.get("action") == "run" else f"with {given.get('action')}"


def _one_server(given: OptionValues) -> str:
    servers: Any = given.get("servers") or ("1",)
    return "with one server" if set(servers) <= {"1"} else ""


SERVING = (
    WithoutEffect(
        ("router",), _one_server, "there is nothing to choose; give --servers, or leave it out"
    ),
    WithoutEffect(
        (*DECODED, "target", "draft", "device", "dtype", "max_new_tokens", "max_draft"),
        _recordless,
        "nothing is recorded where the acceptance is stated; leave out one of them",
    ),
)
DISTILLATION = (
    WithoutEffect(
        (
            "datasets",
            "all_prompts",
            "data_dir",
            "sample",
            "limit",
            "max_new_tokens",
            "batch_size",
            "sampled_share",
            "answer_minutes",
        ),
        beside("trace"),
        "a trace has its own prompts and answers; leave out one of them",
    ),
    WithoutEffect(
        ("epochs",), beside("minutes"), "training ends with that time; leave out one of them"
    ),
)

WITHOUT_EFFECT: Mapping[str, Sequence[WithoutEffect]] = {
    "bench": (
        WithoutEffect((*DATASET, "minutes", *LIVE), beside("replay"), RECORDED),
        WithoutEffect(
            ("processes",), beside("replay"), "a trace was recorded in one; leave out one of them"
        ),
        WithoutEffect((*SAMPLING, "draft_top_n"), _greedily, GREEDY),
    ),
    "ab": (
        WithoutEffect(
            (
                *(
                    *DECODED,
                    "repeats",
                    "max_new_tokens",
                    "ignore_eos",
                    "temperature",
                    *SAMPLING,
                    "seed",
                    "concurrency",
                ),
                *(
                    "rate",
                    "turn",
                    "until_saturated",
                    "warm_up",
                    "tokenizer",
                    "timeout_s",
                    "retries",
                    "server_ca",
                ),
                *("leave_out", "resume", "force"),
            ),
            _files,
            "what another tool has measured is only read; leave it out",
        ),
        WithoutEffect(SAMPLING, _greedily, GREEDY),
        WithoutEffect(
            ("force",), unless("resume"), "it continues a run under other conditions; give both"
        ),
    ),
    "batch-sizes": (
        WithoutEffect((*DATASET, *PAIR, "max_new_tokens"), beside("replay"), RECORDED),
    ),
    "sweep": (
        WithoutEffect(
            (*DATASET, "minutes", *PAIR, "max_new_tokens", "max_draft"),
            beside("trace", "--replay"),
            RECORDED,
        ),
        WithoutEffect(
            (
                "dataset",
                "data_dir",
                "sample",
                "minutes",
                "device",
                "dtype",
                "executor",
                "max_draft",
            ),
            _synthetic,
            "a synthetic pair has no weights, and answers random tokens; leave it out",
        ),
    ),
    "train-predictor": (
        WithoutEffect(
            (*PROMPTS, "device", "dtype", "executor", "max_new_tokens"),
            beside("trace"),
            "a trace has its own prompts and answers; leave out one of them",
        ),
    ),
    "train-head": DISTILLATION,
    "train-draft": DISTILLATION,
    "simulate": (
        *SERVING,
        WithoutEffect(
            ("concurrency",),
            beside("devices"),
            "both say how many devices there are; leave out one",
        ),
        WithoutEffect(
            ("devices", "concurrency", "arrivals_scale", "events", "timeline"),
            _preset_of("capacity"),
            "it is a preset of skit capacity, which finds the load; leave out one of them",
        ),
    ),
    "capacity": (
        *SERVING,
        WithoutEffect(
            ("epsilon", "most", "resolution"),
            _preset_of("simulate"),
            "it is a preset of skit simulate, which searches for nothing; leave out one of them",
        ),
    ),
    "compare": (
        WithoutEffect(
            ("formats", "bare", "size"),
            unless("out"),
            "only the files of a report have it; give both",
        ),
    ),
    "report": (
        WithoutEffect(
            ("formats", "columns", "bare", "size", "against", "force", "out"),
            beside("index"),
            "the page only lists runs; leave out one of them",
        ),
    ),
    "suite": (
        WithoutEffect(
            ("methods", "quick", "submit", "resume"),
            _not_run,
            "only run takes policies; leave it out",
        ),
        WithoutEffect(("servers", "hardware"), _not_run, "only run measures servers; leave it out"),
        WithoutEffect(("hardware",), _serverless, "policies are modelled; leave it out"),
        WithoutEffect(
            ("jobs", "resume"),
            beside("servers", "--server"),
            "servers are measured one after the other; leave it out",
        ),
        WithoutEffect(("out",), _action("check"), "a check writes nothing; leave it out"),
        WithoutEffect(("jobs",), _action("board"), "a board runs nothing; leave it out"),
    ),
    "reproduce": (
        WithoutEffect(
            ("out",), beside("to"), "--to names the folder itself; leave out one of them"
        ),
    ),
}
"""Rules by command, tried in their order."""
