"""The text of sources: decompressed alike, however it arrives and is packed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from commands.importing.reading.problems import SourceChanged, SourceDamaged, SourceMissing
from commands.importing.reading.raw import HEAD_BYTES, LocalFile, open_local
from commands.importing.reading.text import SourceText
from tests.cli.importing.sources import Pieces, cut

LINES = b'{"a":1}\n{"b":"text"}\n' * 50
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "two members": lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:]),
    "padded": lambda data: gzip.compress(data) + b"\0" * 512,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "two frames": lambda data: zstandard.compress(data[:40]) + zstandard.compress(data[40:]),
}


def all_of(text: SourceText) -> bytes:
    found = b""
    while (piece := text.read()) != b"":
        found += piece or b""
    return found


@given(
    st.sampled_from(sorted(PACKS)),
    st.lists(st.integers(0, 3_000), max_size=5),
    st.integers(0, 1_200),
)
def test_text_is_the_same_however_it_is_packed_and_arrives(
    pack: str, places: list[int], position: int
) -> None:
    packed = PACKS[pack](LINES)
    assert all_of(SourceText(Pieces(*cut(packed, places)))) == LINES
    text = SourceText(Pieces(*cut(packed, places)))
    head = text.peek()
    assert head == LINES[: len(head or b"")] and head
    position = min(position, len(LINES))
    assert text.skip_to(position) == (LINES[position - 1 : position] if position else b"")
    assert text.position == position
    assert all_of(text) == LINES[position:]


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_data_that_is_cut_off_is_damaged_and_what_is_before_is_read(pack: str) -> None:
    packed = PACKS[pack](LINES)
    text = SourceText(Pieces(packed[: len(packed) - 5]))
    with pytest.raises(SourceDamaged, match=f"ends within its {pack} data"):
        all_of(text)
    broken = bytearray(packed)
    broken[20] ^= 0xFF
    with pytest.raises(SourceDamaged):
        all_of(SourceText(Pieces(bytes(broken))))


def test_a_frame_without_its_end_after_a_whole_one_is_damaged() -> None:
    with pytest.raises(SourceDamaged, match="ends within"):
        all_of(SourceText(Pieces(zstandard.compress(b"1\n") + zstandard.compress(b"2\n" * 99)[:9])))


def test_a_position_after_the_end_means_that_the_source_is_another() -> None:
    for source in (Pieces(LINES), Pieces(gzip.compress(LINES))):
        with pytest.raises(SourceChanged, match="1,051 of it were imported before"):
            SourceText(source).skip_to(len(LINES) + 1)


def test_a_file_that_is_shorter_than_its_position_is_another(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\n2\n")
    with pytest.raises(SourceChanged, match="has 4 bytes of text, and 9 of it"):
        SourceText(LocalFile(str(path))).skip_to(9)


def test_a_file_that_is_truncated_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(LINES)
    text = SourceText(LocalFile(str(path)))
    assert text.read() == LINES
    path.write_bytes(b"")
    with pytest.raises(SourceChanged, match="has 0 bytes, and 1,050 were read of it"):
        text.read()


def test_a_file_that_is_written_anew_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 400_000)
    text = SourceText(LocalFile(str(path)))
    assert text.read()
    path.write_bytes(b"b" + b"a" * 399_999)
    with pytest.raises(SourceChanged, match="its first KiB changed"):
        text.read()


def test_a_file_that_grows_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\n")
    text = SourceText(LocalFile(str(path)))
    assert text.read() == b"1\n" and text.read() == b""
    for _ in range(3):
        with path.open("ab") as file:
            file.write(b"2\n" * HEAD_BYTES)
        assert text.read() == b"2\n" * HEAD_BYTES


def test_what_cannot_be_a_source_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, why in (
        (str(tmp_path), "is a directory"),
        (str(tmp_path / "nowhere"), "does not exist"),
        (str(loop), "cannot be opened: Too many levels"),
        ("nul\0", "cannot be opened: embedded null byte"),
    ):
        with pytest.raises(SourceMissing, match=why):
            open_local(path)
