"""From actions to routing matrices, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlb_gym.actions import ENCODINGS, LOGIT_SCALE, action_space, to_routing

ALL = np.ones((1, 1, 4), dtype=np.bool_)


def routed(row: Any, encoding: Any, arcs: Any = ALL) -> NDArray[np.float64]:
    """The one row of a routing matrix."""
    mask = np.broadcast_to(np.asarray(arcs, dtype=np.bool_), (1, 1, len(row)))
    return to_routing(np.asarray(row, dtype=np.float32)[None, None], encoding, mask)[0, 0]


def test_weights_are_masked_and_normalised() -> None:
    assert routed([0.5, 0.25, 0.25, 1.0], "weights").tolist() == [0.25, 0.125, 0.125, 0.5]
    arcs = [True, False, True, True]
    assert routed([0.5, 0.9, 0.25, 0.25], "weights", arcs).tolist() == [0.5, 0.0, 0.25, 0.25]


def test_a_routing_vector_means_itself_as_weights() -> None:
    vector = [0.125, 0.5, 0.25, 0.125]
    assert routed(vector, "weights").tolist() == vector


def test_all_zero_weights_mean_uniform_over_the_arcs() -> None:
    """Fault kind 16."""
    assert routed([0, 0, 0, 0], "weights").tolist() == [0.25] * 4
    assert routed([0, 0.7, 0, 0], "weights", [1, 0, 1, 0]).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert routed([-1, -3, -1e30, 0], "weights").tolist() == [0.25] * 4


def test_logits_are_a_masked_softmax_of_eight_times_the_action() -> None:
    action = [0.5, -0.25, 1.0, 0.0]
    expected = np.exp(8.0 * np.array(action))
    np.testing.assert_allclose(routed(action, "logits"), expected / expected.sum(), rtol=1e-12)
    expected[2] = 0.0
    np.testing.assert_allclose(
        routed(action, "logits", [1, 1, 0, 1]), expected / expected.sum(), rtol=1e-12
    )


def test_the_factor_lets_one_of_six_cells_take_999_per_mille() -> None:
    action = [1.0] + [-1.0] * 5
    assert LOGIT_SCALE == 8.0
    assert routed(action, "logits", [1] * 6)[0] > 0.999
    assert np.exp(2) / (np.exp(2) + 5) < 0.6  # what it would be without


def test_values_outside_the_range_count_as_the_nearest_bound() -> None:
    np.testing.assert_array_equal(
        routed([1e30, 0.5, -1e30, 7], "weights"), routed([1, 0.5, 0, 1], "weights")
    )
    np.testing.assert_array_equal(
        routed([1e30, 0.5, -1e30, 7], "logits"), routed([1, 0.5, -1, 1], "logits")
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_equal_entries_share_equally_and_a_lone_arc_takes_all(encoding: str) -> None:
    """Fault kind 16."""
    for value in (1e30, 0.3, -0.7, -1e30):
        assert routed([value] * 4, encoding).tolist() == [0.25] * 4
        assert routed([value] * 4, encoding, [0, 0, 1, 0]).tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_root_without_arcs_gets_zeros(encoding: str) -> None:
    assert routed([0.3, 1, 0, 0.5], encoding, [0, 0, 0, 0]).tolist() == [0.0] * 4


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_finite_action_is_a_distribution_over_the_arcs(encoding: Any, data: Any) -> None:
    """Fault kinds 15 and 16."""
    cells = data.draw(st.integers(1, 12))
    row = data.draw(
        st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=cells, max_size=cells)
    )
    arcs = data.draw(st.lists(st.booleans(), min_size=cells, max_size=cells))
    routing = routed(row, encoding, arcs)
    assert (routing >= 0).all()
    assert not routing[~np.array(arcs)].any()
    assert routing.sum() == pytest.approx(float(any(arcs)), abs=1e-12)
    if encoding == "logits":
        assert (routing[np.array(arcs)] > 0).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_and_batch_size_do_not_change_a_bit(encoding: Any) -> None:
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, (5, 3, 9)).astype(np.float32)
    arcs = np.ones((5, 3, 9), dtype=np.bool_)
    together = to_routing(action, encoding, arcs)
    padded = np.zeros((5, 4, 17), dtype=np.float32)
    padded[:, :3, :9] = action
    mask = np.zeros(padded.shape, dtype=np.bool_)
    mask[:, :3, :9] = True
    np.testing.assert_array_equal(to_routing(padded, encoding, mask)[:, :3, :9], together)
    for row in range(5):
        alone = to_routing(action[row : row + 1], encoding, arcs[:1])
        assert alone[0].tobytes() == together[row].tobytes()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named_by_its_place(encoding: Any, value: float) -> None:
    """Fault kind 16."""
    action = np.full((3, 2, 4), 0.5)
    action[2, 1, 3] = value
    with pytest.raises(ValueError, match=f"replication 2, root 1, cell 3 is {value}"):
        to_routing(action, encoding, np.ones(action.shape, dtype=np.bool_))


def test_the_spaces_are_boxes_of_the_documented_bounds() -> None:
    for encoding, low in (("weights", 0.0), ("logits", -1.0)):
        space = action_space(encoding, 3, 5)  # type: ignore[arg-type]
        assert (space.shape, space.dtype) == ((3, 5), np.float32)
        assert (space.low == low).all()
        assert (space.high == 1.0).all()
    with pytest.raises(
        ValueError, match="action = 'softmax' is unknown; choose one of weights, log"
    ):
        action_space("softmax", 3, 5)  # type: ignore[arg-type]


def test_a_wrong_shape_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 4, 1\); it must be \(1, 1, 4\)"):
        to_routing(np.zeros((1, 4, 1)), "weights", ALL)
