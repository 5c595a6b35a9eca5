"""Every field of the observation, computed by hand from a hand-made view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dlb_gym.engine import observe
from dlb_gym.envs import DLBEnv
from dlb_gym.latency_model import LatencyModel
from dlb_gym.observation import FIELD_NAMES, FIELDS, Observation
from dlb_gym.views import View

# One replication, two roots, two cells; root 1 may only use cell 1. Z = 2 s.
ARCS = np.array([[[True, True], [False, True]]])
ALPHA_S, BETA_S, KNEE, SMOOTHING = 1.8, 0.25, 6.0, 1.5
SERVERS = 4


def masked(values: Any, dtype: Any = np.float64) -> Any:
    return np.where(ARCS, np.asarray(values), 0).astype(dtype)


def view(**changes: Any) -> View:
    parts: dict[str, Any] = {
        "admissible": ARCS,
        "rtt_s": masked([[[0.0, 0.1], [0.0, 0.05]]]),
        "probe_age_s": masked([[[0.002, 0.054], [9.0, 0.025]]]),
        "rif": masked([[[10, 36], [0, 37]]], np.int64),
        "servers": masked([[[2, SERVERS], [0, SERVERS]]], np.int64),
        "received": masked([[[70, 30], [0, 51]]], np.int64),
        "error_rate": masked([[[0.25, 0.0], [0.0, 0.125]]]),
        "model": np.array([[[[ALPHA_S, BETA_S, KNEE, SMOOTHING]] * 2] * 2]),
        "aversion": masked([[[0.0, 0.75], [0.5, 0.125]]]),
        "backlog_tokens": np.array([[[[900, 70], [0, 24]], [[33, 44], [3e7, 2.0]]]]),
        "sent": masked([[[80, 40], [0, 57]]], np.int64),
        "answered": masked([[[60, 28], [0, 50]]], np.int64),
        "interval_sent": masked([[[3, 1], [0, 0]]], np.int64),
        "arrival_rps": np.array([[12.0, 3.0]]),
        "tail": np.array([[[3.5, 0.5, 5.0, 1.25], [4.0, 0.25, 4.5, 1.0]]]),
        "server_rps": np.array([[5.0, 7.5]]),
        "fleet_rps": np.array([60.0]),
        "fleet_servers": np.array([10.0]),
        "zero_load_time_s": np.array([2.0]),
        "control_interval_s": np.array([0.1]),
    }
    return View(**(parts | changes))


def observed(**changes: Any) -> dict[str, Any]:
    seen = view(**changes)
    observation = Observation(2, 2)
    packed = observation.encode(seen, observation.constants(seen))
    assert packed.shape == (1, observation.size)
    assert packed.dtype == np.float32
    return {name: field[0] for name, field in observation.decode(packed).items()}


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def latency_s(n: float) -> float:
    """l(n) = alpha + beta s log(1 + exp((n - n0) / s))."""
    return ALPHA_S + BETA_S * SMOOTHING * softplus((n - KNEE) / SMOOTHING)


def marginal_s(n: float) -> float:
    """1 / mu'(n) with mu = n / l(n), by a central difference."""
    step = 1e-4
    rate_slope = ((n + step) / latency_s(n + step) - (n - step) / latency_s(n - step)) / (2 * step)
    return 1 / rate_slope


BY_HAND = {
    "admissible": [[1, 1], [0, 1]],
    "rtt": [[0, 0.05], [0, 0.025]],
    "probe_age": [[0.001, 0.027], [0, 0.0125]],
    "rif": [[5, 9], [0, 9.25]],
    "servers": [[0.2, 0.4], [0, 0.4]],
    "request_weight": [[0.5, 0.25], [0, 0.25]],
    "serving_latency": [
        [latency_s(5) / 2, latency_s(9) / 2], [0, latency_s(9.25) / 2]
    ],
    "marginal_latency": [
        [marginal_s(5) / 2, marginal_s(9) / 2], [0, marginal_s(9.25) / 2]
    ],
    "model_alpha": [[0.9, 0.9], [0, 0.9]],
    "model_beta": [[0.125, 0.125], [0, 0.125]],
    "model_knee": [[6, 6], [0, 6]],
    "model_smoothing": [[1.5, 1.5], [0, 1.5]],
    "error_rate": [[0.25, 0], [0, 0.125]],
    "aversion": [[0, 0.75], [0, 0.125]],
    "outstanding": [[10, 3], [0, 1.75]],
    "unseen": [[5, 2.5], [0, 1.5]],
    "routing": [[0.75, 0.25], [0, 0]],
    "arrival_load": [[0.2, 0.2], [0, 0.05]],
    "capacity_load": [[2 * 5 / 60, 4 * 7.5 / 60], [0, 4 * 7.5 / 60]],
    "zero_load_time_s": [[2, 2], [0, 2]],
    "control_interval": [[0.05, 0.05], [0, 0.05]],
    "prefill_backlog": [[450, 0], [0, 1e6]],
    "decode_backlog": [[35, 6], [0, 0.5]],
    "tail_alpha": [[1.75, 2], [0, 2]],
    "tail_beta": [[0.25, 0.125], [0, 0.125]],
    "tail_knee": [[5, 4.5], [0, 4.5]],
    "tail_smoothing": [[1.25, 1], [0, 1]],
}  # fmt: skip


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_a_field_is_what_its_definition_says(name: str) -> None:
    np.testing.assert_allclose(observed()[name], BY_HAND[name], rtol=2e-6, atol=1e-9)


def test_every_field_is_computed_by_hand_here() -> None:
    assert tuple(BY_HAND) == FIELD_NAMES


def test_a_cell_that_reports_no_server_is_counted_as_one() -> None:
    fields = observed(servers=np.zeros((1, 2, 2), dtype=np.int64))
    assert fields["rif"][0].tolist() == [10, 36]
    assert fields["outstanding"][0].tolist() == [20, 12]
    assert not fields["capacity_load"].any()


def test_whatever_exceeds_a_bound_saturates_there() -> None:
    huge = {
        "rtt_s": masked([[[1e9] * 2] * 2]),
        "probe_age_s": masked([[[1e9] * 2] * 2]),
        "rif": masked([[[10**9] * 2] * 2], np.int64),
        "servers": masked([[[50] * 2] * 2], np.int64),
        "sent": masked([[[10**9] * 2] * 2], np.int64),
        "arrival_rps": np.full((1, 2), 1e9),
        "backlog_tokens": np.full((1, 2, 2, 2), 1e9),
        "zero_load_time_s": np.array([1e-3]),
        "control_interval_s": np.array([1e3]),
    }
    saturated = set()
    # Two models, since beta * knee stays below alpha: a steep one, and one with a far knee.
    for model in ([1e6, 1e3, 500.0, 1e4], [1e6, 1.0, 1e5, 1e4]):
        fields = observed(**huge, model=np.array([[[model] * 2] * 2]), tail=np.array([[model] * 2]))
        for field in FIELDS:
            assert 0 <= fields[field.name].min() <= fields[field.name].max() <= field.high
            if fields[field.name].max() == field.high > 1:
                saturated.add(field.name)
    assert saturated == {f.name for f in FIELDS if f.high > 1} - {"zero_load_time_s"}
    assert observed(zero_load_time_s=np.array([1e9]))["zero_load_time_s"].max() == 3600


@pytest.mark.parametrize("name", ["probe_age_s", "error_rate", "arrival_rps"])
def test_what_is_not_finite_is_refused_by_the_fields_name(name: str) -> None:
    broken = getattr(view(), name).copy()
    broken.flat[1] = np.nan
    field = {"arrival_rps": "arrival_load"}.get(name, name.removesuffix("_s"))
    with pytest.raises(
        ValueError, match=f"^observation field '{field}' is not finite; report this$"
    ):
        observed(**{name: broken})


def test_an_infinity_that_saturates_is_refused_too() -> None:
    broken = view().probe_age_s.copy()
    broken.flat[1] = np.inf
    with pytest.raises(ValueError, match=r"^observation field 'one that saturates' is not finite"):
        observed(probe_age_s=broken)


def test_fields_that_are_packed_must_be_finite() -> None:
    observation = Observation(2, 2)
    fields = {field.name: np.ones((1, 2, 2)) for field in FIELDS}
    fields["rif"][0, 1, 0] = np.nan
    with pytest.raises(ValueError, match=r"^field 'rif' is not finite; make every entry finite$"):
        observation.pack(fields)


def test_the_space_has_the_fields_bounds_root_by_root_and_cell_by_cell() -> None:
    observation = Observation(3, 4)
    space = observation.space
    assert space.shape == (observation.size,) == (3 * 4 * len(FIELDS),)
    assert space.dtype == np.float32
    assert not space.low.any()
    decoded = observation.decode(space.high)
    for field in FIELDS:
        assert decoded[field.name].shape == (3, 4)
        assert (decoded[field.name] == np.float32(field.high)).all()


def test_decode_names_the_fields_in_order_without_copying() -> None:
    observation = Observation(2, 3)
    array = np.arange(5 * observation.size, dtype=np.float32).reshape(5, -1)
    fields = observation.decode(array)
    assert tuple(fields) == FIELD_NAMES
    position = {name: index for index, name in enumerate(FIELD_NAMES)}
    for name, field in fields.items():
        assert field.shape == (5, 2, 3)
        assert np.shares_memory(field, array)
        for r, i, j in ((0, 0, 0), (4, 1, 2), (2, 1, 0)):
            expected = array[r, (i * 3 + j) * len(FIELDS) + position[name]]
            assert field[r, i, j] == expected
    assert observation.decode(array[0])["rif"].shape == (2, 3)


def test_packing_named_fields_is_decoding_backwards() -> None:
    observation = Observation(2, 2)
    rng = np.random.default_rng(0)
    fields = {field.name: field.high * rng.random((3, 2, 2)) for field in FIELDS}
    packed = observation.pack(fields)
    assert packed.shape == (3, observation.size)
    for name, values in observation.decode(packed).items():
        np.testing.assert_array_equal(values, fields[name].astype(np.float32))
    outside = fields | {"rif": np.full((3, 2, 2), 1e7), "rtt": np.full((3, 2, 2), -1.0)}
    decoded = observation.decode(observation.pack(outside))
    assert (decoded["rif"] == 1000).all()
    assert not decoded["rtt"].any()
    for wrong in ({"riff": fields["rif"]}, {}):
        some = {name: value for name, value in fields.items() if name != "rif"} | wrong
        with pytest.raises(ValueError, match=r"exactly FIELD_NAMES; missing or unknown: .*'rif'"):
            observation.pack(some)


def test_the_fields_of_a_running_environment_add_up() -> None:
    """Facts of global_six: 55 servers, tau of the network model, all arcs."""
    env = DLBEnv(changes={"warmup_s": 2.0, "horizon_s": 1.0})
    first, _ = env.reset(seed=0)
    fields = env.task_spec.observation.decode(first)
    assert fields["admissible"].all()
    np.testing.assert_allclose(fields["routing"].sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(fields["capacity_load"].sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(fields["servers"][0] * 55, [14, 8, 12, 6, 10, 5], rtol=1e-6)
    assert fields["arrival_load"][:, 0].sum() == pytest.approx(0.8, rel=0.2)
    assert (fields["unseen"] <= fields["outstanding"] + 1e-6).all()
    age, rtt = fields["probe_age"], fields["rtt"]
    slack = 0.005 / fields["zero_load_time_s"] + 1e-6
    assert (age >= rtt / 2 - 1e-6).all()
    assert (age < rtt / 2 + slack).all()


def test_the_kernel_writes_the_columns_that_the_table_names() -> None:
    assert {FIELD_NAMES.index(name): name for name in observe.COLUMNS} == {
        column: name for name, column in observe.COLUMNS.items()
    }


def test_the_kernels_latencies_are_those_of_the_latency_model() -> None:
    rng = np.random.default_rng(0)
    rif = np.broadcast_to(rng.integers(0, 300, (500, 1, 1)), (500, 2, 2)).astype(np.int64)
    model = np.stack(
        [rng.uniform(0.1, 4, (500, 2, 2)), rng.uniform(0.01, 1, (500, 2, 2)),
         rng.uniform(0.5, 9, (500, 2, 2)), rng.uniform(0.01, 4, (500, 2, 2))], axis=-1,
    )  # fmt: skip
    model[..., 2] = np.minimum(model[..., 2], 0.9 * model[..., 0] / model[..., 1])
    one = view()
    batch = View(*(np.repeat(part, 500, axis=0) for part in one))
    batch = batch._replace(rif=rif, model=model, admissible=np.ones((500, 2, 2), dtype=bool))
    observation = Observation(2, 2)
    seen = observation.decode(observation.encode(batch, observation.constants(batch)))
    n = rif / np.maximum(batch.servers, 1)
    parameters = np.moveaxis(model, -1, 0)
    curve = LatencyModel(parameters[0] / 2, parameters[1] / 2, *parameters[2:]).at(n)
    for name in ("latency", "marginal_latency"):
        field = "serving_latency" if name == "latency" else name
        high = FIELDS[FIELD_NAMES.index(field)].high
        expected = np.minimum(getattr(curve, name), high)
        np.testing.assert_allclose(seen[field], expected, rtol=1e-6)
