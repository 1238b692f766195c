"""Secrets are durable, the owner's alone, and shown nowhere."""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from delivery.push.secrets import (
    ABANDONED_MS,
    FILE_NAME,
    HEADER_CHARACTERS_MAX,
    HEADERS_MAX,
    PushSecrets,
    SecretsFile,
    SecretsFileError,
    SecretsRefused,
    check_header_name,
    check_secrets,
    missing,
)
from delivery.push.signatures import SIGNING_MAX, SecretRefused
from ledger.delivery.push_settings import PushSettings
from tests.signing import secret_of

SECRET = secret_of(b"the key of the first one")
OTHER = secret_of(b"the key of another one..")
SECRETS = PushSecrets((SECRET, OTHER), {"authorization": "Bearer hunter2"})


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_secrets_come_back_by_their_id_in_any_process(tmp_path: Path) -> None:
    first = SecretsFile(tmp_path).save(SECRETS)
    second = SecretsFile(tmp_path).save(PushSecrets((OTHER,)))
    again = SecretsFile(tmp_path)
    assert again.load(first) == SECRETS
    assert again.load(second) == PushSecrets((OTHER,))
    assert again.load("other") is None


def test_without_a_file_there_are_no_secrets_and_none_is_made(tmp_path: Path) -> None:
    file = SecretsFile(tmp_path)
    assert file.load("any") is None
    assert file.remove(["any"]) == file.retain([]) == 0
    assert not any(tmp_path.iterdir())


def test_entries_go_when_they_are_removed_and_others_stay(tmp_path: Path) -> None:
    file = SecretsFile(tmp_path)
    ids = [file.save(SECRETS) for _ in range(4)]
    assert file.remove([ids[0], ids[2], "unknown"]) == 2
    assert [file.load(each) is None for each in ids] == [True, False, True, False]


def test_entries_that_nothing_names_are_kept_for_a_day(tmp_path: Path) -> None:
    now_ms = 1_000
    file = SecretsFile(tmp_path, now_ms=lambda: now_ms)
    named, abandoned = file.save(SECRETS), file.save(SECRETS)
    now_ms += ABANDONED_MS
    fresh = file.save(SECRETS)
    assert file.retain([named]) == 0
    now_ms += 1
    assert file.retain([named]) == 1
    kept = [each for each in (named, abandoned, fresh) if file.load(each) is not None]
    assert kept == [named, fresh]


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_only_the_owner_may_read_any_file_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        SecretsFile(tmp_path).save(SECRETS)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / FILE_NAME) == 0o600
    for path in tmp_path.iterdir():
        assert mode_of(path) & 0o077 == 0


def test_a_file_that_others_could_read_is_closed_to_them_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets_id = SecretsFile(tmp_path).save(SECRETS)
    (tmp_path / FILE_NAME).chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert SecretsFile(tmp_path).load(secrets_id) == SECRETS
    assert mode_of(tmp_path / FILE_NAME) == 0o600
    assert "mode 644" in caplog.text and "hunter2" not in caplog.text


class Stopped(BaseException):
    """What a kill is to a process."""


@pytest.mark.parametrize("call", ["open", "fchmod", "fsync", "replace"])
def test_after_a_kill_in_any_step_the_file_is_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = SecretsFile(tmp_path)
    first = file.save(SECRETS)
    real: Callable[..., object] = getattr(os, call)
    for stop_at in itertools.count():
        calls = itertools.count()

        def stopping(*args: object, calls: itertools.count[int] = calls, at: int = stop_at,
                     **more: object) -> object:  # fmt: skip
            if next(calls) == at:
                raise Stopped
            return real(*args, **more)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, stopping)
            try:
                SecretsFile(tmp_path, lambda _: "second").save(PushSecrets((OTHER,)))
                finished = True
            except Stopped:
                finished = False
        assert file.load(first) == SECRETS
        assert file.load("second") in (None, PushSecrets((OTHER,)))
        file.remove(["second"])
        if finished:
            break
    assert stop_at > 0


def test_what_is_saved_is_synced_before_it_gets_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        steps.append("fsync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real_fsync(fd)

    def replace(source: Path, target: Path) -> None:
        steps.append("replace")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    SecretsFile(tmp_path).save(SECRETS)
    assert steps == [f"fsync {FILE_NAME}.new", "replace", f"fsync {tmp_path.name}"]


def _save_several(folder: Path, results: multiprocessing.Queue[list[str]]) -> None:
    results.put([SecretsFile(folder).save(SECRETS) for _ in range(10)])


def test_processes_that_save_simultaneously_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[list[str]] = context.Queue()
    writers = [context.Process(target=_save_several, args=(tmp_path, results)) for _ in range(3)]
    for writer in writers:
        writer.start()
    ids = [each for _ in writers for each in results.get(timeout=60)]
    for writer in writers:
        writer.join()
    results.close()
    results.join_thread()
    file = SecretsFile(tmp_path)
    assert len(set(ids)) == 30
    assert all(file.load(each) == SECRETS for each in ids)


def _damaged(entry: bytes) -> bytes:
    return b'{"version":1,"entries":{"a":{"saved_ms":1,"secrets":%b}}}' % entry


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"version":1,"entries":{"\xff":1}}', b'{"version":2,"entries":{}}',
     _damaged(b'"\xff"'), _damaged(b'{"signing":"whsec_hunter2","headers":{}}'),
     _damaged(b'{"signing":[],"headers":{"x":["hunter2"]}}')],
)  # fmt: skip
def test_a_damaged_file_is_named_not_shown_and_never_written_over(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    file = SecretsFile(tmp_path)
    with pytest.raises(SecretsFileError, match=FILE_NAME) as failed:
        file.load("a")
    assert "hunter2" not in str(failed.value)
    if b'"a"' not in content:  # if only an entry is damaged, the others can be used
        with pytest.raises(SecretsFileError):
            file.save(SECRETS)
        with pytest.raises(SecretsFileError):
            file.remove(["a"])
        assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretsFileError, match="no-such-folder"):
        SecretsFile(tmp_path / "no-such-folder").save(SECRETS)


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / f"{FILE_NAME}.new").symlink_to(target)
    with pytest.raises(SecretsFileError):
        SecretsFile(tmp_path).save(SECRETS)
    assert not target.exists()


def test_no_text_of_secrets_shows_them() -> None:
    for text in (repr(SECRETS), str(SECRETS), f"{[SECRETS]}", pretty_repr(SECRETS)):
        assert "authorization" in text
        for secret in (SECRET, OTHER, SECRET.removeprefix("whsec_"), "hunter2"):
            assert secret not in text


@pytest.mark.parametrize(
    ("secrets", "told"),
    [
        (PushSecrets((SECRET,) * (SIGNING_MAX + 1)), "5 signing secrets, the limit is 4"),
        (PushSecrets(("hunter2",)), "must be whsec_"),
        (PushSecrets(headers={f"x-{n}": "1" for n in range(HEADERS_MAX + 1)}), "limit is 16"),
        (PushSecrets(headers={"X-Token": "hunter2"}), "lower case"),
        (PushSecrets(headers={"x-token": "hunter2\r\nhost: evil"}), "printable ASCII"),
        (PushSecrets(headers={"x-token": "hunter2 "}), "printable ASCII"),
        (PushSecrets(headers={"x-token": ""}), "printable ASCII"),
        (PushSecrets(headers={"x-token": "h\u00fcnter2"}), "printable ASCII"),
        (PushSecrets(headers={"x-token": "hunter2" * HEADER_CHARACTERS_MAX}), "limit is 4096"),
    ],
)  # fmt: skip
def test_secrets_that_cannot_be_sent_are_refused_without_being_shown(
    tmp_path: Path, secrets: PushSecrets, told: str
) -> None:
    with pytest.raises((SecretsRefused, SecretRefused), match=told) as refused:
        SecretsFile(tmp_path).save(secrets)
    assert "nter2" not in str(refused.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["", "x token", "x:token", "x\r\n", "\u00fc", "x" * 65, "x" * 1_000_000, "Host", "Content-Type",
     "content-length", "transfer-encoding", "Connection", "ce-id", "CE-KEY", "webhook-signature",
     "proxy-authorization"],
)  # fmt: skip
def test_a_header_that_is_none_or_not_the_users_is_refused(name: str) -> None:
    with pytest.raises(SecretsRefused) as refused:
        check_header_name(name)
    assert len(str(refused.value)) < 300


def test_a_header_has_its_name_in_lower_case() -> None:
    assert check_header_name("X-Api-Key") == "x-api-key"
    check_secrets(PushSecrets(headers={"x-api-key": "!" + " " * 3 + "~"}))


def test_what_is_missing_is_named_and_complete_secrets_miss_nothing() -> None:
    plain = PushSettings("https://example.com")
    whole = PushSettings("https://example.com", headers=["Authorization"], signed=True)
    assert missing(plain, None) == "" == missing(whole, SECRETS)
    assert missing(whole, None).startswith(
        "its signing secret and the values of Authorization are not in push-secrets.json"
    )
    assert missing(whole, PushSecrets((SECRET,))).startswith("the values of Authorization are")


def test_the_file_is_plain_json_that_an_operator_can_restore(tmp_path: Path) -> None:
    secrets_id = SecretsFile(tmp_path, now_ms=lambda: 5).save(SECRETS)
    assert json.loads((tmp_path / FILE_NAME).read_bytes()) == {
        "version": 1,
        "entries": {
            secrets_id: {
                "saved_ms": 5,
                "secrets": {
                    "signing": [SECRET, OTHER],
                    "headers": {"authorization": "Bearer hunter2"},
                },
            }
        },
    }
    assert len(secrets_id) == 32
