"""Server designs: which kind is meant, presets and explicit keys, contradictions refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from dlb_gym.engine import batches
from dlb_gym.hardware import PRESETS
from dlb_gym.server_design import ContinuousBatching, Disaggregated, ServerDesign, check_design
from dlb_gym.strict import Strict


class Document(Strict):
    """Something with servers."""

    server: ServerDesign = Disaggregated()


def loaded(server: Any) -> Disaggregated | ContinuousBatching:
    return Document.model_validate({"server": server}).server


def test_without_a_kind_a_server_is_disaggregated() -> None:
    assert Document().server == loaded({}) == Disaggregated()
    assert loaded({"decode_engines": 3, "slots_per_engine": 5}) == Disaggregated(
        decode_engines=3, slots_per_engine=5
    )
    assert Disaggregated().decode_slots == 8


def test_a_kind_is_kept_through_dictionaries_and_models() -> None:
    batching = loaded({"kind": "continuous_batching", "preset": "a100"})
    assert batching == ContinuousBatching(preset="a100")
    assert loaded(batching) == batching
    for design in (batching, Disaggregated(queue_limit=9)):
        assert loaded(design.model_dump()) == design


@pytest.mark.parametrize("kind", ["batching", None, 3, ["disaggregated"]])
def test_another_kind_is_refused_with_the_valid_ones(kind: object) -> None:
    with pytest.raises(ValidationError, match="'disaggregated' or 'continuous_batching'"):
        loaded({"kind": kind})


@pytest.mark.parametrize("server", [7, "h100", ["continuous_batching"]])
def test_what_is_no_table_is_refused(server: object) -> None:
    with pytest.raises(ValidationError):
        loaded(server)


def test_a_key_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        loaded({"kind": "continuous_batching", "decode_engines": 2})
    with pytest.raises(ValidationError, match="Extra inputs"):
        loaded({"max_batch": 2})


def test_stated_keys_replace_the_presets_and_a_cell_may_have_its_own() -> None:
    design = ContinuousBatching(preset="a100", base_s=0.1, kv_tokens=5_000)
    own, cells = design.on(), design.on("b200")
    assert (own.base_s, own.kv_tokens) == (cells.base_s, cells.kv_tokens) == (0.1, 5_000)
    assert own.per_sequence_s == PRESETS["a100"].per_sequence_s
    assert cells.per_sequence_s == PRESETS["b200"].per_sequence_s
    assert ContinuousBatching(per_sequence_s=0.0).on().per_sequence_s == 0.0
    assert own.max_wait_s == math.inf
    assert ContinuousBatching(max_wait_s=3.0).on().max_wait_s == 3.0


def test_numbers_stand_where_the_engine_reads_them() -> None:
    server = ContinuousBatching(draft_tokens=3, acceptance=0.7, max_wait_s=9.0).on()
    assert len(server.limits) == batches.LIMIT_COLUMNS
    assert len(server.timing) == batches.TIMING_COLUMNS
    assert server.limits[batches.MAX_BATCH] == server.max_batch
    assert server.limits[batches.KV_TOKENS] == server.kv_tokens
    assert server.limits[batches.PREFILL_BUDGET] == server.prefill_budget_tokens
    assert server.limits[batches.DRAFT_TOKENS] == 3
    assert server.timing[batches.BASE_S] == server.base_s
    assert server.timing[batches.PER_SEQUENCE_S] == server.per_sequence_s
    assert server.timing[batches.PER_CONTEXT_TOKEN_S] == server.per_context_token_s
    assert server.timing[batches.PREFILL_S] == server.prefill_s_per_token
    assert server.timing[batches.ACCEPTANCE] == 0.7
    assert server.timing[batches.MAX_WAIT_S] == 9.0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"queue_limit": 63}, "queue_limit = 63 is below max_batch = 64"),
        ({"draft_tokens": 2}, "draft_tokens = 2 and acceptance = 0.0 contradict"),
        ({"acceptance": 0.5}, "draft_tokens = 0 and acceptance = 0.5 contradict"),
        ({"max_batch": 0}, "greater than or equal to 1"),
        ({"kv_tokens": -1}, "greater than or equal to 1"),
        ({"prefill_budget_tokens": 0}, "greater than or equal to 1"),
        ({"base_s": 0.0}, "greater than 0"),
        ({"per_sequence_s": -1e-3}, "greater than or equal to 0"),
        ({"per_context_token_s": math.inf}, "finite"),
        ({"prefill_s_per_token": math.nan}, "finite"),
        ({"acceptance": 1.1, "draft_tokens": 1}, "less than or equal to 1"),
        ({"max_wait_s": 0.0}, "greater than 0"),
        ({"preset": "h1000"}, "'a100', 'h100' or 'b200'"),
        ({"max_batch": 2.0}, "valid integer"),
    ],
)
def test_nonsense_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        loaded({"kind": "continuous_batching", **keys})


def test_patience_belongs_to_both_designs() -> None:
    assert loaded({"max_wait_s": 2.0}) == Disaggregated(max_wait_s=2.0)
    with pytest.raises(ValidationError, match="greater than 0"):
        loaded({"max_wait_s": -2.0})


def test_a_kv_cache_below_one_request_is_refused_by_name() -> None:
    check_design(Disaggregated(), 1e9, 1e9)
    check_design(ContinuousBatching(kv_tokens=700), 500.0, 200.0)
    with pytest.raises(ValueError, match=r"server.kv_tokens = 699 is below .* 500 prompt and 200"):
        check_design(ContinuousBatching(kv_tokens=699), 500.0, 200.0)
    with pytest.raises(ValueError, match=r"\(preset 'a100'\) .* raise kv_tokens or shorten"):
        check_design(ContinuousBatching(preset="b200"), 5e6, 200.0, [None, "a100"])
