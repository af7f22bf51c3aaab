"""Every kind of file that the kit reads, spoilt in seeded ways: one line or a result, no traceback, and no code."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tomli_w
from command_line import TinyPair, copy_model
from mutations import TEXTS, VALUES, payload, spoil, spoil_json, spoil_lines, swap
from result_files import FORMS, evenly
from run_builders import in_turn, plain, records_of, write_run
from trace_builders import made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.decoding.detail import RequestDetail, RoundDetail
from specbench_kit.deployments import loading as deployments
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.models.pair import load_pair
from specbench_kit.predictors import artefact
from specbench_kit.predictors.base import Examples, families
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers import architectures, cards, devices
from specbench_kit.profilers import loading as profiles
from specbench_kit.reports.comparison.files import write_reports
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.serving.acceptance_spec import parse_rates
from specbench_kit.serving.arrival_traces import read_arrivals
from specbench_kit.serving.link_traces import read_link_trace
from specbench_kit.serving.slo import parse_slo
from specbench_kit.studies.calibration.logs import read_log
from specbench_kit.studies.interchange.base import formats
from specbench_kit.traces.trace import TraceFile

Spoil = Callable[[bytes, Random], bytes]
Read = Callable[[Path], object]

FOLDER = Path(deployments.__file__).parents[1]
CSV = {
    "azure": b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.05,3180,8\n1.5,110,27\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,GPT-4,1087,230\n",
}
MOONCAKE = b'{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n' * 3
PROMPTS = (
    b'{"id": "a", "category": "maths", "prompt": "What is 17 + 25?"}\n{"turns": ["one", "two"]}\n'
    b'{"prompt": "Once upon", "chat": false}\n'
)
ANSWERS = (
    b'{"question_id": 81, "category": "writing", "model_id": "m", "choices": [{"index": 0, "turns": ["a", "b"], '
    b'"decoding_steps": [2, 2], "new_tokens": [5, 6], "wall_time": [0.5, 0.6], "accept_lengths": [2, 3, 3, 3]}], '
    b'"tstamp": 1760000000.0}\n'
)
MODEL_VALUES = tuple(
    value for value in VALUES if not (isinstance(value, int | float) and abs(value) > 1e6)
)
"""A folder decides how large its model is: sizes beyond every memory are its maker's business."""


@dataclass
class Trial:
    """Spoils one file again and again and reads it; what is neither a result nor one line is kept."""

    path: Path
    mark: Path
    seed: int
    failures: list[str] = field(default_factory=list)

    def run(self, content: bytes, spoil_: Spoil, read: Read, count: int) -> None:
        random = Random(self.seed)
        for number in range(count):
            mutant = payload(self.mark) if number == 0 else spoil_(content, random)
            self.path.write_bytes(mutant)
            self.attempt(lambda: read(self.path), f"{self.path.name} {number}: {mutant[:300]!r}")
        self.path.write_bytes(content)

    def attempt(self, read: Callable[[], object], what: str) -> None:
        try:
            read()
        except SkitError as error:
            if not str(error).isprintable():
                self.failures.append(f"{what}: more than one line: {error!r}")
        except Exception as error:
            trace = error.__traceback__
            while trace and trace.tb_next:
                trace = trace.tb_next
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            self.failures.append(f"{type(error).__name__}: {error} at {where}: {what}")

    def conclude(self) -> None:
        assert not self.failures, "\n".join(self.failures[:20])
        assert not self.mark.exists(), "code was run"


@pytest.fixture
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Path], Trial]:
    seed = int(hashlib.sha256(request.node.name.encode()).hexdigest()[:8], 16)
    return lambda path: Trial(path, tmp_path / "mark", seed)


Begin = Callable[[Path], Trial]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = in_turn(records_of(4, 0.7, 3, 6))
    path = write_run(tmp_path / "runs", "fixed-k", records, in_turn(plain(records)))
    detail = RoundDetail(*_round_fields())
    (path / "rounds_detail.jsonl").write_text(RequestDetail("q0", [detail]).to_json() + "\n")
    return path


def _round_fields() -> list[Any]:
    hints = RoundDetail.__annotations__
    return [[0] if "list" in str(hint) else 0 for hint in hints.values()]


@pytest.mark.parametrize(
    ("name", "spoil_", "count"),
    [
        ("run.json", spoil_json, 80),
        ("summary.json", spoil_json, 20),
        ("requests.jsonl", spoil_lines, 20),
        ("baseline.jsonl", spoil_lines, 20),
    ],
)
def test_a_report_of_a_run(
    name: str, spoil_: Spoil, count: int, run: Path, tmp_path: Path, trial: Begin
) -> None:
    def read(path: Path) -> None:
        write_reports(
            compare(load_runs([path.parent])[0]), tmp_path / "out", ["md", "csv", "latex"]
        )

    begun = trial(run / name)
    begun.run((run / name).read_bytes(), spoil_, read, count)
    begun.conclude()


@pytest.mark.parametrize(
    ("name", "spoil_", "read"),
    [
        ("summary.json", spoil_json, RunDirectory.summary),
        ("requests.jsonl", spoil_lines, RunDirectory.records),
        ("baseline.jsonl", spoil_lines, RunDirectory.baseline_records),
        ("rounds_detail.jsonl", spoil_lines, RunDirectory.details),
    ],
)
def test_a_run_to_go_on_with(
    name: str, spoil_: Spoil, read: Callable[[RunDirectory], object], run: Path, trial: Begin
) -> None:
    begun = trial(run / name)
    begun.run(
        begun.path.read_bytes(), spoil_, lambda path: read(RunDirectory.open(path.parent)), 200
    )
    begun.conclude()


def test_a_trace(tmp_path: Path, trial: Begin) -> None:
    file = write_trace(tmp_path / "trace.parquet", made_requests(2, 6)).path
    begun = trial(file)
    begun.run(file.read_bytes(), spoil, lambda path: list(TraceFile(path)), 150)
    begun.conclude()


def _examples() -> Examples:
    random = np.random.default_rng(0)
    features = random.random((200, 4)).astype(np.float32)
    return Examples(features, features[:, 0] > 0.5, np.arange(200), np.ones(200, np.int64))


@pytest.mark.parametrize("family", sorted(families.all()))
def test_a_predictor(family: str, tmp_path: Path, trial: Begin) -> None:
    def seal(content: bytes, random: Random) -> bytes:
        """A header that says something else, with the hash that belongs to it."""
        header = swap(
            {key: value for key, value in json.loads(content).items() if key != "sha256"}, random
        )
        if isinstance(header, dict):
            header["sha256"] = hashlib.sha256(
                json.dumps(header, sort_keys=True).encode()
            ).hexdigest()
        return json.dumps(header).encode()

    scorer = families.get(family)().fit(_examples(), _examples(), {}, 0)
    names = ("confidence", "entropy", "margin", "logit_std")
    artefact.save(
        tmp_path / family,
        artefact.Predictor(family, scorer, names, 0.5, "by hand", PairHashes("t", "d")),
    )
    for name, spoil_, count in (("predictor.json", seal, 60), ("predictor.json", spoil, 15)):
        begun = trial(tmp_path / family / name)
        begun.run(begun.path.read_bytes(), spoil_, lambda path: artefact.load(path.parent), count)
        begun.conclude()
    begun = trial(tmp_path / family / "weights.safetensors")
    weights = begun.path.read_bytes()
    header = json.loads((tmp_path / family / "predictor.json").read_bytes())

    def read_weights(path: Path) -> None:
        fields = {key: value for key, value in header.items() if key != "sha256"}
        fields["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        fields["sha256"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        (path.parent / "predictor.json").write_text(json.dumps(fields))
        artefact.load(path.parent)

    begun.run(weights, spoil, read_weights, 50)
    begun.conclude()


def _spoil_toml(content: bytes, random: Random) -> bytes:
    import tomllib

    if random.random() < 0.3:
        return spoil(content, random)
    values = tuple(
        value
        for value in VALUES
        if value is not None and not (isinstance(value, int) and abs(value) > 1e9)
    )
    changed = swap(tomllib.loads(content.decode()), random, values)
    try:
        return tomli_w.dumps(changed).encode()
    except (TypeError, ValueError, AttributeError):
        return spoil(content, random)


@pytest.mark.parametrize(
    ("place", "read", "count"),
    [
        ("profilers/published/wisp-table-12.toml", profiles.read, 150),
        ("deployments/library/wisp.toml", lambda path: deployments.find(str(path)).build(), 150),
        ("deployments/library/specedge.toml", lambda path: deployments.find(str(path)).sweep, 100),
    ],
)
def test_profiles_and_deployments(
    place: str, read: Read, count: int, trial: Begin, tmp_path: Path
) -> None:
    begun = trial(tmp_path / "mine.toml")
    begun.run((FOLDER / place).read_bytes(), _spoil_toml, read, count)
    begun.conclude()


@pytest.mark.parametrize(
    ("place", "read"),
    [
        ("profilers/architectures.toml", lambda path: architectures.read_architecture(path)),
        (
            "profilers/devices.toml",
            lambda path: devices.parse_device(cards.read_toml(path), str(path)),
        ),
    ],
)
def test_cards(place: str, read: Read, trial: Begin, tmp_path: Path) -> None:
    card = next(iter(cards.read_toml(FOLDER / place).values()))
    begun = trial(tmp_path / "mine.toml")
    begun.run(tomli_w.dumps(card).encode(), _spoil_toml, read, 80)
    begun.conclude()


@pytest.mark.parametrize(
    ("name", "content", "spoil_", "read", "count"),
    [
        ("azure.csv", CSV["azure"], spoil, read_arrivals, 120),
        ("burstgpt.csv", CSV["burstgpt"], spoil, read_arrivals, 120),
        ("mooncake.jsonl", MOONCAKE, spoil_lines, read_arrivals, 150),
        ("links.csv", b"time_s,rtt_ms,mbps\n0,20,8\n1.5,30,9\n", spoil, read_link_trace, 100),
        ("mahimahi", b"1\n5\n5\n900\n", spoil, read_link_trace, 60),
        ("pensieve", b"0.5\t1.6\n1.5\t2.4\n", spoil, read_link_trace, 60),
        (
            "answers.jsonl",
            ANSWERS,
            spoil_lines,
            lambda path: formats.get("spec-bench")().read(path),
            200,
        ),
        (
            "prompts.jsonl",
            PROMPTS,
            spoil_lines,
            lambda path: load_dataset(
                str(path), data_dir=None, allow_sample=False, limit=None, seed=0
            ),
            200,
        ),
    ],
)
def test_rows(
    name: str, content: bytes, spoil_: Spoil, read: Read, count: int, tmp_path: Path, trial: Begin
) -> None:
    begun = trial(tmp_path / name)
    begun.run(content, spoil_, read, count)
    begun.conclude()


@pytest.mark.parametrize("form", FORMS)
def test_result_files(form: str, tmp_path: Path, trial: Begin) -> None:
    content = FORMS[form](evenly(3, 0.5)).encode()
    spoil_ = spoil_lines if form.startswith("aiperf") else spoil_json
    for step in (spoil_, spoil):
        begun = trial(tmp_path / "results.json")
        begun.run(content, step, read_log, 60)
        begun.conclude()


def test_options(tmp_path: Path, trial: Begin) -> None:
    begun, random = trial(tmp_path / "none"), Random(3)
    for read, text in (
        (parse_method, b"wisp:predictor=mine,max_draft=3"),
        (parse_method, b"fixed-k:k=4"),
        (parse_slo, b"2:0.5,4:0.5"),
        (parse_rates, b"iid:alpha=0.8,length=4"),
        (deployments.load, b"wan"),
    ):
        for _ in range(40):
            option_text = spoil(text, random).decode("utf-8", "replace")[:200]
            begun.attempt(lambda read=read, given=option_text: read(given), repr(option_text))  # type: ignore[misc]
    for text in TEXTS:
        begun.attempt(lambda text=text: parse_method(text), repr(text))  # type: ignore[misc]
    begun.conclude()


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_model_folder(name: str, tiny: TinyPair, tmp_path: Path, trial: Begin) -> None:
    def spoil_model(content: bytes, random: Random) -> bytes:
        if name.endswith(".safetensors") or random.random() < 0.3:
            return spoil(content, random)
        return json.dumps(swap(json.loads(content), random, MODEL_VALUES)).encode()

    folder = copy_model(tiny.draft, tmp_path / "draft")
    begun = trial(folder / name)
    begun.run(
        begun.path.read_bytes(),
        spoil_model,
        lambda _: load_pair(str(folder), str(folder), device="cpu"),
        8,
    )
    begun.conclude()
