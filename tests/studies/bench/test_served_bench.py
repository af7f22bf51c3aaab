"""A benchmark with a target on a server: what is left of the connection where it does not begin."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import live_server
import pytest
from command_line import TinyPair, write_rows
from live_server import DESCRIPTION, serving
from test_bench_run import QUESTIONS, settings
from tiny_models import tiny_llama
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.loading import load
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.studies.bench.campaign import Campaign

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server(tiny: TinyPair) -> Iterator[tuple[VerificationService, str]]:
    """A server in this process whose target has the tokenizer of the pair."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    welcome = messages.Welcome()
    welcome.CopyFrom(DESCRIPTION)
    welcome.tokenizer = tokenizer_hash(tokenizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_server, "DESCRIPTION", welcome)
        with serving(target_model=tiny_llama(vocab_size=len(tokenizer))) as running:
            yield running


def streams(service: VerificationService) -> float:
    return service.handler.metrics.registry.get_sample_value("skit_streams") or 0.0


@pytest.mark.parametrize(
    ("method", "resume", "says"),
    [
        ("specpipe:stages=2", False, "a pipeline's stages cannot be behind a wire"),
        ("fixed-k:k=2", True, "holds no unfinished run with these settings"),
    ],
)
def test_a_benchmark_that_does_not_begin_leaves_no_connection(
    method: str,
    resume: bool,
    says: str,
    server: tuple[VerificationService, str],
    tiny: TinyPair,
    tmp_path: Path,
) -> None:
    service, address = server
    file = write_rows(tmp_path / "prompts.jsonl", *QUESTIONS)
    dataset = load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)
    asked = settings(tiny, tmp_path, method, server=address, resume=resume)
    with pytest.raises(SkitError, match=says):
        Campaign(asked, [dataset], lambda *_: None)
    until_s = monotonic() + PATIENCE_S
    while streams(service) and monotonic() < until_s:
        sleep(0.01)
    assert streams(service) == 0
