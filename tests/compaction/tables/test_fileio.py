"""Metadata files are durable with their folders, counted, and go through the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.io import load_file_io

from compaction.inputs.place import Place
from compaction.tables.fileio import LakeFileIO, properties_of, requests_of
from tests.compaction.lakes import place_in


def test_a_place_survives_the_way_through_pyicebergs_properties() -> None:
    place = Place("s3://b/p", "http://127.0.0.1:1", "eu-west-1", "s3://b/other")
    found = load_file_io(properties_of(place))
    assert isinstance(found, LakeFileIO) and found._place == place
    bare = Place("file:///x")
    found = load_file_io(properties_of(bare))
    assert isinstance(found, LakeFileIO) and found._place == bare


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what is synced."""
    paths: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_file_its_folder_and_new_folders_are_synced_before_it_counts(
    tmp_path: Path, synced: list[str]
) -> None:
    place = place_in(tmp_path)
    location = f"{place.lake}/orders-1/metadata/v1.metadata.json"
    file = LakeFileIO(properties_of(place)).new_output(location)
    with file.create() as stream:
        stream.write(b"{}")
        assert stream.tell() == 2
    path = location.removeprefix("file://")
    folders = [os.path.dirname(path)]
    while folders[-1] != str(tmp_path):
        folders.append(os.path.dirname(folders[-1]))
    assert synced == [path, *folders]
    assert len(file) == 2 and file.exists() and file.to_input_file().open().read() == b"{}"


def test_late_files_of_one_folder_are_synced_when_they_are_settled(
    tmp_path: Path, synced: list[str]
) -> None:
    place = place_in(tmp_path)
    files = LakeFileIO(properties_of(place), late=True)
    orders, others = (f"{place.lake}/{table}/metadata" for table in ("orders-1", "others-2"))
    for location in (f"{orders}/m0.avro", f"{orders}/gone.avro", f"{others}/m0.avro"):
        with files.new_output(location).create() as stream:
            stream.write(b"x")
    files.delete(f"{orders}/gone.avro")
    assert not synced
    files.settle(f"{orders}/v1.metadata.json")
    folder = orders.removeprefix("file://")
    assert synced[:3] == [f"{folder}/m0.avro", folder, os.path.dirname(folder)]
    assert str(tmp_path) in synced and not any("others-2" in path for path in synced)
    before = len(synced)
    files.settle(f"{orders}/v2.metadata.json")
    assert len(synced) == before


def test_a_file_that_is_not_there_is_said_and_may_be_removed_twice(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    files = LakeFileIO(properties_of(place))
    location = f"{place.lake}/x"
    with files.new_output(location).create() as stream:
        stream.write(b"x")
    files.delete(location)
    files.delete(files.new_input(location))
    assert not files.new_input(location).exists()
    for call in (files.new_input(location).open, files.new_input(location).__len__):
        with pytest.raises(FileNotFoundError):
            call()


def test_what_metadata_costs_is_counted_by_place(tmp_path: Path) -> None:
    place = place_in(tmp_path / "one")
    files = LakeFileIO(properties_of(place))
    before = requests_of(place)
    for n in range(3):
        with files.new_output(f"{place.lake}/{n}").create() as stream:
            stream.write(b"x")
    files.new_input(f"{place.lake}/0").open().close()
    files.delete(f"{place.lake}/0")
    after = requests_of(place)
    assert (after.puts - before.puts, after.gets - before.gets) == (3, 2)
    assert after.deletes - before.deletes == 1
    assert requests_of(place_in(tmp_path / "two")).puts == 0
