"""A benchmark in several processes, one after another, each of which decodes every request once.

What lasts as long as a process, such as where its memory lies, favours one method or another in all
of its requests. Only further processes show by how much.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from specbench_kit.core.errors import MethodError, SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.processes.stages import KEPT
from specbench_kit.methods.predictor_based import predictor_notes
from specbench_kit.metrics.run_summary import read_summary
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.bench.campaign import NOTHING_KEPT, Campaign
from specbench_kit.studies.bench.conclusion import Conclusion
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.run import ProcessTurn
from specbench_kit.studies.bench.settings import BenchSettings


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """What a process says at its end: has it decoded anything, and which runs has it concluded?

    The last process concludes, and one that met a problem. A method whose policy is `broken` ends
    nothing else.
    """

    has_worked: bool = False
    folders: tuple[Path, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    broken: str | None = None
    interrupted: bool = False

    def conclusions(self) -> list[Conclusion]:
        """Read the runs that were concluded."""
        directories = map(RunDirectory.open, self.folders)
        return [
            Conclusion(directory, read_summary(directory.summary())) for directory in directories
        ]


Message = list[str] | Progress | ProcessOutcome
"""What a process sends: notes for the user, a finished request, or how it ended."""


def decode_in_processes(
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    tell: Callable[[str], None],
    report: Callable[[Progress], None],
) -> ProcessOutcome:
    """Decode in as many processes as `settings` say, and return how the last of them ended.

    Raise SkitError if one ends before it has said how.
    """
    if settings.minutes is not None:
        settings = replace(settings, minutes=settings.minutes / settings.processes)
    outcome = ProcessOutcome()
    broken = None
    is_noted = False
    for number in range(settings.processes):
        outcome = _decode_in_one(settings, datasets, ProcessTurn(number, is_noted), tell, report)
        broken = broken or outcome.broken
        if outcome.problem is not None:
            break
        is_noted |= outcome.has_worked
    return replace(outcome, problem=outcome.problem or broken, broken=broken)


def _decode_in_one(
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    turn: ProcessTurn,
    tell: Callable[[str], None],
    report: Callable[[Progress], None],
) -> ProcessOutcome:
    # A forked process would have its memory where this one has it.
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, settings, tuple(datasets), turn))
    process.start()
    sender.close()
    try:
        while not isinstance(message := _receive(receiver, process), ProcessOutcome):
            if isinstance(message, Progress):
                report(message)
            else:
                for note in message:
                    tell(note)
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"
        raise SkitError(
            f"process {turn.number + 1} of {settings.processes} {how}; {KEPT}"
        ) from None
    finally:
        receiver.close()
        process.join(None if process.exitcode is None and sys.exception() is None else 0)
        process.terminate()
    return message


def _receive(receiver: Connection, process: SpawnProcess) -> Message:
    """Return the next message; an interrupt is passed on once, so that the process concludes what
    it has decoded.
    """
    try:
        message: Message = receiver.recv()
    except KeyboardInterrupt:
        if os.name == "posix" and process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
        message = receiver.recv()
    return message


def _serve(
    sender: Connection,
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    turn: ProcessTurn,
) -> None:
    """Decode in this process, and send what happens to the one that started it."""
    if os.name == "posix":
        # Ctrl-C at a terminal reaches the first process alone, which passes it on.
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nobody hears the rest where the first process was killed: its run stays as it is, to be
    # resumed.
    with suppress(BrokenPipeError):
        try:
            outcome = _decode(sender.send, settings, datasets, turn)
        except SkitError as error:
            outcome = ProcessOutcome(problem=str(error))
        except KeyboardInterrupt:
            outcome = ProcessOutcome(problem=NOTHING_KEPT, interrupted=True)
        sender.send(outcome)


def _decode(
    send: Callable[[Message], None],
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    turn: ProcessTurn,
) -> ProcessOutcome:
    with Campaign(settings, datasets, lambda *_: None, turn) as campaign:
        if not turn.number:
            measured = campaign.bench.measured.notes
            send(
                [
                    *predictor_notes(campaign.bench.prepared.methods.values()),
                    *measured,
                    *campaign.notes,
                ]
            )
        has_worked = not all(benchmark.is_done for benchmark in campaign.benchmarks)
        problem = broken = None
        interrupted = False
        try:
            campaign.run(send)
        except KeyboardInterrupt:
            problem, interrupted = campaign.end_interrupted(), True
        except MethodError as error:
            broken = str(error)
        except SkitError as error:
            problem = str(error)
        if problem is None and turn.number < settings.processes - 1:
            return ProcessOutcome(has_worked, broken=broken)
        folders = tuple(conclusion.directory.path for conclusion in campaign.write_results())
        return ProcessOutcome(
            has_worked, folders, campaign.bench.prepared.left_out, problem, broken, interrupted
        )
