"""A recording that was interrupted continues with the requests that it lacks, and gives the trace of one in one go."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import TinyPair, write_rows

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import load
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.recording.trace import RecordedTrace, record
from specbench_kit.traces.trace import RequestTrace, TraceFile

IDS = ["d1/1", "d1/2", "q1", "d2/1", "d2/2", "q2"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LoadedDataset:
    rows = [
        {"id": "d1", "turns": ["Who was first?", "And why?"]},
        {"id": "q1", "prompt": "How many?"},
        {"id": "d2", "turns": ["Say a word.", "Another one."]},
        {"id": "q2", "prompt": "Once upon a time", "chat": False},
    ]
    file = write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *rows)
    return load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)


@pytest.fixture(scope="module")
def settings(tiny: TinyPair) -> RecordingSettings:
    pair = {"target": str(tiny.target), "draft": str(tiny.draft)}
    return RecordingSettings(batch_size=2, max_new_tokens=12, **pair)


@pytest.fixture(scope="module")
def whole(
    settings: RecordingSettings, dataset: LoadedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("whole") / "trace.parquet"
    recorded = record(settings, dataset, path, 4, ignore)
    assert (recorded.requests, recorded.failed) == (6, 0)
    return path


def ignore(done: int, planned: int) -> None:
    """Take note of no progress."""


def interrupt_after(requests: int) -> Callable[[int, int], None]:
    def report(done: int, planned: int) -> None:
        assert planned == len(IDS)
        if done == requests:
            raise KeyboardInterrupt

    return report


def equal(one: RequestTrace, other: RequestTrace) -> bool:
    plain = [replace(trace, drafted=None, statistics=None) for trace in (one, other)]
    return (
        plain[0] == plain[1]
        and np.array_equal(one.drafted, other.drafted)
        and np.allclose(one.statistics, other.statistics, rtol=0, atol=1e-5)
    )


@pytest.mark.parametrize("finished", [1, 3, 5])
def test_a_resumed_recording_gives_the_same_trace(
    finished: int, settings: RecordingSettings, dataset: LoadedDataset, whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.parquet"
    with pytest.raises(KeyboardInterrupt):
        record(settings, dataset, path, 4, interrupt_after(finished))
    assert not path.exists()
    progress: list[int] = []
    resumed: RecordedTrace = record(
        settings, dataset, path, 4, lambda done, _: progress.append(done), resume=True
    )
    assert progress == list(range(finished + 1, 7)), "finished requests are not answered again"
    assert resumed.requests == 6
    assert [trace.request_id for trace in TraceFile(path)] == IDS
    assert all(map(equal, TraceFile(path), TraceFile(whole)))
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_recording_is_not_overwritten(
    settings: RecordingSettings, dataset: LoadedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "trace.parquet"
    with pytest.raises(KeyboardInterrupt):
        record(settings, dataset, path, 4, interrupt_after(2))
    with pytest.raises(
        SkitError, match="interrupted after 2 requests: continue it with --resume, or delete"
    ):
        record(settings, dataset, path, 4, ignore)
    with pytest.raises(
        SkitError, match="has another max_draft and capacity: record with the same options"
    ):
        record(settings, dataset, path, 3, ignore, resume=True)
    with pytest.raises(SkitError, match="has another config"):
        record(replace(settings, max_new_tokens=11), dataset, path, 4, ignore, resume=True)


def test_what_comes_behind_an_answer_is_the_targets_text(
    settings: RecordingSettings, dataset: LoadedDataset, whole: Path, tmp_path: Path
) -> None:
    longer = tmp_path / "longer.parquet"
    record(replace(settings, max_new_tokens=17), dataset, longer, 4, ignore)
    texts = {
        trace.request_id: [*trace.output_ids, *trace.continuation] for trace in TraceFile(longer)
    }
    for trace in TraceFile(whole):
        if not trace.request_id.endswith(
            "/2"
        ):  # a second turn follows an answer that the limit has cut
            recorded = [*trace.output_ids, *trace.continuation]
            assert recorded == texts[trace.request_id][: len(recorded)]
            assert len(trace.continuation) == 5
