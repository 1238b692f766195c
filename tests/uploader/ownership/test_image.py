"""When an image is due, and how its parts travel."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from uploader.ownership import image
from uploader.ownership.image import ImageTooLarge, is_due, put_image
from uploader.stores.base import PartedPut

GIB = 1 << 30


@pytest.mark.parametrize(
    ("entries", "entry_bytes", "ledger_bytes", "due"),
    [
        (719, GIB, 1, False),
        (720, 0, 1, False),
        (720, 1, 4, True),
        (720, GIB, 6 * GIB, False),  # its entries are soon read
        (2_000, 3 * GIB // 2, 6 * GIB, True),
        (17_279, 1, GIB, False),
        (17_280, 0, 6 * GIB, True),
    ],
)
def test_an_image_is_due_when_it_costs_little_compared_with_its_savings(
    entries: int, entry_bytes: int, ledger_bytes: int, due: bool
) -> None:
    assert is_due(entries, entry_bytes, ledger_bytes) is due


class Parts(PartedPut):
    """Takes parts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.finished = False

    def put(self, part: bytes) -> None:
        self.sizes.append(len(part))

    def finish(self) -> None:
        self.finished = True

    def abandon(self) -> None:
        raise AssertionError("the caller's to do")


def test_all_parts_but_the_last_have_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "PART_BYTES", 1_000)
    path = tmp_path / "copy"
    path.write_bytes(bytes(range(250)) * 10)
    parts = Parts()
    looks: list[int] = []
    size_bytes, found = put_image(parts, path, lambda: looks.append(len(parts.sizes)))
    assert (size_bytes, found) == (2_500, crc32c(path.read_bytes()))
    assert parts.sizes == [1_000, 1_000, 500] and parts.finished
    assert looks == [0, 1, 2, 3]  # asked before each call


def test_a_ledger_that_no_object_can_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "PARTS_MAX", 2)
    path = tmp_path / "copy"
    with path.open("wb") as file:
        file.truncate(2 * image.PART_BYTES + 1)
    with pytest.raises(ImageTooLarge, match=r"2 parts of 16 MiB"):
        put_image(Parts(), path, lambda: None)
