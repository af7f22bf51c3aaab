"""The tiles of AMX, emulated in plain C++ in a build of their own: layout and loops are those of the real ones."""

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import rewrite
from native_models import MODELS, in_a_tree, in_pieces
from test_native_blocks import TILED, every_matrix, require_same_bits, use_library, write
from tiny_models import make_runner, plain_logits, random_prompts

from specbench_kit.models.executors import library

SOURCES = Path(library.__file__).with_name("csrc")
FLAGS = (
    "-std=c++20 -O1 -fno-math-errno -ffp-contract=fast -fvisibility=hidden -Wno-psabi -march=x86-64-v4 -mavx512bf16 "
    "-mavx512vnni -DSKIT_NARROW -DSKIT_EMULATE_TILES -shared -fPIC -pthread"
)
VARIED = ("llama", "heads of 80", "bf16 weights", "qwen3, norms of queries and keys")

pytestmark = [
    pytest.mark.nightly,  # compiles the extension anew; other tests try the kernels that this processor has
    pytest.mark.slow,
    pytest.mark.skipif(
        library.load_narrow_library() is None, reason="no processor with AVX512-BF16"
    ),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The extension with emulated tiles."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    built = tmp_path_factory.mktemp("emulated") / f"narrow{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(
        [compiler, *FLAGS.split(), include, str(SOURCES / "native.cpp"), "-o", str(built)],
        check=True,
    )
    return library._load(built)


@pytest.mark.parametrize("executor", ["native-bf16", "native-int8"])
@pytest.mark.parametrize("name", VARIED)
def test_tiles_give_the_same_bits_however_tokens_are_put_together(
    name: str, executor: str, emulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "specbench_kit.models.executors.native_narrow.load_narrow_library", lambda: emulated
    )
    model = MODELS[name]()
    (text,) = random_prompts([112], model.config.vocab_size)
    logits_by_products = {}
    for products in ("AMX", "AVX512-BF16"):
        assert emulated.products(products) == products
        runner = make_runner(model, 3, 200, executor)
        assert runner.executor.products.endswith("on AMX") == (products == "AMX")
        logits_by_products[products] = in_pieces(runner, text, 112)
        for size in (1, 5, 17, 40):  # one tile of rows, and both, whole and in part
            assert torch.equal(in_pieces(runner, text, size), logits_by_products[products]), size
        assert torch.equal(in_a_tree(runner, text, 100), logits_by_products[products][100:])
    if executor == "native-int8":  # integers: the instructions make no difference
        assert torch.equal(logits_by_products["AMX"], logits_by_products["AVX512-BF16"])
    else:  # another order of the sums: what differs is small against the rounding to bf16
        error = (logits_by_products["AMX"] - logits_by_products["AVX512-BF16"]).abs().mean()
        assert (
            0 < error < 0.2 * (logits_by_products["AMX"] - plain_logits(model, text)).abs().mean()
        )


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("kind", "sizes"), TILED)
def test_tiles_of_a_files_blocks_give_the_bits_of_dot_products(
    kind: str,
    sizes: dict[str, int],
    emulated: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_library(emulated, monkeypatch)
    longer = write(tmp_path, max_position_embeddings=512, **sizes)
    path = rewrite(longer, tmp_path / f"{kind}.gguf", every_matrix(kind))
    require_same_bits(emulated, path)
