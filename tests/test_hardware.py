"""Presets against the published figures that they were fitted to."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from scipy.optimize import nnls

from dlb_gym.hardware import PRESETS, PresetName
from tests.scenarios_by_hand import DATA, needs

SPLITWISE = DATA / "hardware" / "splitwise_fit.csv"
SILICON = DATA / "hardware" / "aiconfigurator_silicon_sample.csv.gz"
B200 = {
    "system": "b200_sxm",
    "backend": "trtllm",
    "model_path": "meta-llama/Llama-3.1-70B",
    "precision": "fp8",
    "mode": "agg",
    "tp_size": "8",
}

# Splitwise, Llama-2-70B, 8 GPUs, 512 prompt tokens: ms of a decode step by batch (medians).
BATCHES = [1, 2, 4, 8, 16, 32, 64]
DECODE_MS = {
    "a100": [44.85, 44.56, 45.79, 46.47, 50.44, 53.02, 71.61],
    "h100": [29.76, 30.26, 31.79, 32.50, 34.17, 38.62, 50.16],
}
# The same, batch 1: ms of prefill of 1024 and 2048 tokens.
PREFILL_MS = {"a100": [154.46, 274.22], "h100": [77.91, 136.80]}
# aiconfigurator, Llama-3.1-70B in 8 bits, TensorRT-LLM, 8 B200: ms per output token at batches of
# 4, 8, 16, 32, 64 and 128, by prompt and output tokens.
PER_TOKEN_MS = {
    (1024, 1024): [5.44526, 5.67711, 6.50779, 7.36363, 9.59827, 13.6502],
    (1024, 8192): [5.80842, 5.95119, 6.41574, 7.15539, 9.23108, 12.9987],
    (8192, 1024): [6.41139, 7.06811, 8.85206, 12.135, 19.3651, 32.9754],
}


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_decode_steps_are_those_that_splitwise_measured(name: PresetName) -> None:
    hardware, batch = PRESETS[name], np.array(BATCHES)
    context = batch * (512 + 128 / 2)
    step_s = (
        hardware.base_s + hardware.per_sequence_s * batch + hardware.per_context_token_s * context
    )
    np.testing.assert_allclose(1e3 * step_s, DECODE_MS[name], rtol=0.07)


@pytest.mark.parametrize("name", ["a100", "h100"])
def test_more_prompt_tokens_take_the_time_that_splitwise_measured(name: PresetName) -> None:
    measured_ms = PREFILL_MS[name][1] - PREFILL_MS[name][0]
    expected_ms = 1e3 * 1_024 * PRESETS[name].prefill_s_per_token
    assert expected_ms == pytest.approx(measured_ms, rel=0.25)


def test_a_b200_makes_tokens_at_the_measured_pace() -> None:
    """At work a batch of B prefills B prompt / output tokens an iteration."""
    hardware, batch = PRESETS["b200"], np.array([4, 8, 16, 32, 64, 128])
    errors, measured = [], []
    for (prompt, output), expected_ms in PER_TOKEN_MS.items():
        iteration_s = (
            hardware.base_s
            + hardware.per_sequence_s * batch
            + hardware.per_context_token_s * batch * (prompt + output / 2)
            + hardware.prefill_s_per_token * batch * prompt / output
        )
        errors.append(1e3 * iteration_s - expected_ms)
        measured.append(expected_ms)
    assert np.abs(np.array(errors) / measured).max() < 0.04
    assert np.median(np.abs(np.array(errors) / measured)) == pytest.approx(0.012, abs=5e-4)
    assert 1 - np.square(errors).sum() / (18 * np.var(measured)) == pytest.approx(0.9997, abs=5e-5)


def test_the_kv_cache_is_the_memory_that_weights_leave() -> None:
    """90 % of 8 x 80 GiB less 137.96 GB, 327,680 B a token; of 8 x 180 GiB less 70.55 GB, half."""
    assert PRESETS["a100"].kv_tokens == PRESETS["h100"].kv_tokens
    assert PRESETS["h100"].kv_tokens == pytest.approx((618.475e9 - 137.96e9) / 327_680, rel=1e-4)
    assert PRESETS["b200"].kv_tokens == pytest.approx((1391.569e9 - 70.55e9) / 163_840, rel=1e-4)


def test_newer_hardware_is_faster() -> None:
    def iteration_s(name: PresetName) -> float:
        hardware = PRESETS[name]
        return (
            hardware.base_s
            + 32 * hardware.per_sequence_s
            + 32 * 600 * hardware.per_context_token_s
            + 80 * hardware.prefill_s_per_token
        )

    assert iteration_s("a100") > iteration_s("h100") > iteration_s("b200") > 0


@needs(SPLITWISE)
@pytest.mark.parametrize(("name", "file_name"), [("a100", "a100-80gb"), ("h100", "h100-80gb")])
def test_splitwise_presets_are_the_published_fit(name: PresetName, file_name: str) -> None:
    with SPLITWISE.open() as file:
        (fit,) = (
            row
            for row in csv.DictReader(file)
            if (row["model"], row["hardware"], row["tensor_parallel"])
            == ("llama2-70b", file_name, "8")
        )
    hardware = PRESETS[name]
    assert hardware.base_s == pytest.approx(1e-3 * float(fit["decode_c_ms"]))
    assert hardware.per_sequence_s == pytest.approx(1e-3 * float(fit["decode_d_ms_per_seq"]))
    assert hardware.per_context_token_s == pytest.approx(
        1e-3 * float(fit["decode_e_ms_per_seq_ctx_token"])
    )
    assert hardware.prefill_s_per_token == pytest.approx(
        1e-3 * float(fit["prefill_b_ms_per_token"])
    )


def test_the_b200_preset_is_the_least_squares_fit() -> None:
    """In relative error, with coefficients of at least 0."""
    rows, measured = [], []
    for (prompt, output), per_token_ms in PER_TOKEN_MS.items():
        for batch, expected_ms in zip([4, 8, 16, 32, 64, 128], per_token_ms, strict=True):
            rows.append([1, batch, batch * (prompt + output / 2), batch * prompt / output])
            measured.append(expected_ms)
    weights = 1 / np.array(measured)
    fit, _ = nnls(np.array(rows) * weights[:, None], np.ones(len(rows)))
    hardware = PRESETS["b200"]
    assert 1e3 * np.array(
        [
            hardware.base_s,
            hardware.per_sequence_s,
            hardware.per_context_token_s,
            hardware.prefill_s_per_token,
        ]
    ) == pytest.approx(fit, rel=1e-4)


@needs(SILICON)
def test_the_b200_figures_are_the_published_ones() -> None:
    found: dict[tuple[int, int], dict[int, float]] = {}
    with gzip.open(SILICON, "rt") as file:
        for row in csv.DictReader(file):
            if B200.items() <= row.items():
                lengths = (int(row["isl"]), int(row["osl"]))
                batch = int(float(row["batch_size"]))
                found.setdefault(lengths, {})[batch] = float(row["silicon_tpot_ms"])
    for lengths, per_token_ms in PER_TOKEN_MS.items():
        assert [found[lengths][batch] for batch in (4, 8, 16, 32, 64, 128)] == per_token_ms
