import numpy as np
import pytest
from predictor_examples import synthetic

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import FEATURES, Examples, Scaler


def test_select_puts_the_features_in_the_order_asked_for_and_knows_the_draft_position() -> None:
    examples = synthetic(50)
    chosen = examples.select(("margin", "confidence", "draft_position"))
    assert chosen.names == ("margin", "confidence", "draft_position")
    assert chosen.features.dtype == np.float32
    expected = np.stack(
        [examples.features[:, 2], examples.features[:, 0], examples.positions], axis=1
    )
    np.testing.assert_array_equal(chosen.features, expected.astype(np.float32))
    np.testing.assert_array_equal(chosen.labels, examples.labels)
    with pytest.raises(
        SkitError, match=r"unknown feature 'colour'; known: confidence, .*draft_position"
    ):
        examples.select(("colour",))


def test_select_again_keeps_the_columns_together_with_their_names() -> None:
    examples = (
        synthetic(20).select(("entropy", "draft_position")).select(("draft_position", "entropy"))
    )
    np.testing.assert_array_equal(examples.features[:, 0], examples.positions)


def test_take_keeps_rows_together() -> None:
    examples = synthetic(100)
    part = examples.take(examples.prompts < 3)
    assert len(part) == (examples.prompts < 3).sum()
    assert set(part.prompts) == {0, 1, 2}
    np.testing.assert_array_equal(part.features, examples.features[examples.prompts < 3])


def test_examples_of_different_lengths_or_with_nan_are_refused() -> None:
    good = synthetic(10)
    with pytest.raises(SkitError, match="differ in length"):
        Examples(good.features[:9], good.labels, good.prompts, good.positions)
    with pytest.raises(SkitError, match="differ in length"):
        Examples(good.features[:, :3], good.labels, good.prompts, good.positions, FEATURES)
    broken = good.features.copy()
    broken[3, 1] = np.nan
    with pytest.raises(SkitError, match="not a finite number"):
        Examples(broken, good.labels, good.prompts, good.positions)


def test_a_constant_feature_is_scaled_by_one() -> None:
    scaler = Scaler.of(np.array([[1, 5], [3, 5]], np.float32))
    np.testing.assert_allclose(scaler(np.array([[1, 5], [3, 6]], np.float32)), [[-1, 0], [1, 1]])
