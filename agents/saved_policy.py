"""A learned policy as two files that hold numbers and text only, so that reading them runs nothing.

`policy.json` says what the policy is (`Description`), `policy.safetensors` holds its tensors: the
network's weights, float32, and the running statistics of the observation, float64, where it has
any. Neither is a pickle. Whatever is wrong with one is a `LoadError`, before a network is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.numpy import save

from agents.networks import ArcActor, DescentActor, MlpActor
from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.aside import write_aside
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.printable import printable
from dlb_gym.strict import Strict

DESCRIPTION, TENSORS = "policy.json", "policy.safetensors"
FORMAT = 1
"""Goes up whenever the same two files would mean another policy: a changed network, gain or prior.
"""
MEAN, VARIANCE = "observation.mean", "observation.variance"
_MAX_DESCRIPTION_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_MAX_TENSOR_BYTES = 1 << 30
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}

Tensors = Mapping[str, NDArray[Any]]
Count = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=4096)]
Text = Annotated[str, Field(max_length=200)]


class LoadError(ValueError):
    """A learned policy that cannot be used; the message names file, rule and remedy."""


class ArcArchitecture(Strict):
    """`networks.ArcActor`, which fits any number of roots and cells."""

    kind: Literal["arc"]
    width: Width

    def actor(self, num_roots: int, num_cells: int) -> ArcActor:
        """The network for a task's sizes, its weights not yet loaded."""
        return ArcActor(num_roots, num_cells, self.width)


class MlpArchitecture(Strict):
    """`networks.MlpActor`, which fits the sizes it was trained on alone."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]

    def actor(self, num_roots: int, num_cells: int) -> MlpActor:
        """The network for a task's sizes, its weights not yet loaded."""
        arcs = num_roots * num_cells
        return MlpActor(arcs * len(FIELD_NAMES), self.hidden, arcs)


class DescentArchitecture(Strict):
    """`networks.DescentActor`, which fits any number of roots and cells and has a memory."""

    kind: Literal["descent"]
    width: Width

    def actor(self, num_roots: int, num_cells: int) -> DescentActor:
        """The network for a task's sizes, its weights not yet loaded."""
        return DescentActor(num_roots, num_cells, self.width)


class Seen(Strict):
    """The observation: fields in their order, and the sizes at training."""

    fields: Annotated[tuple[Text, ...], Field(max_length=1000)]
    num_roots: Count
    num_cells: Count


class Acted(Strict):
    """The action: `scale` times it is the logit of an arc."""

    encoding: Literal["logits"]
    scale: float


class Normalisation(Strict):
    """The network sees clip((x - mean) / sqrt(variance + epsilon)), within +-clip."""

    epsilon: Annotated[float, Field(gt=0)]
    clip: Annotated[float, Field(gt=0)]


class TrainedOn(Strict):
    """Where the policy comes from; decides nothing.

    Attributes:
        scenarios: Their names; empty for a family.
        family: Name of the family that drew them.
        reward: What was learned.
        seed: Of the training.
        steps: Environment steps taken, or iterations in the fluid model.
    """

    scenarios: tuple[Text, ...]
    family: Text | None
    reward: Text
    seed: int
    steps: int


class Description(Strict):
    """What a saved policy is.

    Attributes:
        format: Of the two files.
        network: Architecture.
        observation: What it reads.
        action: What it gives.
        normalisation: How the observation is normalised; None: not at all.
        trained_on: See `TrainedOn`.
        versions: Package -> version at training; decides nothing.
        tensors_sha256: Of the tensor file, 64 hexadecimal digits.
    """

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    network: Annotated[
        ArcArchitecture | DescentArchitecture | MlpArchitecture, Field(discriminator="kind")
    ]
    observation: Seen
    action: Acted
    normalisation: Normalisation | None
    trained_on: TrainedOn
    versions: Annotated[dict[Text, Text], Field(max_length=100)]
    tensors_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Format(BaseModel):
    """The one key that every format has."""

    model_config = ConfigDict(extra="ignore", strict=True)

    format: Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class SavedPolicy:
    """A description and the tensors that belong to it."""

    description: Description
    tensors: Tensors


def write_policy(folder: Path, content: Mapping[str, Any], tensors: Tensors) -> None:
    """Writes both files.

    Args:
        folder: Must be there.
        content: Of the `Description`, without `format` and `tensors_sha256`.
        tensors: Weights as float32, statistics as float64.

    Raises:
        LoadError: They would be refused by `read_policy`, and then nothing is written.
        OSError: They cannot be written.
    """
    path = folder / DESCRIPTION
    data = _packed(tensors, folder / TENSORS)
    digest = hashlib.sha256(data).hexdigest()
    description = _described({"format": FORMAT, "tensors_sha256": digest, **content}, path)
    text = description.model_dump_json(indent=1) + "\n"
    if (size := len(text.encode())) > _MAX_DESCRIPTION_BYTES:
        raise LoadError(
            f"{str(path)!r} would have {size:,} bytes; at most {_MAX_DESCRIPTION_BYTES:,} are "
            "read: name fewer scenarios in trained_on"
        )
    _tensor_bytes(description, path)
    _tensors(data, description, folder / TENSORS)
    write_aside(folder / TENSORS, data)
    write_aside(path, text)


def _packed(tensors: Tensors, path: Path) -> bytes:
    try:
        return save({name: np.ascontiguousarray(values) for name, values in tensors.items()})
    except safetensors.SafetensorError as error:
        raise LoadError(
            f"{str(path)!r} cannot hold these tensors ({_brief(error)}); give weights as float32 "
            "and statistics as float64"
        ) from error


def _described(content: Mapping[str, Any], path: Path) -> Description:
    try:
        return Description.model_validate(content)
    except ValidationError as error:
        raise LoadError(
            f"{str(path)!r} would describe no learned policy: {_first_fault(error)}; correct the "
            "content and write it again"
        ) from error


def read_policy(folder: Path) -> SavedPolicy:
    """Reads both files.

    Raises:
        LoadError: One is missing, unreadable, too large, of another format, not what its schema or
            architecture says, holds a number that is not finite, does not belong to the other, or
            the observation or action is another one in this version.
    """
    path = folder / DESCRIPTION
    description = _description(_content(path, _MAX_DESCRIPTION_BYTES, "a description"), path)
    expected = _tensor_bytes(description, path)
    path = folder / TENSORS
    data = _content(path, expected + _MAX_HEADER_BYTES, "the tensors of the network it names")
    if hashlib.sha256(data).hexdigest() != description.tensors_sha256:
        raise LoadError(
            f"{str(path)!r} does not belong to {DESCRIPTION} beside it, or is damaged: its SHA-256 "
            "is not the one named there; copy both files again, from one folder"
        )
    return SavedPolicy(description, _tensors(data, description, path))


def _content(path: Path, most_bytes: int, what: str) -> bytes:
    """A file's bytes, of which no more are read than it may have."""
    if not path.is_file():
        raise LoadError(
            f"{str(path)!r} is missing: a learned policy is {DESCRIPTION} and {TENSORS} in one "
            "folder, which train.py writes with every checkpoint; an SB3 zip holds a pickle, "
            "serves only to resume one's own training and is never evaluated"
        )
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise LoadError(f"{str(path)!r} cannot be read ({error}); copy it again") from error
    if len(data) > most_bytes:
        raise LoadError(
            f"{str(path)!r} is too large: {what} has at most {most_bytes:,} bytes; copy it again"
        )
    return data


def _description(data: bytes, path: Path) -> Description:
    try:
        number = _Format.model_validate_json(data).format
        if number != FORMAT:
            raise LoadError(
                f"{str(path)!r} has format {number}; this version reads format {FORMAT} only: "
                "use the version of dlb-gym that wrote it, or train again"
            )
        return Description.model_validate_json(data)
    except ValidationError as error:
        raise LoadError(
            f"{str(path)!r} describes no learned policy: {_first_fault(error)}; copy it again, or "
            "train again"
        ) from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    return _brief(f"{place}: {fault['msg']}" if place else fault["msg"])


def _brief(message: object) -> str:
    """A message that may quote the file, made fit for a line."""
    return printable(str(message))[:300]


def _tensor_bytes(description: Description, path: Path) -> int:
    """What the tensors take.

    Raises:
        LoadError: More than is read, or the policy is one of another version's task.
    """
    _require_same_task(description, path)
    size = sum(
        int(np.prod(shape, dtype=object)) * dtype.itemsize
        for shape, dtype in _expected(description).values()
    )
    if size > _MAX_TENSOR_BYTES:
        raise LoadError(
            f"{str(path)!r} names a network of {size:,} bytes; at most {_MAX_TENSOR_BYTES:,} are "
            "read: use a smaller one"
        )
    return size


def _require_same_task(description: Description, path: Path) -> None:
    """The observation's fields and the action's scale are those of this version."""
    fields = description.observation.fields
    if fields != FIELD_NAMES:
        differing = sorted(set(fields) ^ set(FIELD_NAMES))
        how = f"missing or unknown: {_brief(differing)}" if differing else "in another order"
        raise LoadError(
            f"{str(path)!r}: observation.fields are not this version's ({how}); "
            "use the version of dlb-gym that wrote it, or train again"
        )
    if description.action.scale != LOGIT_SCALE:
        raise LoadError(
            f"{str(path)!r}: action.scale = {description.action.scale}; this version's is "
            f"{LOGIT_SCALE}; use the version of dlb-gym that wrote it, or train again"
        )


def _expected(description: Description) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every tensor; takes no memory for them."""
    seen = description.observation
    with torch.device("meta"):
        weights = description.network.actor(seen.num_roots, seen.num_cells).state_dict()
    expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        name: (tuple(each.shape), _DTYPES["F32"]) for name, each in weights.items()
    }
    if description.normalisation is not None:
        size = seen.num_roots * seen.num_cells * len(FIELD_NAMES)
        expected |= dict.fromkeys((MEAN, VARIANCE), ((size,), _DTYPES["F64"]))
    return expected


def _tensors(data: bytes, description: Description, path: Path) -> Tensors:
    """The tensors of a file, exactly those that the description needs.

    Raises:
        LoadError: They are not, or the file is no safetensors file.
    """
    try:
        found = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise LoadError(
            f"{str(path)!r} is no safetensors file ({_brief(error)}); copy it again, or train again"
        ) from error
    expected = _expected(description)
    if differing := sorted(found.keys() ^ expected.keys()):
        name = differing[0]
        how = "has the unknown tensor" if name in found else "lacks the tensor"
        raise LoadError(
            f"{str(path)!r} {how} {name!r}, by the network and the normalisation that "
            f"{DESCRIPTION} names; copy both files again, or train again"
        )
    return {name: _array(name, found[name], *expected[name], path) for name in expected}


def _array(
    name: str, tensor: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any], path: Path
) -> NDArray[Any]:
    given = tuple(tensor["shape"])
    if given != shape or _DTYPES.get(tensor["dtype"]) != dtype:
        raise LoadError(
            f"{str(path)!r}: tensor {name!r} has shape {given} and type {tensor['dtype']}; by "
            f"{DESCRIPTION} it must have shape {shape} and type {dtype.name}; copy both files "
            "again, or train again"
        )
    values = np.frombuffer(tensor["data"], dtype).reshape(shape).copy()
    if not np.isfinite(values).all():
        raise LoadError(f"{str(path)!r}: tensor {name!r} holds NaN or infinity; train again")
    if name == VARIANCE and (values < 0.0).any():
        raise LoadError(f"{str(path)!r}: tensor {name!r} holds a negative number; train again")
    return values
