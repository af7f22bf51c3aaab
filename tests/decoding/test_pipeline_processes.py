"""A pipeline across real processes: the same steps and the same output, and a clean end whatever happens."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command_line import (
    PATIENCE_S,
    SKIT,
    TinyPair,
    environment,
    error_line,
    read_object,
    read_rows,
    write_rows,
)
from tiny_heads import heads_beside
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.decoding.processes.stages import (
    PipelineTarget,
    ProcessStages,
    StageWorkers,
    telling_line,
)
from specbench_kit.decoding.processes.worker import CarriedLevel, Stage
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.executors.stage import require_cuttable
from specbench_kit.models.pair import LoadedModel
from specbench_kit.models.runner import Append, Runner

pytestmark = pytest.mark.slow

nightly = pytest.mark.nightly  # what the other tests of this file cover in most of its lines

SPEC = "specpipe:stages=2,width=6,children=3"
CAPACITY = 256
Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, num_hidden_layers=3)


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel) -> Runners:
    return make_runner(target, 4, CAPACITY), make_runner(disturbed(target, 0.01), 4, CAPACITY)


@pytest.fixture(scope="module")
def requests_(target: PreTrainedModel) -> list[Request]:
    return make_requests(clear_prompts(target, [1, 9, 70], 24), 24)


def start(target: PreTrainedModel, folder: Path) -> ProcessStages:
    target.save_pretrained(folder)
    source = ModelSource(str(folder), "tiny", local_only=True)
    return ProcessStages(
        2, LoadedModel(target, source), {"slots": 4, "capacity": CAPACITY, "vocabulary": 64}
    )


@pytest.fixture(scope="module")
def stages(
    target: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessStages]:
    processes = start(target, tmp_path_factory.mktemp("target"))
    yield processes
    processes.close()


def run(
    spec: str,
    runners: Runners,
    requests: Sequence[Request],
    stages: ProcessStages | None,
    sampler: Sampler,
    batch: int,
) -> Any:
    method = parse_method(spec)
    setup = DecodingSetup(sampler=sampler, seed=3, batch_size=batch)
    engine = local_loop(
        method, *runners, others=heads_beside(method, runners[0]), setup=setup, stages=stages
    )
    assert isinstance(engine, PipelineEngine)
    engine.trace = []
    for request in requests:
        engine.submit(request)
    return outputs(drain(engine)), engine.trace


def drain(engine: Loop) -> dict[str, RequestRecord]:
    records: dict[str, RequestRecord] = {}
    while not engine.idle:
        records |= {record.request_id: record for record in engine.step()}
    return records


@pytest.mark.parametrize(
    ("spec", "batch"),
    [
        pytest.param(SPEC, 1, marks=nightly),
        pytest.param(f"{SPEC},rows=8,chunk=32", 3, marks=nightly),
        (f"{SPEC},rows=8,chunk=32,drafter=head", 3),
        pytest.param("pp-microbatch:stages=2,chunk=32", 3, marks=nightly),
    ],
)
def test_processes_take_the_same_steps_to_the_same_output(
    spec: str, batch: int, runners: Runners, requests_: list[Request], stages: ProcessStages
) -> None:
    """The trace of the processes is what each of them says that it worked on."""
    for sampler in (Sampler(), Sampler(temperature=0.8, top_p=0.9)):
        done = len(stages.trace())
        alone, together = (
            run(spec, runners, requests_, stage_processes, sampler, batch)
            for stage_processes in (None, stages)
        )
        assert together == alone
        steps, first = (
            stages.trace()[done:],
            min((step for step, *_ in stages.trace()[done:]), default=0),
        )
        assert sorted((step - first + 1, stage, ids) for step, stage, ids in steps) == sorted(
            alone[1]
        )
        assert len({stage for _, stage, _ in steps}) == 2


@pytest.mark.parametrize(
    "spec",
    [
        "specinfer:branching=2-1-2,guesses=4",
        *(
            pytest.param(spec, marks=nightly)
            for spec in ("autoregressive", "specinfer", "fixed-k", "specedge:depth=3", "eagle")
        ),
    ],
)
def test_rounds_pass_through_the_processes(
    spec: str, runners: Runners, requests_: list[Request], stages: ProcessStages
) -> None:
    method = parse_method(spec)
    setup = DecodingSetup(seed=3, batch_size=2)
    engine = local_loop(
        method, *runners, others=heads_beside(method, runners[0]), setup=setup, stages=stages
    )
    for request in requests_:
        engine.submit(request)
    assert outputs(drain(engine)) == outputs(decode(AUTOREGRESSIVE, runners, requests_))


def test_what_a_prune_leaves_of_a_stages_output_is_of_the_nodes(target: PreTrainedModel) -> None:
    """Behind a prompt of three tokens are two nodes, of which the second one stays."""
    stage = Stage(deepcopy(target), 1, 2, torch.device("cpu"), slots=1, capacity=32, vocabulary=64)
    stage.admit(0)
    stage.work(
        {0: CarriedLevel(Level(ids=[0, 1], tokens=[30, 12], parents=[-1, -1], prefix=[1, 9, 7]))}
    )
    before = stage.output[0].states
    assert before is not None
    assert len(before) == 5
    stage.prune(0, Prune([], [1]))
    after = stage.output[0]
    assert after.states is not None
    assert after.level.tokens == [12]
    torch.testing.assert_close(after.states, before[4:])


def test_slots_of_finished_requests_are_used_again(stages: ProcessStages) -> None:
    """There are four."""
    passes = PipelineTarget(stages)
    for _ in range(6):
        passes.release(passes.acquire())


def test_hidden_states_of_all_stages_arrive_with_the_logits(
    runners: Runners, stages: ProcessStages
) -> None:
    """The embeddings and the middle from the first stage, its end and the normalised last ones from the second."""
    passes, layers, tokens = PipelineTarget(stages), (3, 0, 1, 2), [5, 9, 3, 3, 8]
    slots = [runners[0].acquire(), passes.acquire()]
    parents = [-1, 0, 1, 1, 3]
    near, far = (
        target.begin([Append(slot, tokens, parents, 4)], layers)()
        for target, slot in zip((runners[0], passes), slots, strict=True)
    )
    torch.testing.assert_close(far.states(0, layers), near.states(0, layers), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(far[0], near[0], atol=1e-4, rtol=1e-4)
    runners[0].release(slots[0])
    passes.release(slots[1])


@nightly
def test_drafting_goes_on_between_sending_and_hearing_the_answer(
    runners: Runners,
    requests_: list[Request],
    stages: ProcessStages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def noting(owner: object, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given: (happened.append(name), original(*given))[1]
        )

    noting(stages, "pass_through")
    noting(stages, "receive_output")
    noting(runners[1], "forward")
    method = parse_method("specedge:depth=3,proactive_depth=2")
    engine = local_loop(method, *runners, setup=DecodingSetup(seed=3), stages=stages)
    engine.submit(requests_[0])
    (record,) = drain(engine).values()
    monkeypatch.undo()
    meanwhile = " ".join(happened).split("pass_through")[1:]
    drafted = [bool(r.proactive) for r in record.rounds]
    assert [part.partition("receive_output")[0].split() != [] for part in meanwhile] == drafted
    assert sum(drafted) > len(drafted) / 2
    assert engine.clock.typical_s("verify") > 0


def test_a_dead_stage_is_one_error_and_takes_the_others_with_it(
    runners: Runners, requests_: list[Request], stages: ProcessStages
) -> None:
    """Last of those that use the stages."""
    first, second = stage_processes()
    engine = local_loop(parse_method(SPEC), *runners, setup=DecodingSetup(seed=3), stages=stages)
    engine.submit(requests_[0])
    engine.step()
    first.send_signal(signal.SIGKILL)
    with pytest.raises(
        SkitError, match=rf"stage 1 of 2 \(process {first.pid}\) was ended by signal 9"
    ):
        drain(engine)
    assert psutil.wait_procs([first, second], timeout=PATIENCE_S)[1] == []


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            [
                "terminate called",
                "  what():  CUDA error: misaligned address",
                "",
                "Thread 1:",
                "  <no Python frame>",
            ],
            1,
        ),
        (["[rank1]: Traceback:", "[rank1]: RuntimeError: two devices", "[rank1]: more of it"], 1),
        (
            ["Traceback:", '  File "x.py"', "torch.AcceleratorError: CUDA error: no", "more of it"],
            2,
        ),
        (["it is over"], 0),
    ],
)
def test_the_last_words_of_a_stage_say_why(lines: list[str], told: int) -> None:
    assert telling_line(lines) == lines[told].strip()


def test_the_stage_that_raised_an_error_is_named_and_not_the_one_that_lost_it(
    tmp_path: Path,
) -> None:
    """The other aborted first, in a thread of the library that connects them."""
    # The one that aborts waits until the other runs, which takes long on a busy machine.
    script = f"""
import os, pathlib, time
ready = pathlib.Path({str(tmp_path / "ready")!r})
if os.environ["RANK"] == "1":
    while not ready.exists():
        time.sleep(0.01)
    os.abort()
ready.touch()
time.sleep(0.2)
raise RuntimeError("no room on the card")
"""
    workers = StageWorkers(2, [sys.executable, "-c", script])
    assert workers.died.wait(PATIENCE_S)
    second = workers._processes[1].pid
    expected = (
        f"stage 2 of 2 (process {second}) ended with exit code 1: RuntimeError: no room on the card"
    )
    assert workers.death == expected
    workers.close()


def stage_processes(parent: int | None = None) -> list[psutil.Process]:
    """The stages that a process has started."""
    children = psutil.Process(parent).children(recursive=True)
    return [
        child for child in children if "specbench_kit.decoding.processes.worker" in child.cmdline()
    ]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": f"q{n}", "prompt": f"Question {n}?"} for n in range(40)]
    return write_rows(tmp_path_factory.mktemp("data") / "own.jsonl", *rows)


def command(tiny: TinyPair, prompts: Path, out: Path, *more: str) -> list[str]:
    options = [
        "--method",
        SPEC,
        "--dataset",
        str(prompts),
        "--max-new-tokens",
        "40",
        "--no-baseline",
        "--out",
        str(out),
    ]
    return ["bench", *tiny.options, *options, *more]


def begin(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [SKIT, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_requests(running: "subprocess.Popen[str]", out: Path, count: int) -> None:
    """Until that many have finished."""
    while sum(file.read_text().count("\n") for file in out.glob("*/requests.jsonl")) < count:
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(running.communicate(timeout=0.1))


@nightly
def test_a_dead_stage_ends_the_command_and_keeps_what_was_finished(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    running = begin(command(tiny, prompts, tmp_path, "--launch", "processes"))
    wait_for_requests(running, tmp_path, 2)
    processes = stage_processes(running.pid)
    processes[1].send_signal(signal.SIGKILL)
    out, err = running.communicate(timeout=PATIENCE_S)
    done = subprocess.CompletedProcess([], running.returncode, out, err)
    assert "stage 2 of 2" in error_line(done)
    assert "finished requests are kept" in error_line(done)
    (run,) = tmp_path.iterdir()
    finished = read_rows(run / "requests.jsonl")
    assert 2 <= len(finished) < 40
    assert read_object(run / "summary.json")["requests"]["finished"] == len(finished)
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []


@nightly
def test_stages_end_with_a_command_that_is_killed(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    running = begin(command(tiny, prompts, tmp_path, "--launch", "processes"))
    wait_for_requests(running, tmp_path, 1)
    processes = stage_processes(running.pid)
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    assert len(processes) == 2
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []


@nightly
def test_torchrun_starts_the_stages_too(tiny: TinyPair, prompts: Path, tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.jsonl", *read_rows(prompts)[:3])
    alone_folder, torchrun_folder = tmp_path / "here", tmp_path / "there"
    subprocess.run(
        [SKIT, *command(tiny, few, alone_folder)],
        env=environment(),
        check=True,
        capture_output=True,
    )
    started = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "3",
        "--no-python",
        SKIT,
    ]
    subprocess.run(
        [*started, *command(tiny, few, torchrun_folder)],
        env=environment(),
        check=True,
        capture_output=True,
    )
    alone, together = (
        read_rows(next(out.iterdir()) / "requests.jsonl") for out in (alone_folder, torchrun_folder)
    )
    assert [row["output_ids"] for row in together] == [row["output_ids"] for row in alone]
    run = read_object(next(torchrun_folder.iterdir()) / "run.json")
    assert run["config"]["launch"] == "processes"
    assert (
        "Every stage was a process of its own."
        in (next(torchrun_folder.iterdir()) / "report.md").read_text()
    )


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SkitError, match="a model of 2 layers cannot be cut into 3 stages"):
        require_cuttable(tiny_llama(0), 3)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=2, n_head=2))
    with pytest.raises(SkitError, match="models of type 'gpt2' cannot be cut into processes"):
        require_cuttable(gpt2, 2)
