"""The file of tokens: what is issued is found again, and what cannot be trusted is refused."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from daemon.access.access import Access
from daemon.access.token_changes import TokenRequest, TokensRequest, apply
from daemon.access.token_file import (
    FILE_BYTES_MAX,
    ReadBefore,
    Scope,
    TokenFile,
    TokenFileError,
    read_tokens,
    split_token,
)

NOW_MS = 1_790_000_000_000


def made(path: Path) -> TokenFile:
    file = TokenFile(path, lambda: NOW_MS)
    file.issue("first", [Scope.READ])
    return file


def test_a_token_is_known_by_its_secret_alone_and_the_file_does_not_have_it(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json", lambda: NOW_MS)
    token, text = file.issue("shop", [Scope.PRODUCE], ["orders*"], timedelta(days=1))
    id_and_secret = split_token(text)
    assert id_and_secret is not None and id_and_secret[0] == token.id
    secret = id_and_secret[1]
    assert len(bytes.fromhex(secret)) == 32
    (known,) = read_tokens(file.path).tokens
    assert known == token and known.is_of(secret)
    assert not known.is_of(secret[:-1] + ("0" if secret[-1] != "0" else "1"))
    assert secret not in file.path.read_text()
    assert token.expires is not None and token.expires.timestamp() * 1000 == NOW_MS + 86_400_000
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_every_change_raises_the_generation(tmp_path: Path) -> None:
    file = made(tmp_path / "tokens.json")
    file.issue("second", [Scope.ADMIN])
    assert read_tokens(file.path).generation == 2
    assert file.revoke("first").name == "first"
    assert [token.name for token in file.tokens()] == ["second"]
    assert read_tokens(file.path).generation == 3
    with pytest.raises(TokenFileError, match="has no token 'first'"):
        file.revoke("first")


def test_a_token_does_not_pay_the_debts_of_one_that_was_revoked(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json", lambda: NOW_MS)
    slots = []
    for _ in range(20):
        slots.append(file.issue("guest", [Scope.READ], limits={"requests": 1.0})[0].slot)
        file.revoke("guest")
    assert len({*slots}) == 20 and all(slot > 0 for slot in slots)


def test_a_file_that_is_not_there_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    for ask in (file.tokens, lambda: file.revoke("a")):
        with pytest.raises(TokenFileError, match=f"there is no {file.path}"):
            ask()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 36_501 * 86_400, 1e12])
def test_a_token_that_ends_when_it_is_made_or_never_can_is_refused(
    tmp_path: Path, seconds: float
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    asked = TokenRequest("brief", [Scope.READ], expires_in_s=seconds)
    with pytest.raises(TokenFileError, match="expires after 1 s to 36500 days, got"):
        apply(file, TokensRequest(create=asked))
    assert not file.path.exists()


def test_two_tokens_cannot_have_one_name(tmp_path: Path) -> None:
    file = made(tmp_path / "tokens.json")
    with pytest.raises(TokenFileError, match="has a token 'first' already: revoke it first"):
        file.issue("first", [Scope.READ])


@pytest.mark.parametrize(
    ("name", "scopes", "topics", "match"),
    [
        ("", [Scope.READ], ["*"], "name must have 1 to 128"),
        ("a b", [Scope.READ], ["*"], "got 'a b'"),
        ("x" * 129, [Scope.READ], ["*"], "name must have 1 to 128"),
        ("a", [], ["*"], "needs a scope: produce, read"),
        ("a", [Scope.READ], [], "names 1 to 64 patterns of topics, got 0"),
        ("a", [Scope.READ], ["*"] * 65, "got 65"),
        ("a", [Scope.READ], ["or/ders"], "got 'or/ders'"),
        ("a", [Scope.READ], [""], "got ''"),
        ("a", [Scope.READ], ["x" * 256], "1 to 255 characters"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, scopes: list[Scope], topics: list[str], match: str
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    with pytest.raises(TokenFileError, match=match):
        file.issue(name, scopes, topics)
    assert not file.path.exists()


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "is damaged.*restore it"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged"),
        (lambda path: path.write_bytes(b" " * (FILE_BYTES_MAX + 1)), "more than 4194304 bytes"),
        (
            lambda path: path.write_text('{"version":2,"generation":1}'),
            "version 2, and this.*move it away",
        ),
        (
            lambda path: path.write_text(
                path.read_text().replace('"first"', '"first", "root": true')
            ),
            "is damaged: .*unknown field `root`",
        ),
        (lambda path: path.chmod(0o640), r"mode 640\): run `chmod 600"),
        (lambda path: path.chmod(0o602), "mode 602"),
        (lambda path: path.unlink(), "there is no .*headgate tokens create"),
        (_link, "is a symbolic link"),
        (_fifo, "is not a file"),
        (_folder, "is not a file|cannot read"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, spoil: object, match: str
) -> None:
    file = made(tmp_path / "tokens.json")
    assert callable(spoil)
    spoil(file.path)
    with pytest.raises(TokenFileError, match=match):
        read_tokens(file.path)


def test_a_file_with_one_id_twice_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path / "tokens.json")
    token, _ = file.issue("second", [Scope.READ])
    first = file.tokens()[0]
    file.path.write_text(file.path.read_text().replace(token.id, first.id))
    with pytest.raises(TokenFileError, match="two tokens of one id"):
        read_tokens(file.path)


@pytest.mark.parametrize("text", ["", "hg_", "hg_12_34", "hg_" + "0" * 16 + "_" + "A" * 64, "x"])
def test_what_is_not_a_token_is_not_split(text: str) -> None:
    assert split_token(text) is None


def test_a_generation_is_remembered_for_one_file(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.issue("a", [Scope.READ])
    older = file.path.read_bytes()
    kept = ReadBefore(tmp_path / "kept.json", file.path)
    assert kept.generation == 0
    Access(file.path, read_before=kept)
    file.revoke("a")
    access = Access(file.path, read_before=kept)
    assert kept.generation == read_tokens(file.path).generation == 2
    file.issue("b", [Scope.READ])
    access.look()
    assert kept.generation == 3, "also what is read while it runs"
    file.path.write_bytes(older)
    with pytest.raises(TokenFileError, match=r"generation 1, and 3 was read before.*kept\.json"):
        Access(file.path, read_before=kept)
    assert kept.generation == 3
    assert ReadBefore(kept.path, tmp_path / "another.json").generation == 0
    with pytest.raises(TokenFileError, match="an older file was put back"):
        Access(file.path, read_before=ReadBefore(kept.path, file.path, writes=False))
    kept.path.write_bytes(b"{")
    with pytest.raises(TokenFileError, match=r"kept\.json cannot be read"):
        Access(file.path, read_before=kept)
    kept.path.unlink()
    Access(file.path, read_before=kept)
    assert kept.generation == 1
