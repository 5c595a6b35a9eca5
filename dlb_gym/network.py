"""Cloud regions and the round-trip times between them, modelled or measured.

Model, for regions a != b at great-circle distance d(a, b):

    rtt(a, b) = SITE_OVERHEAD_S + PATH_STRETCH * 2 d(a, b) / FIBRE_KM_PER_S
    rtt(a, a) = SAME_REGION_RTT_S

where 2 d / FIBRE_KM_PER_S is the least round trip that light in fibre allows. Both constants are
fitted to measured pings; docs/network.md tells how, and how far off the model is.

The simulator takes the same one-way latency in both directions of an arc, half of what this module
calls its round-trip time (`rtt_s`). A measured matrix therefore gives an arc the mean of its two
directions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from dlb_gym.input_files import InputFileError, input_path, read_whole
from dlb_gym.messages import MOST_CHARS, shown

FIBRE_KM_PER_S = 200_000.0
"""Speed of light in fibre: about two thirds of that in vacuum."""
EARTH_RADIUS_KM = 6_371.0088
"""Mean radius of the Earth (IUGG)."""
PATH_STRETCH = 1.59
"""Length of the path that packets take over the great circle."""
SITE_OVERHEAD_S = 2.7e-3
"""Round-trip time between two regions that no distance explains: access fibre and switches."""
SAME_REGION_RTT_S = 3.0e-4
"""Round-trip time from a region to itself: the mean of the measured diagonal, rounded."""
MAX_MEASURED_REGIONS = 1_000
"""The largest measured matrix that `load_rtt_csv` reads."""

MAX_MATRIX_BYTES = 32 * 2**20
"""The largest file that `load_rtt_csv` reads."""

_MAX_LINE_CHARS = 64 * MAX_MEASURED_REGIONS


class NetworkError(ValueError):
    """A region or round-trip time that cannot be used; names the value, rule and remedy."""


@dataclass(frozen=True)
class Region:
    """A cloud region, placed at the city its provider names.

    Attributes:
        name: The provider's name, such as `europe-west4`.
        city: City or county.
        latitude_deg: Degrees north.
        longitude_deg: Degrees east.
        utc_offset_h: Local standard time minus UTC, hours; no daylight saving.
        continent: Continent, as in `Europe`.
    """

    name: str
    city: str
    latitude_deg: float
    longitude_deg: float
    utc_offset_h: float
    continent: str


# Google Cloud's published region cities, at city-level coordinates (0.01 degree is about 1 km).
REGIONS: dict[str, Region] = {
    region.name: region
    for region in (
        Region("asia-east1", "Changhua County", 24.08, 120.54, 8.0, "Asia"),
        Region("asia-east2", "Hong Kong", 22.32, 114.17, 8.0, "Asia"),
        Region("asia-northeast1", "Tokyo", 35.68, 139.77, 9.0, "Asia"),
        Region("asia-northeast2", "Osaka", 34.69, 135.50, 9.0, "Asia"),
        Region("asia-south1", "Mumbai", 19.08, 72.88, 5.5, "Asia"),
        Region("asia-southeast1", "Singapore", 1.35, 103.71, 8.0, "Asia"),
        Region("australia-southeast1", "Sydney", -33.87, 151.21, 10.0, "Oceania"),
        Region("europe-north1", "Hamina", 60.57, 27.20, 2.0, "Europe"),
        Region("europe-west1", "St. Ghislain", 50.45, 3.82, 1.0, "Europe"),
        Region("europe-west2", "London", 51.51, -0.13, 0.0, "Europe"),
        Region("europe-west3", "Frankfurt", 50.11, 8.68, 1.0, "Europe"),
        Region("europe-west4", "Eemshaven", 53.44, 6.83, 1.0, "Europe"),
        Region("europe-west6", "Zurich", 47.37, 8.54, 1.0, "Europe"),
        Region("northamerica-northeast1", "Montreal", 45.50, -73.57, -5.0, "North America"),
        Region("southamerica-east1", "Sao Paulo", -23.55, -46.63, -3.0, "South America"),
        Region("us-central1", "Council Bluffs", 41.26, -95.86, -6.0, "North America"),
        Region("us-east1", "Moncks Corner", 33.20, -80.01, -5.0, "North America"),
        Region("us-east4", "Ashburn", 39.04, -77.49, -5.0, "North America"),
        Region("us-west1", "The Dalles", 45.59, -121.18, -8.0, "North America"),
        Region("us-west2", "Los Angeles", 34.05, -118.24, -8.0, "North America"),
    )
}


def great_circle_km(a: Region, b: Region) -> float:
    """Distance between two regions on a spherical Earth, km (haversine formula)."""
    latitude_a, latitude_b = math.radians(a.latitude_deg), math.radians(b.latitude_deg)
    half_longitude = math.radians(b.longitude_deg - a.longitude_deg) / 2.0
    haversine = (
        math.sin((latitude_b - latitude_a) / 2.0) ** 2
        + math.cos(latitude_a) * math.cos(latitude_b) * math.sin(half_longitude) ** 2
    )
    return 2.0 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, haversine)))


def modelled_rtt_s(distance_km: float) -> float:
    """Round-trip time between two different regions that far apart, seconds."""
    return SITE_OVERHEAD_S + PATH_STRETCH * 2.0 * distance_km / FIBRE_KM_PER_S


def rtt_s(a: str, b: str) -> float:
    """Modelled round-trip time between two regions, seconds; the same both ways.

    Raises:
        NetworkError: A name is not in `REGIONS`.
    """
    region_a, region_b = _region(a), _region(b)
    if region_a is region_b:
        return SAME_REGION_RTT_S
    return modelled_rtt_s(great_circle_km(region_a, region_b))


def rtt_matrix_s(root_regions: Sequence[str], cell_regions: Sequence[str]) -> NDArray[np.float64]:
    """Modelled round-trip times, float64 of shape (roots, cells), seconds.

    Raises:
        NetworkError: A name is not in `REGIONS`.
    """
    names = list(dict.fromkeys((*root_regions, *cell_regions)))  # far fewer than places
    times = np.array([[rtt_s(a, b) for b in names] for a in names], dtype=np.float64)
    index_of = {name: index for index, name in enumerate(names)}
    rows = np.array([index_of[name] for name in root_regions], dtype=np.intp)
    columns = np.array([index_of[name] for name in cell_regions], dtype=np.intp)
    return times.reshape(len(names), len(names))[np.ix_(rows, columns)]


@dataclass(frozen=True, eq=False)
class MeasuredRtt:
    """A measured round-trip time matrix.

    Attributes:
        regions: Names, in the order of rows and columns.
        directed_rtt_s: float64 of shape (regions, regions), seconds; row = sender. Read-only.
        source: The file it came from, for messages.
    """

    regions: tuple[str, ...]
    directed_rtt_s: NDArray[np.float64]
    source: str

    def between(
        self, root_regions: Sequence[str], cell_regions: Sequence[str]
    ) -> NDArray[np.float64]:
        """Mean of the two directions of every arc, float64 of shape (roots, cells), seconds.

        Raises:
            NetworkError: A region is not in the matrix.
        """
        index_of = {name: index for index, name in enumerate(self.regions)}
        for name in (*root_regions, *cell_regions):
            if name not in index_of:
                hint = _nearest(name, self.regions)
                raise NetworkError(
                    f"region {shown(name)} is not in the RTT file {self.source}; {hint}"
                )
        rows = np.array([index_of[name] for name in root_regions], dtype=np.intp)
        columns = np.array([index_of[name] for name in cell_regions], dtype=np.intp)
        both_ways = 0.5 * self.directed_rtt_s + 0.5 * self.directed_rtt_s.T
        return both_ways[np.ix_(rows, columns)]


def load_rtt_csv(path: str | Path) -> MeasuredRtt:
    """Read a square CSV of round-trip times.

    The header is `region,<names>`; the first column repeats the names in the same order; values are
    milliseconds, row = sender. Blank lines are skipped.

    Raises:
        NetworkError: The file is missing, unreadable, empty, not square or larger than
            `MAX_MEASURED_REGIONS`; names are empty, repeated or ordered differently in rows and
            columns; a value is not a finite number >= 0. The message names file and line.
    """
    try:
        path = input_path(path, "an RTT file")
    except InputFileError as error:
        raise NetworkError(str(error)) from None
    try:
        content = read_whole(path, MAX_MATRIX_BYTES, "keep the regions that are used")
        text = content.decode("utf-8-sig")
    except InputFileError as error:
        raise NetworkError(f"the RTT file {path} {error}") from error
    except UnicodeDecodeError as error:
        raise NetworkError(f"the RTT file {path} is not text; save it as CSV in UTF-8") from error
    return _parse(io.StringIO(text, newline=""), str(path))


def rescaled_to_mean(
    rtt_s: NDArray[np.float64], mean_rtt_s: float, off_diagonal: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scale round-trip times by one factor, so that those under a mask have a mean.

    Entries outside the mask are scaled by the same factor: all ratios stay. A scenario's mean is
    over the pairs whose root and cell have different names (`rates.one_way_s`): a root and the cell
    that bears its name are one place, whereas two cells of one region are not.

    Args:
        rtt_s: Round-trip times, shape (roots, cells), seconds.
        mean_rtt_s: The mean wanted over the mask, seconds.
        off_diagonal: Shape (roots, cells); true for the entries that the mean is taken over.

    Raises:
        NetworkError: `mean_rtt_s` is not a finite number > 0, the shapes differ, the mask is empty
            or the round-trip times under it are all zero.
    """
    if not (math.isfinite(mean_rtt_s) and mean_rtt_s > 0.0):
        raise NetworkError(
            f"mean_rtt_s = {mean_rtt_s} must be a finite number > 0; give seconds, as in 0.025"
        )
    if off_diagonal.dtype != np.bool_ or off_diagonal.shape != rtt_s.shape:
        raise NetworkError(
            f"off_diagonal is {off_diagonal.dtype} of shape {off_diagonal.shape}; "
            f"it must be bool of rtt_s's shape {rtt_s.shape}"
        )
    masked = rtt_s[off_diagonal]
    total = math.fsum(masked.tolist())
    if total <= 0.0:
        raise NetworkError(
            f"mean_rtt_s = {mean_rtt_s} needs a positive RTT between a root and a cell of another "
            "name, and there is none; leave mean_rtt_s out or change names or round trips"
        )
    factor = mean_rtt_s * masked.size / total
    if not math.isfinite(factor) or not math.isfinite(factor * float(rtt_s.max())):
        raise NetworkError(
            f"mean_rtt_s = {mean_rtt_s} multiplies all round trips by {factor:.3g}, which no "
            "number holds; leave mean_rtt_s out or correct the round trips"
        )
    return rtt_s * factor


def _region(name: str) -> Region:
    try:
        return REGIONS[name]
    except KeyError:
        raise NetworkError(
            f"unknown region {shown(name)}; {_nearest(name, tuple(REGIONS))}"
        ) from None


def _nearest(name: str, valid: Sequence[str]) -> str:
    """The end of a message about a name that is not among the valid ones."""
    short = [each for each in valid if len(each) <= MOST_CHARS]
    close = get_close_matches(name, short, n=3) if len(name) <= MOST_CHARS else []
    if close:
        return "the nearest names are " + ", ".join(close)
    return "the names are " + ", ".join(short[:20]) + (", ..." if len(valid) > 20 else "")


def _lines(file: TextIO, source: str) -> Iterator[str]:
    """Lines of a file, none of which may be too long to hold in memory with ease."""
    while line := file.readline(_MAX_LINE_CHARS + 1):
        if len(line) > _MAX_LINE_CHARS:
            raise NetworkError(
                f"{source}: a line has more than {_MAX_LINE_CHARS} characters; "
                f"at most {MAX_MEASURED_REGIONS} regions are read: keep those that are used"
            )
        yield line


def _parse(file: TextIO, source: str) -> MeasuredRtt:
    reader = csv.reader(_lines(file, source))
    try:
        rows = ((reader.line_num, [field.strip() for field in row]) for row in reader if row)
        _, header = next(rows, (0, None))
        if header is None:
            raise NetworkError(
                f"{source} is empty; an RTT file starts with the header 'region,<names>'"
            )
        regions = _regions_of(header, source)
        matrix_ms = _matrix_of(rows, regions, source)
    except csv.Error as error:
        raise NetworkError(
            f"{source}, line {reader.line_num}: {error}; write one plain CSV row a line"
        ) from error
    matrix_s = matrix_ms / 1_000.0
    matrix_s.setflags(write=False)
    return MeasuredRtt(regions, matrix_s, source)


def _regions_of(header: Sequence[str], source: str) -> tuple[str, ...]:
    regions = tuple(header[1:])
    if header[0] != "region" or not regions:
        raise NetworkError(
            f"{source}, line 1: the header must be 'region' and at least one name, "
            f"as in 'region,us-east4,europe-west4'; it starts with {shown(header[0])}"
        )
    if len(regions) > MAX_MEASURED_REGIONS:
        raise NetworkError(
            f"{source}, line 1: {len(regions)} regions; "
            f"at most {MAX_MEASURED_REGIONS} are read: keep those that are used"
        )
    seen: set[str] = set()
    for column, name in enumerate(regions, start=2):
        if not name or name in seen:
            problem = f"the name {shown(name)} stands twice" if name else "a name is empty"
            raise NetworkError(
                f"{source}, line 1, column {column}: {problem}; give every region one name"
            )
        seen.add(name)
    return regions


def _matrix_of(
    rows: Iterable[tuple[int, list[str]]], regions: tuple[str, ...], source: str
) -> NDArray[np.float64]:
    """The values below the header, shape (regions, regions), in the file's milliseconds."""
    size = len(regions)
    matrix_ms = np.empty((size, size), dtype=np.float64)
    count = 0
    for line, row in rows:
        place = f"{source}, line {line}"
        if count == size or len(row) != size + 1:
            found = f"row {count + 1}" if count == size else f"{len(row) - 1} values"
            raise NetworkError(
                f"{place}: {found} where the header names {size} regions; the matrix must be "
                "square: one row and one value for every name"
            )
        if row[0] != regions[count]:
            raise NetworkError(
                f"{place}: row {shown(row[0])} where the header has {shown(regions[count])}; "
                "rows and columns must name the same regions in the same order"
            )
        matrix_ms[count] = [
            _milliseconds(text, f"{place}, column {shown(name)}")
            for name, text in zip(regions, row[1:], strict=True)
        ]
        count += 1
    if count < size:
        raise NetworkError(
            f"{source} ends after {count} rows where the header names {size} regions; the matrix "
            f"must be square: add the row of {shown(regions[count])}"
        )
    return matrix_ms


def _milliseconds(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise NetworkError(
            f"{place}: {shown(text)} must be a finite number >= 0; give the round-trip time in ms, "
            "or leave the region out of rows and columns"
        )
    return value
