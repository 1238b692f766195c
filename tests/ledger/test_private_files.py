"""Files and folders are this user's only, whatever the umask; former ones are put right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.private_files import close_to_others, make_file, make_folders, opener


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_private_under_any_umask(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert make_folders(folder) == [tmp_path / "a", folder] and make_folders(folder) == []
    make_file(folder / "x")
    with open(folder / "y", "xb", opener=opener) as file:
        file.write(b"y")
    make_file(folder / "y")  # leaves it as it is
    assert (folder / "y").read_bytes() == b"y"
    assert {mode(path) for path in (tmp_path / "a", folder)} == {0o700}
    assert {mode(path) for path in (folder / "x", folder / "y")} == {0o600}
    with pytest.raises(NotADirectoryError):
        make_folders(folder / "x")


def test_what_was_open_is_closed_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "lake" / "t" / "data").mkdir(parents=True)
    (tmp_path / "lake" / "t" / "data" / "f.parquet").write_text("")
    (tmp_path / "lock").write_text("")
    (tmp_path / "lock").chmod(0o664)
    tmp_path.chmod(0o755)
    assert close_to_others(tmp_path, ("lake", "lock")) == 6
    assert not [path for path in (tmp_path, *tmp_path.rglob("*")) if mode(path) & 0o077]
    assert close_to_others(tmp_path, ("lake", "lock")) == 0


def test_what_is_not_ours_stays_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "photos"
    theirs.mkdir(0o755)
    (tmp_path / "ledger").mkdir(0o755)
    (tmp_path / "ledger" / "link").symlink_to(theirs)
    tmp_path.chmod(0o755)
    assert close_to_others(tmp_path, ("ledger",)) == 1
    assert (mode(tmp_path), mode(theirs), mode(tmp_path / "ledger")) == (0o755, 0o755, 0o700)
    assert close_to_others(tmp_path / "nothing", ("",)) == 0


def test_a_folder_that_is_private_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "lake" / "t").mkdir(parents=True)
    (tmp_path / "lake").chmod(0o700)
    tmp_path.chmod(0o755)
    assert close_to_others(tmp_path / "lake", ("",)) == 0
    assert close_to_others(tmp_path, ("lake",)) == 1
    assert mode(tmp_path / "lake" / "t") == 0o777
