"""Time real processes: the answers of the command line, and the main job."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped, over_rounds
from benchmarks.process import measure

SKIT = Path(sys.executable).with_name("skit")
COMMANDS = (["--help"], ["list", "methods"], ["list", "datasets"], ["list", "models"])
MAIN_JOB = ("bench", "--target", "bundled", "--method", "fixed-k", "--dataset", "gsm8k")


def run(setting: Setting) -> Outcome:
    """Time `skit --help` and `skit list`, then a benchmark of the small pair."""
    if not SKIT.exists():
        raise Skipped("skit is not installed next to this Python")
    return Outcome("Start-up and main job", [*_answers(setting.rounds), *_main_job()])


def _answers(rounds: int) -> list[Figure]:
    seconds = [
        [measure([str(SKIT), *command]).seconds for command in COMMANDS] for _ in range(rounds)
    ]
    return [
        over_rounds(f"skit {' '.join(command)}", values, "s", Bound(most=0.4))
        for command, values in zip(COMMANDS, zip(*seconds, strict=True), strict=True)
    ]


def _main_job() -> list[Figure]:
    with TemporaryDirectory() as folder:
        usage = measure([str(SKIT), *MAIN_JOB, "--out", folder])
        [described] = Path(folder).glob("*/run.json")
        dataset = json.loads(described.read_text())["dataset"]
    where = f"main job, {dataset['count']} prompts ({dataset['source']})"
    return [
        Figure(f"{where}: skit {' '.join(MAIN_JOB)}", usage.seconds, "s", Bound(most=90)),
        Figure(f"{where}: peak memory", usage.peak_bytes / 1e9, "GB", Bound(most=2)),
    ]
