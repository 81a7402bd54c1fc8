"""Times with a time zone and times without one are not joined; those of two zones are the same
instants."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

NOON = datetime.datetime(2026, 6, 1, 12)


def columns(zone, unit="us"):
    times = pa.array([NOON], pa.timestamp(unit))
    times = pc.assume_timezone(times, zone) if zone else times
    structs = pa.StructArray.from_arrays([times], ["t"])
    return {
        "single": times,
        "struct": structs,
        "list": pa.array([times.to_pylist()], pa.list_(times.type)),
    }


def write(path, column, **options):
    table = pa.table({"t": column})
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["single", "struct", "list"])
def test_times_with_and_without_a_zone_are_not_joined(tmp_path, suffix, kind):
    call = getattr(gl, suffix)
    paths = [
        write(tmp_path / f"{number}.{suffix}", columns(zone)[kind])
        for number, zone in enumerate([None, "Europe/Paris"])
    ]
    parts = [call(path) for path in paths]

    for join in (
        lambda: call(paths),
        lambda: gl.concat(*parts),
        lambda: gl.concat(*parts, promote=True),
    ):
        with pytest.raises(
            SpecError, match=r"datetime64\[us\](.|\n)*with a time zone.*without a time zone"
        ):
            join()
    with pytest.raises(SpecError, match=r"source 1 of gl\.mix has t.*with a time zone"):
        gl.mix(
            {
                parts[0].rename(**{parts[0].spec.names[0]: "t"}): 1,
                parts[1].rename(**{parts[1].spec.names[0]: "t"}): 1,
            }
        )


def test_the_remedy_for_times_without_a_zone_joins_them(tmp_path):
    paths = [write(tmp_path / f"{zone}.parquet", columns(zone)["single"]) for zone in (None, "UTC")]
    with pytest.raises(SpecError) as error:
        gl.parquet(paths)
    [call] = re.findall(r"pyarrow\.compute\.(\w+\(column, '.*?'\))", error.value.remedy)

    write(
        paths[0],
        eval(call, {"column": columns(None)["single"], "assume_timezone": pc.assume_timezone}),
    )

    assert gl.parquet(paths).read([0, 1])["t"].tolist() == [NOON, NOON]


def test_times_of_two_zones_are_the_same_instants(tmp_path):
    paths = [
        write(tmp_path / f"{number}.arrow", columns(zone)["single"])
        for number, zone in enumerate(["UTC", "Asia/Tokyo"])
    ]

    times = gl.arrow(paths).read([0, 1])["t"]

    assert times.tolist() == [NOON, NOON - datetime.timedelta(hours=9)]


def test_times_whose_zone_no_format_says_join_with_both(tmp_path):
    int96 = write(
        tmp_path / "0.parquet", columns(None)["single"], use_deprecated_int96_timestamps=True
    )
    arrays = gl.arrays(t=np.array([NOON], "M8[us]"))

    for zone in (None, "UTC"):
        path = write(tmp_path / "1.parquet", columns(zone)["single"])
        assert gl.parquet([int96, path]).read([0, 1])["t"].tolist() == [NOON, NOON]
        assert gl.concat(arrays, gl.parquet(path)).read([0, 1])["t"].tolist() == [NOON, NOON]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_are_converted_with_their_zone(tmp_path, zone):
    path = write(tmp_path / "a.parquet", columns(zone)["single"])

    gl.convert(gl.parquet(path), tmp_path / "b.parquet")

    assert pq.read_schema(tmp_path / "b.parquet").field("t").type == pa.timestamp("us", zone)


def test_numbers_of_times_have_no_zone(tmp_path):
    field = gl.parquet(write(tmp_path / "a.parquet", columns("UTC")["single"])).spec["t"]

    assert field.zone == "UTC"
    assert field.with_(dtype=np.dtype("M8[s]")).zone == "UTC"
    assert field.with_(dtype=np.dtype("i8")).zone == ""
    assert field == gl.Field("t", "M8[us]", ())
    with pytest.raises(SpecError, match="zone='Mars'"):
        gl.Field("t", "M8[us]", (), zone="Mars")
