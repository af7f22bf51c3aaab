"""Attention in Triton, interpreted on the CPU: what exact attention finds, and nothing of what no token may see.

It is skipped where Triton is not installed, which torch brings with its builds for GPUs alone.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

pytest.importorskip("triton", reason="Triton is not installed")

from interpreted_kernels import mend, numbers

from specbench_kit.models.executors.kernels import triton_attention
from specbench_kit.models.executors.kernels.base import PART
from specbench_kit.models.executors.kernels.compact_mask import CompactMask

NODES = 160
SPARE = 7
"""Cells of the store beyond the keys that a forward may attend to."""
OF_LARGEST = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""The accepted difference from exact attention, as a part of the largest number that it finds: some roundings."""


class Scene(NamedTuple):
    """A forward: of row r the first `used[r]` columns are tokens, and the others padding."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: CompactMask
    used: list[int]

    @property
    def arguments(self) -> tuple[Any, ...]:
        mask = self.mask
        return (
            self.queries,
            self.keys,
            self.values,
            mask.last,
            mask.cells,
            mask.trash,
            mask.prefixes,
            mask.nodes,
        )


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mend(monkeypatch)


def make_scene(
    starts: list[int],
    used: list[int],
    width: int,
    length: int,
    *,
    dtype: torch.dtype = torch.float32,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    is_tree: bool = False,
) -> Scene:
    """Make rows whose new tokens begin at `starts`; what was never written to the store is NaN."""
    rows, trash = len(starts), length + SPARE - 1
    generator = torch.Generator().manual_seed(0)
    cells = torch.full((rows, width), trash)
    store = torch.full((2, rows + 1, kv_heads, length + SPARE, dim), torch.nan, dtype=dtype)
    nodes = torch.zeros((rows, width, NODES), dtype=torch.uint8)
    for row, (start, count) in enumerate(zip(starts, used, strict=True)):
        cells[row, :count] = torch.arange(start, start + count)
        end = start + count if count else 0
        store[:, row + 1, :, :end] = numbers(dtype, 2, kv_heads, end, dim, seed=row)
        for node in range(count):
            above = int(torch.randint(-1, node, (1,), generator=generator)) if node else -1
            if above >= 0:
                nodes[row, node] = nodes[row, above]
            nodes[row, node, node] = 1
    mask = CompactMask(torch.arange(length), cells, trash, cells)
    if is_tree:
        prefixes = torch.tensor(starts)[:, None]
        last = (prefixes - 1).expand(-1, width)
        mask = mask._replace(last=last, prefixes=prefixes, nodes=nodes)
    keys, values = store[:, 1:, :, :length].unbind()
    queries = numbers(dtype, rows, kv_heads, heads // kv_heads * width, dim, seed=9)
    return Scene(queries, keys, values, mask, used)


def found_in(scene: Scene, *, in_parts: bool) -> Tensor:
    scale = scene.queries.shape[-1] ** -0.5
    if not in_parts:
        return triton_attention.attend(*scene.arguments, scale)
    parts = triton_attention.attend_in_parts(*scene.arguments, scale)
    return triton_attention.join_parts(*parts, scene.mask.cells, scene.mask.trash, scene.queries)


def require_exact(scene: Scene, found: Tensor) -> None:
    """Compare with attention in fp64; of padding nothing is asked but that it is a number."""
    rows, kv_heads, _, dim = scene.queries.shape
    width = scene.mask.last.shape[1]
    group = scene.queries.shape[2] // width
    expected = scaled_dot_product_attention(
        scene.queries.double(),
        scene.keys.double().nan_to_num(),
        scene.values.double().nan_to_num(),
        attn_mask=scene.mask.additive(torch.float64).repeat(1, 1, group, 1),
        scale=dim**-0.5,
    )
    expected = expected.view(rows, kv_heads, group, width, dim).permute(0, 3, 1, 2, 4)
    assert found.shape == (rows, width, kv_heads * group * dim)
    assert not found.isnan().any()
    for row, count in enumerate(scene.used):
        exact = expected[row, :count].flatten(1)
        if not count:
            assert (found[row] == 0).all(), "a row without tokens reads nothing"
            continue
        difference = (found[row, :count].double() - exact).abs().max()
        assert difference <= OF_LARGEST[scene.queries.dtype] * exact.abs().max()


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("dtype", OF_LARGEST)
@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize(
    ("starts", "used", "width"),
    [
        ([0], [1], 1),
        ([299, 0, 255, 256], [1, 0, 1, 1], 1),
        ([250, 3, 0, 500], [5, 2, 0, 5], 5),
        ([430], [88], 88),
    ],
)
def test_it_is_exact_attention(
    starts: list[int],
    used: list[int],
    width: int,
    dtype: torch.dtype,
    in_parts: bool,
    is_tree: bool,
) -> None:
    """With rows that end in, at and after the border of a part, padded columns, and rows that are padding alone."""
    scene = make_scene(starts, used, width, 2 * PART + 40, dtype=dtype, is_tree=is_tree)
    require_exact(scene, found_in(scene, in_parts=in_parts))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(2, 2, 8), (9, 1, 10), (8, 2, 64), (6, 3, 24)]
)
def test_heads_of_any_size(heads: int, kv_heads: int, dim: int) -> None:
    scene = make_scene(
        [270, 20], [3, 2], 3, 300, heads=heads, kv_heads=kv_heads, dim=dim, is_tree=True
    )
    for in_parts in (False, True):
        require_exact(scene, found_in(scene, in_parts=in_parts))


def test_a_prompt_of_more_queries_than_a_program_has() -> None:
    scene = make_scene([0], [140], 150, 150)
    require_exact(scene, found_in(scene, in_parts=False))


@pytest.mark.parametrize("dtype", OF_LARGEST)
def test_what_a_token_finds_depends_on_no_other(dtype: torch.dtype) -> None:
    """Bit by bit alone, beside other rows, in a chunk, with keys padded further, and in one part or several."""
    whole = make_scene([200, 10, 500], [4, 4, 4], 4, 600, dtype=dtype)
    for in_parts in (False, True):
        found = found_in(whole, in_parts=in_parts)
        for row, start in enumerate((200, 10, 500)):
            alone = make_scene([start], [4], 4, 600, dtype=dtype)
            alone = alone._replace(
                queries=whole.queries[row : row + 1],
                keys=whole.keys[row : row + 1],
                values=whole.values[row : row + 1],
            )
            assert torch.equal(found_in(alone, in_parts=in_parts)[0], found[row])
            for column in range(4):
                cell = whole.mask.cells[row : row + 1, column : column + 1]
                mask = alone.mask._replace(cells=cell, last=cell, keys=torch.arange(int(cell) + 1))
                one = alone._replace(
                    queries=alone.queries[:, :, column::4],
                    keys=alone.keys[:, :, : int(cell) + 1],
                    values=alone.values[:, :, : int(cell) + 1],
                    mask=mask,
                )
                assert torch.equal(found_in(one, in_parts=in_parts)[0, 0], found[row, column])
    short = make_scene([120, 0], [3, 1], 3, PART, dtype=dtype)
    assert torch.equal(found_in(short, in_parts=False), found_in(short, in_parts=True))


def test_roots_and_nodes_of_one_forward() -> None:
    """Trees that are verified unseen: tokens before their roots attend by their places, nodes by their ancestors."""
    scene = make_scene([290, 40], [6, 6], 6, 320, is_tree=True)
    last = scene.mask.last.clone()
    nodes = torch.zeros_like(scene.mask.nodes)  # type: ignore[arg-type]
    last[:, :3] = scene.mask.cells[:, :3]
    prefixes = scene.mask.cells[:, 2:3]
    nodes[:, 3:, 0] = 1
    nodes[:, 3, 1] = nodes[:, 4, 2] = 1
    nodes[:, 5, 1] = nodes[:, 5, 3] = 1
    last[:, 3:] = prefixes - 1
    mixed = scene._replace(mask=scene.mask._replace(last=last, prefixes=prefixes, nodes=nodes))
    for in_parts in (False, True):
        require_exact(mixed, found_in(mixed, in_parts=in_parts))
