"""A pair of tiny real models on disk, and a comparison of runs that were made up."""

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from by_file import ByFile
from command_line import HOME, QUIET, READINGS, TinyPair
from nightly import mark_what_was_moved
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specbench_kit.metrics.result import Comparison


os.environ[READINGS] = str(
    QUIET
)  # how busy the machine is that runs the tests decides none of them
os.environ["SKIT_HOME"] = HOME.name
# Triton asks for it when it is imported, which torch does: kernels are then interpreted on the CPU.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["second_attempt"]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

SLOW_TIMEOUT_S = 300
"""The limit of a slow test with its fixtures, in seconds; pyproject.toml has that of the others."""


def pytest_xdist_auto_num_workers() -> int:
    """One process more than processors, since many tests wait for servers, sockets and other processes."""
    return min(4, 1 + (os.cpu_count() or 1))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Deal the tests to the processes that share them."""
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what was moved to the night before pytest chooses by marks, and give slow tests longer.

    The fixtures of slow tests run several commands, and each of them loads torch on a busy machine.
    """
    mark_what_was_moved(items)
    for item in items:
        if item.get_closest_marker("slow") and config.pluginmanager.hasplugin("timeout"):
            item.add_marker(
                pytest.mark.timeout(max(SLOW_TIMEOUT_S, config.getoption("timeout") or 0))
            )


BLANK = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>',
    "png": b"\x89PNG\r\n\x1a\n",
    "pdf": b"%PDF-1.7\n",
}


@pytest.fixture(scope="module", autouse=True)
def unrendered_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Commands that run in this process draw all their figures, but matplotlib neither lays them out nor renders them.

    That is most of the time of a short command with a report. Tests of reports, modules that are marked `figures`, and
    commands in processes of their own do all of it.
    """
    if request.node.get_closest_marker("figures") or "reports" in request.path.parts:
        yield
        return
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from specbench_kit.reports.writing import drawing

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drawing, "rendered", lambda _figure, suffix, _dpi=None: BLANK[suffix])
        patched.setattr(ConstrainedLayoutEngine, "execute", lambda _engine, _figure: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def checkout_read_once() -> Iterator[None]:
    """Every run names the commit of the checkout, for which git is started three times: here only for the first run.

    Tests of what git says ask about folders of their own.
    """
    from specbench_kit.runs import provenance

    read, first = provenance.git_state, cache(provenance.git_state)
    package = Path(provenance.__file__).resolve().parents[1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            provenance,
            "git_state",
            lambda folder: first(folder) if folder == package else read(folder),
        )
        yield


def pytest_collection_finish() -> None:
    """Freeze what is loaded by now, so that no later collection looks through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of one test alone, which is empty at first."""
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    from tiny_models import AS_NATIVE, disturbed, tiny_llama

    folder = tmp_path_factory.mktemp("models")
    target = tiny_llama(
        vocab_size=258, bos_token_id=0, eos_token_id=1, max_position_embeddings=512, **AS_NATIVE
    )
    for name, model in (("target", target), ("draft", disturbed(target, 0.02))):
        model.save_pretrained(folder / name)
        _byte_tokenizer().save_pretrained(folder / name)
    return TinyPair(folder / "target", folder / "draft")


def _byte_tokenizer() -> "PreTrainedTokenizerBase":
    """A token per byte, a beginning and an end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<|begin|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=pieces[0], eos_token=pieces[1]
    )
    wrapped.model_max_length = 512
    wrapped.chat_template = TEMPLATE
    return wrapped


@pytest.fixture(scope="session")
def tokenizer(tiny: TinyPair) -> "PreTrainedTokenizerBase":
    """The tiny pair's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.target)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> "Comparison":
    """Four methods on the same twelve prompts, which tests of metrics and reports only read."""
    from run_builders import write_methods

    from specbench_kit.metrics.comparison import compare
    from specbench_kit.metrics.run_data import load_runs

    out = tmp_path_factory.mktemp("runs")
    write_methods(out)
    return compare(load_runs([out])[0])
