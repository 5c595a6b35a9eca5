"""What is written is what is read: `write_policy` refuses by name whatever `read_policy` would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.saved_policy import LoadError, read_policy, write_policy
from dlb_gym.observation import FIELD_NAMES

Tensors = dict[str, NDArray[Any]]


def content() -> dict[str, Any]:
    """Of a policy with one hidden layer of two, for one root and one cell."""
    return {
        "network": {"kind": "mlp", "hidden": (2,)},
        "observation": {"fields": FIELD_NAMES, "num_roots": 1, "num_cells": 1},
        "action": {"encoding": "logits", "scale": 8.0},
        "normalisation": None,
        "trained_on": {
            "scenarios": ("small",), "family": None, "reward": "latency", "seed": 0, "steps": 1,
        },
        "versions": {"torch": "2"},
    }  # fmt: skip


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    shapes = {
        "hidden.0.weight": (2, len(FIELD_NAMES)), "hidden.0.bias": (2,),
        "action.weight": (1, 2), "action.bias": (1,),
    }  # fmt: skip
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    given = tensors()
    # A view that does not lie in one piece, as a transposed weight would.
    write_policy(tmp_path, content(), given | {"action.weight": given["action.weight"][:, ::-1]})
    saved = read_policy(tmp_path)
    assert saved.description.format == 1
    assert saved.description.trained_on.scenarios == ("small",)
    for name, values in given.items():
        expected = values[:, ::-1] if name == "action.weight" else values
        np.testing.assert_array_equal(saved.tensors[name], expected)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"network": {"kind": "mlp", "hidden": (0,)}}, "network.mlp.hidden.0: Input should be"),
        ({"network": {"kind": "mlp", "hidden": [2]}}, "network.mlp.hidden: Input should be"),
        ({"versions": {"torch": 2}}, "versions.torch: Input should be a valid string"),
        ({"versions": {"torch": "\udcff"}}, "versions.torch: Input should be a valid string"),
        ({"code": "print()"}, "code: Extra inputs are not permitted"),
        ({"format": 2}, "format: Input should be less than or equal to 1"),
        ({"normalisation": {"epsilon": 0.0, "clip": 1.0}}, "normalisation.epsilon: Input should"),
    ],
)
def test_content_that_is_not_the_schema_is_refused_by_name_and_not_written(
    tmp_path: Path, change: dict[str, Any], fault: str
) -> None:
    with pytest.raises(LoadError) as raised:
        write_policy(tmp_path, content() | change, tensors())
    message = str(raised.value)
    assert message.startswith(
        f"{str(tmp_path / 'policy.json')!r} would describe no learned policy: {fault}"
    )
    assert message.endswith("; correct the content and write it again")
    assert list(tmp_path.iterdir()) == []


def test_content_that_lacks_a_key_is_refused_by_name(tmp_path: Path) -> None:
    lacking = content()
    del lacking["action"]
    with pytest.raises(LoadError, match="no learned policy: action: Field required; correct the"):
        write_policy(tmp_path, lacking, tensors())


def of_another_scale(policy: dict[str, Any], _: Tensors) -> None:
    policy["action"]["scale"] = 4.0


def of_other_fields(policy: dict[str, Any], _: Tensors) -> None:
    policy["observation"]["fields"] = FIELD_NAMES[::-1]


def of_a_network_beyond_memory(policy: dict[str, Any], _: Tensors) -> None:
    policy["observation"] |= {"num_roots": 100_000, "num_cells": 100_000}


def of_very_many_scenarios(policy: dict[str, Any], _: Tensors) -> None:
    policy["trained_on"]["scenarios"] = ("n" * 200,) * 6_000


def with_a_type_that_no_file_holds(_: dict[str, Any], given: Tensors) -> None:
    given["action.bias"] = np.zeros(1, np.complex128)


def with_a_tensor_of_another_shape(_: dict[str, Any], given: Tensors) -> None:
    given["action.bias"] = np.zeros(2, np.float32)


def with_a_weight_that_is_no_number(_: dict[str, Any], given: Tensors) -> None:
    given["action.bias"][0] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_scale, r"json': action\.scale = 4\.0; this version's is 8\.0; use the version"),
        (
            of_other_fields,
            r"json': observation\.fields are not this version's \(in another order\)",
        ),
        (of_a_network_beyond_memory, r"json' names a network of [\d,]+ bytes; at most 1,073,741,8"),
        (
            of_very_many_scenarios,
            r"json' would have 1,\d{3},\d{3} bytes; at most 1,048,576 are read",
        ),
        (
            with_a_type_that_no_file_holds,
            r"tensors' cannot hold these tensors \(.*\); give weights",
        ),
        (with_a_tensor_of_another_shape, r"tensors': tensor 'action\.bias' has shape \(2,\) and"),
        (with_a_weight_that_is_no_number, r"tensors': tensor 'action\.bias' holds NaN or infinity"),
    ],
)
def test_whatever_would_not_be_read_is_not_written(
    tmp_path: Path, change: Callable[[dict[str, Any], Tensors], None], message: str
) -> None:
    policy, given = content(), tensors()
    change(policy, given)
    with pytest.raises(LoadError, match=message):
        write_policy(tmp_path, policy, given)
    assert list(tmp_path.iterdir()) == []
