"""Regions, the great-circle RTT model and measured RTT files."""

from __future__ import annotations

import csv
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from dlb_gym.network import (
    EARTH_RADIUS_KM,
    MAX_MEASURED_REGIONS,
    PATH_STRETCH,
    REGIONS,
    SAME_REGION_RTT_S,
    SITE_OVERHEAD_S,
    MeasuredRtt,
    NetworkError,
    Region,
    great_circle_km,
    load_rtt_csv,
    modelled_rtt_s,
    rescaled_to_mean,
    rtt_matrix_s,
    rtt_s,
)
from dlb_gym.rates import one_way_s
from dlb_gym.scenario_source import override
from tests.scenarios_by_hand import two_cells

PROJECT = Path(__file__).resolve().parents[1]
MEASURED = PROJECT.parent / "shared" / "data" / "network"


def place(latitude_deg: float, longitude_deg: float) -> Region:
    return Region("here", "Here", latitude_deg, longitude_deg, 0.0, "Nowhere")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- the model


@pytest.mark.parametrize(
    ("a", "b", "share_of_circumference"),
    [
        (place(0.0, 0.0), place(0.0, 90.0), 1 / 4),
        (place(0.0, 10.0), place(90.0, -70.0), 1 / 4),
        (place(30.0, 20.0), place(-30.0, -160.0), 1 / 2),
        (place(0.0, 179.5), place(0.0, -179.5), 1 / 360),
        (place(12.0, 34.0), place(12.0, 34.0), 0.0),
    ],
)
def test_distances_are_shares_of_the_circumference(
    a: Region, b: Region, share_of_circumference: float
) -> None:
    expected_km = share_of_circumference * 2 * math.pi * EARTH_RADIUS_KM
    assert great_circle_km(a, b) == pytest.approx(expected_km, abs=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "published_km"),
    [
        ("europe-west2", "europe-west3", 638),  # London to Frankfurt
        ("europe-west2", "australia-southeast1", 16_994),  # London to Sydney
        ("asia-northeast1", "us-west2", 8_815),  # Tokyo to Los Angeles
        ("asia-east2", "asia-southeast1", 2_590),  # Hong Kong to Singapore
    ],
)
def test_distances_between_cities_are_the_published_ones(
    a: str, b: str, published_km: float
) -> None:
    assert great_circle_km(REGIONS[a], REGIONS[b]) == pytest.approx(published_km, rel=0.01)


def test_distance_equals_the_angle_between_position_vectors() -> None:
    def vector(region: Region) -> NDArray[np.float64]:
        latitude, longitude = np.radians([region.latitude_deg, region.longitude_deg])
        return np.array(
            [
                np.cos(latitude) * np.cos(longitude),
                np.cos(latitude) * np.sin(longitude),
                np.sin(latitude),
            ]
        )

    for a, b in itertools.combinations(REGIONS.values(), 2):
        angle = np.arctan2(
            np.linalg.norm(np.cross(vector(a), vector(b))), np.sum(vector(a) * vector(b))
        )
        assert great_circle_km(a, b) == pytest.approx(EARTH_RADIUS_KM * angle, rel=1e-12)


def test_every_thousand_kilometres_add_15_9_ms_to_2_7_ms() -> None:
    assert modelled_rtt_s(0.0) == pytest.approx(0.0027)
    assert modelled_rtt_s(1_000.0) == pytest.approx(0.0027 + 0.0159)
    assert modelled_rtt_s(10_000.0) == pytest.approx(0.0027 + 0.159)


def test_a_region_reaches_itself_in_300_microseconds() -> None:
    assert rtt_s("us-east4", "us-east4") == SAME_REGION_RTT_S == 3e-4


def test_round_trips_are_symmetric_and_no_faster_than_light_in_fibre() -> None:
    for a, b in itertools.combinations(REGIONS, 2):
        assert rtt_s(a, b) == rtt_s(b, a)
        assert rtt_s(a, b) > 2 * great_circle_km(REGIONS[a], REGIONS[b]) / 200_000


def test_matrix_has_a_row_for_every_root_and_a_column_for_every_cell() -> None:
    matrix = rtt_matrix_s(["europe-west2", "us-west1"], ["us-west1", "europe-west2", "us-east1"])
    assert matrix.shape == (2, 3)
    assert matrix.dtype == np.float64
    assert matrix[0, 1] == matrix[1, 0] == SAME_REGION_RTT_S
    assert matrix[0, 0] == matrix[1, 1] == rtt_s("europe-west2", "us-west1")
    assert matrix[1, 2] == rtt_s("us-east1", "us-west1")


def test_matrix_of_no_roots_keeps_its_columns() -> None:
    assert rtt_matrix_s([], ["us-west1", "us-east1"]).shape == (0, 2)


def test_an_unknown_region_is_named_with_its_nearest_names() -> None:
    with pytest.raises(NetworkError, match=r"region 'us-esat4'; the nearest names are us-east4"):
        rtt_s("us-east4", "us-esat4")
    with pytest.raises(NetworkError, match=r"unknown region 'atlantis'; the names are asia-east1"):
        rtt_matrix_s(["atlantis"], ["us-east4"])


def test_regions_are_named_by_their_keys_and_stand_on_the_globe() -> None:
    assert len(REGIONS) == 20
    for name, region in REGIONS.items():
        assert region.name == name
        assert -90 <= region.latitude_deg <= 90
        assert -180 <= region.longitude_deg <= 180
        # Standard time follows the sun: an hour is 15 degrees, give or take two zones.
        assert abs(region.utc_offset_h - region.longitude_deg / 15) <= 2


# --- measured files


def test_an_arc_gets_the_mean_of_its_two_directions_in_seconds(tmp_path: Path) -> None:
    path = write(tmp_path / "rtt.csv", "region,a,b,c\na,1,10,30\nb,20,2,50\nc,40,70,3\n")
    measured = load_rtt_csv(path)
    assert measured.regions == ("a", "b", "c")
    np.testing.assert_allclose(measured.directed_rtt_s[0], [0.001, 0.010, 0.030], rtol=1e-15)
    np.testing.assert_allclose(
        measured.between(["b", "a"], ["c", "b", "a"]),
        [[0.060, 0.002, 0.015], [0.035, 0.015, 0.001]],
        rtol=1e-15,
    )


def test_a_root_and_a_cell_may_share_a_region_and_repeat_it(tmp_path: Path) -> None:
    measured = load_rtt_csv(write(tmp_path / "rtt.csv", "region,a,b\na,1,10\nb,20,2\n"))
    np.testing.assert_allclose(
        measured.between(["a", "a"], ["a", "b", "b"]), [[0.001, 0.015, 0.015]] * 2, rtol=1e-15
    )


def test_byte_order_mark_spaces_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "rtt.csv", "\ufeffregion, a ,b\r\na,1, 10\r\n\r\nb,20,2\r\n\r\n")
    measured = load_rtt_csv(path)
    assert measured.regions == ("a", "b")
    assert measured.directed_rtt_s.tolist() == [[0.001, 0.010], [0.020, 0.002]]


def test_measured_round_trips_cannot_be_overwritten(tmp_path: Path) -> None:
    measured = load_rtt_csv(write(tmp_path / "rtt.csv", "region,a\na,1\n"))
    with pytest.raises(ValueError, match="read-only"):
        measured.directed_rtt_s[0, 0] = 2.0


def test_a_region_missing_from_the_file_is_named_with_file_and_nearest_names() -> None:
    measured = MeasuredRtt(("us-east1", "asia-east1"), np.zeros((2, 2)), "rtt.csv")
    with pytest.raises(NetworkError, match=r"'us-east4' is not in the RTT file rtt\.csv.*us-east1"):
        measured.between(["us-east1"], ["asia-east1", "us-east4"])
    with pytest.raises(NetworkError, match=r"'mars'.*the names are us-east1, asia-east1"):
        measured.between(["mars"], ["us-east1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; an RTT file starts with the header 'region,<names>'"),
        ("\n\n", "is empty; an RTT file starts with the header 'region,<names>'"),
        (
            'region,a\na,"' + "1\n" * 70_000,
            r"field larger than field limit \(131072\); write one plain CSV row a line",
        ),
        ("region\n", "line 1: the header must be 'region' and at least one name"),
        ("name,a\na,1\n", "line 1: the header .* it starts with 'name'"),
        ("region,a,a\na,1,1\na,1,1\n", "line 1, column 3: the name 'a' stands twice"),
        ("region,a,\na,1,1\n", "line 1, column 3: a name is empty; give every region one name"),
        ("region,a,b\na,1,2\n", "ends after 1 rows .* add the row of 'b'"),
        ("region,a,b\na,1,2\nb,3\n", "line 3: 1 values where the header names 2 regions"),
        ("region,a,b\na,1,2,9\nb,3,4\n", "line 2: 3 values where the header names 2 regions"),
        ("region,a\na,1\nb,3\n", "line 3: row 2 where the header names 1 regions"),
        (
            "region,a,b\nb,1,2\na,3,4\n",
            "line 2: row 'b' where the header has 'a'; rows and columns",
        ),
        ("region,a,b\na,1,nan\nb,3,4\n", "line 2, column 'b': 'nan' must be a finite number"),
        ("region,a,b\na,1,2\nb,inf,4\n", "line 3, column 'a': 'inf' must be a finite number"),
        ("region,a,b\na,1,-2\nb,3,4\n", "line 2, column 'b': '-2' must be a finite number >= 0"),
        ("region,a,b\na,1,fast\nb,3,4\n", "line 2, column 'b': 'fast' must be a finite number"),
        ("region,a,b\na,1,\nb,3,4\n", "line 2, column 'b': '' must be a finite number"),
    ],
)
def test_a_bad_file_is_refused_by_file_line_and_rule(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path / "rtt.csv", text)
    with pytest.raises(NetworkError, match=re.escape(str(path)) + ".*" + message):
        load_rtt_csv(path)


def test_a_missing_file_a_folder_and_binary_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        NetworkError, match=r"the RTT file .*none\.csv does not exist; check the path"
    ):
        load_rtt_csv(tmp_path / "none.csv")
    with pytest.raises(NetworkError, match="is no regular file"):
        load_rtt_csv(tmp_path)
    for name, told in (
        ("a" * 5_000, "cannot be read: File name too long; give a readable file"),
        ("a\0b", "cannot be read: embedded null byte; check the path"),
    ):
        with pytest.raises(NetworkError, match=f"^the RTT file .* {told}$"):
            load_rtt_csv(name)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"region,\xff\xfe\n")
    with pytest.raises(
        NetworkError, match=r"the RTT file .*binary\.csv is not text; save it as CSV in UTF-8"
    ):
        load_rtt_csv(binary)


def test_too_many_regions_are_refused_by_the_header_alone(tmp_path: Path) -> None:
    names = ",".join(f"r{number}" for number in range(MAX_MEASURED_REGIONS + 1))
    path = write(tmp_path / "rtt.csv", f"region,{names}\nnot,even,read\n")
    with pytest.raises(
        NetworkError, match="line 1: 1001 regions; at most 1000 are read: keep those"
    ):
        load_rtt_csv(path)


def test_an_endless_line_is_refused_before_it_is_held(tmp_path: Path) -> None:
    path = write(tmp_path / "rtt.csv", "region," + "a," * 200_000)
    with pytest.raises(
        NetworkError, match="a line has more than 64000 characters; at most 1000 reg"
    ):
        load_rtt_csv(path)


# --- rescaling


def test_rescaling_gives_the_mean_under_the_mask_and_keeps_ratios() -> None:
    times_s = np.array([[0.0003, 0.010, 0.030], [0.010, 0.0003, 0.050]])
    between = np.array([[False, True, True], [True, False, True]])
    scaled = rescaled_to_mean(times_s, 0.050, between)  # their mean is 0.025: a factor of 2
    np.testing.assert_allclose(scaled, 2 * times_s, rtol=1e-15)
    assert scaled[between].mean() == pytest.approx(0.050, rel=1e-15)
    assert times_s[0, 1] == 0.010


@pytest.mark.parametrize("mean_rtt_s", [0.0, -1.0, math.nan, math.inf])
def test_a_mean_that_is_no_positive_number_is_refused(mean_rtt_s: float) -> None:
    with pytest.raises(NetworkError, match=r"mean_rtt_s = .* finite number > 0"):
        rescaled_to_mean(np.ones((2, 2)), mean_rtt_s, np.ones((2, 2), dtype=np.bool_))


def test_a_scenarios_mean_leaves_out_cells_of_the_roots_own_name_not_of_its_region() -> None:
    """Round trips in ms: east to east 2, to west 6 (one region); west to east 14, to west 3."""
    scenario = two_cells(
        network={"rtt_s": [[0.002, 0.006], [0.014, 0.003]], "mean_rtt_s": 0.1},
        cells=[{"name": n, "region": "us-east4", "servers": 4} for n in ("east", "west")],
    )  # (6 + 14) / 2 = 10 ms become 100 ms: all times ten, one-way half of it
    np.testing.assert_allclose(one_way_s(scenario), [[0.01, 0.03], [0.07, 0.015]], rtol=1e-15)
    apart = {"cells.0.name": "a", "cells.1.name": "b"}  # mean of all four: 6.25 ms, times 16
    expected = [[0.016, 0.048], [0.112, 0.024]]
    np.testing.assert_allclose(one_way_s(override(scenario, apart)), expected, rtol=1e-15)


def test_rescaling_without_a_pair_of_different_names_is_refused() -> None:
    told = "a root and a cell of another name, and there is none; leave mean_rtt_s out or change"
    with pytest.raises(NetworkError, match=told):
        rescaled_to_mean(np.ones((1, 1)), 0.02, np.zeros((1, 1), dtype=np.bool_))
    with pytest.raises(NetworkError, match=told):
        rescaled_to_mean(np.zeros((1, 2)), 0.02, np.ones((1, 2), dtype=np.bool_))


def test_a_mask_of_another_shape_or_type_is_refused() -> None:
    with pytest.raises(NetworkError, match=r"bool of shape \(2,\).*shape \(2, 2\)"):
        rescaled_to_mean(np.ones((2, 2)), 0.02, np.ones(2, dtype=np.bool_))
    with pytest.raises(
        NetworkError, match=r"is int64 of shape .*; it must be bool of rtt_s's shape"
    ):
        rescaled_to_mean(np.ones((2, 2)), 0.02, np.ones((2, 2), dtype=np.int64))


# --- the fit that docs/network.md describes


@pytest.fixture(scope="module")
def places() -> dict[tuple[str, str], Region]:
    """Regions of all providers: ours for Google Cloud, the data set's for the others."""
    if not MEASURED.is_dir():
        pytest.skip("the measured matrices are not part of the project and not beside it")
    with (MEASURED / "regions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    theirs = {
        (row["provider"], row["region"]): place(float(row["lat"]), float(row["lon"]))
        for row in rows
    }
    return theirs | {("gcp", name): region for name, region in REGIONS.items()}


def distances_and_rtts(
    provider: str, file_name: str, places: dict[tuple[str, str], Region]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Great-circle distance (km) and measured RTT (s) of every pair of different regions."""
    measured = load_rtt_csv(MEASURED / file_name)
    rtts = measured.between(measured.regions, measured.regions)
    upper = np.triu_indices(len(measured.regions), k=1)
    regions = [places[provider, name] for name in measured.regions]
    distances = [great_circle_km(regions[i], regions[j]) for i, j in zip(*upper, strict=True)]
    return np.array(distances), rtts[upper]


def test_the_constants_minimise_the_mean_absolute_log_error_on_google_cloud(
    places: dict[tuple[str, str], Region],
) -> None:
    distance_km, measured_s = distances_and_rtts("gcp", "gcp_rtt_2019_ms.csv", places)

    def loss(parameters: NDArray[np.float64]) -> float:
        stretch, overhead_ms = parameters
        modelled_ms = overhead_ms + stretch * distance_km / 100
        return float(np.mean(np.abs(np.log(modelled_ms / (1_000 * measured_s)))))

    fit = minimize(loss, (1.8, 1.0), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-9})
    assert fit.x[0] == pytest.approx(PATH_STRETCH, abs=0.005)
    assert fit.x[1] == pytest.approx(1_000 * SITE_OVERHEAD_S, abs=0.05)


@pytest.mark.parametrize(
    ("provider", "file_name", "row"),
    [
        ("gcp", "gcp_rtt_2019_ms.csv", "Google Cloud 2019 (fitted)"),
        ("azure", "azure_rtt_ms.csv", "Azure, published medians, 2026"),
        ("aws", "aws_rtt_ms.csv", "AWS pings, April 2022"),
    ],
)
def test_the_documented_errors_are_those_of_the_model(
    provider: str, file_name: str, row: str, places: dict[tuple[str, str], Region]
) -> None:
    distance_km, measured_s = distances_and_rtts(provider, file_name, places)
    error = np.array([modelled_rtt_s(distance) for distance in distance_km]) / measured_s - 1
    page = (PROJECT / "docs" / "network.md").read_text(encoding="utf-8")
    documented = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", page, flags=re.MULTILINE)
    assert documented is not None
    number, *percentages = (float(value) for value in documented[1].split("|"))
    assert number == len(error)
    assert percentages == pytest.approx(
        [
            100 * np.median(np.abs(error)),
            100 * np.quantile(np.abs(error), 0.9),
            100 * np.median(error),
            100 * np.mean(error),
        ],
        abs=0.05001,
    )


def test_the_regions_are_those_of_the_measured_google_cloud_matrix(
    places: dict[tuple[str, str], Region],
) -> None:
    measured = load_rtt_csv(MEASURED / "gcp_rtt_2019_ms.csv")
    assert measured.regions == tuple(REGIONS)
    assert np.diag(measured.directed_rtt_s).mean() == pytest.approx(SAME_REGION_RTT_S, abs=5e-5)
