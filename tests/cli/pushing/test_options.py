"""Push settings on the command line: secrets come from files or stdin, and are never printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.delivery.push_settings import PushTarget
from tests.cli.managed.test_subscriptions import AT, Present, config, state
from tests.scripted import Answer, Scripted, run, says, scripted

URL = "https://example.com/hook"
OLD, NEW = "whsec_b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xk", "whsec_bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3"


def put(server: Scripted) -> list[Any]:
    """The push settings of each PUT."""
    return [call.body["push"] for call in server.calls if call.method == "PUT"]


def pushed(**more: Any) -> dict[str, Any]:
    """A subscription as GET shows it, with these push settings."""
    return state("s", config=config(push=msgspec.to_builtins(PushTarget(URL)) | more))


def test_all_push_settings_have_an_option() -> None:
    with scripted(Present(None)) as server:
        made = run(
            server, "subscriptions", "create", "orders", "s", "--push", URL, "--push-rate-max",
            "0.5", "--push-rate-start", "0.25", "--push-senders", "2", "--push-connections-max",
            "3", "--push-timeout-ms", "4",
            "--push-format", "batch", "--push-batch-max", "5", "--push-batch-bytes-max", "6",
            "--push-batch-wait-ms", "7", "--push-type-from", "tag",
        )  # fmt: skip
    assert made.exit_code == 0, made.output
    (sent,) = put(server)
    assert sent == {
        "endpoint": URL, "rate_max": 0.5, "rate_start": 0.25, "senders": 2, "connections_max": 3,
        "timeout_ms": 4,
        "format": "batch", "batch_max": 5, "batch_bytes_max": 6, "batch_wait_ms": 7,
        "type_from": "tag",
    }  # fmt: skip
    assert {*sent} == {*PushTarget.__struct_fields__} - {"headers", "signed", "secrets_count"}


def test_secrets_and_headers_are_read_from_files_and_not_printed(tmp_path: Path) -> None:
    secrets, headers = tmp_path / "secrets", tmp_path / "headers"
    secrets.write_text(f"{NEW}\n\n {OLD} \n")
    headers.write_text("Authorization: Bearer a:b\nX-Team:  x\n")
    with scripted(Present(pushed())) as server:
        altered = run(
            server, "subscriptions", "alter", "orders", "s", "--push-secrets", str(secrets),
            "--push-headers", str(headers), "--push-header-remove", "x-old",
        )  # fmt: skip
    assert altered.exit_code == 0, altered.output
    assert put(server) == [
        {
            "secrets": [NEW, OLD],
            "headers": {"x-old": None, "Authorization": "Bearer a:b", "X-Team": "x"},
        }
    ]
    assert not [each for each in (OLD, NEW, "Bearer") if each in altered.output]


def test_a_minus_is_standard_input() -> None:
    with scripted(Present(pushed())) as server:
        for option in ("--push-secrets", "--push-headers"):
            given = f"{NEW}\n" if option == "--push-secrets" else "a: b\n"
            altered = run(server, "subscriptions", "alter", "orders", "s", option, "-", stdin=given)
            assert altered.exit_code == 0, altered.output
    assert put(server) == [{"secrets": [NEW]}, {"headers": {"a": "b"}}]


def test_signing_and_the_push_end_by_options_of_their_own() -> None:
    with scripted(Present(pushed())) as server:
        run(server, "subscriptions", "alter", "orders", "s", "--push-unsigned")
        run(server, "subscriptions", "alter", "orders", "s", "--push", "none")
    assert put(server) == [{"secrets": []}, None]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"hunter2", ["--push-headers", "FILE"], "line 1 is not a header like Name: value"),
        (b"", ["--push-secrets", "FILE"], "has no lines"),
        (b"\n \n", ["--push-secrets", "FILE"], "has no lines"),
        (b"hunter2" * 10_000, ["--push-secrets", "FILE"], "has more than 65536 bytes"),
        (b"hunter2\xff", ["--push-secrets", "FILE"], "is not UTF-8"),
        (b"", ["--push-secrets", "/nowhere/secrets"], "cannot read /nowhere/secrets"),
        (b"", ["--push-secrets", "-", "--push-headers", "-"], "only one of"),
        (b"hunter2", ["--push-secrets", "FILE", "--push-unsigned"], "only one of"),
        (b"", ["--push", "none", "--push-rate-max", "5"], "use it alone"),
        (b"", ["--push-senders", "0"], "not in the range"),
        (b"", ["--push-rate-max", "nan"], "not in the range"),
        (b"", ["--push-rate-max", "0"], "not in the range"),
        (b"", ["--push-rate-max", "1e9"], "not in the range"),
    ],
)
def test_what_cannot_be_read_is_wrong_usage_and_not_repeated(
    tmp_path: Path, content: bytes, options: list[str], says: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    given = [str(file) if each == "FILE" else each for each in options]
    with scripted(Present(pushed())) as server:
        refused = run(server, "subscriptions", "alter", "orders", "s", *given)
    assert (refused.exit_code, server.calls) == (2, [])
    assert says in " ".join(refused.stderr.split())
    assert "hunter2" not in refused.output


def test_create_leaves_the_same_push_subscription_and_names_what_differs(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(f"{OLD}\n")
    with scripted(Present(pushed(rate_max=5.0))) as server:
        create = ("subscriptions", "create", "orders", "s", "--push", URL)
        same = run(server, *create, "--push-rate-max", "5")
        other = run(server, *create, "--push-secrets", str(secrets))
        none = run(server, *create[:4])
    assert (same.exit_code, other.exit_code, none.exit_code) == (0, 1, 1)
    assert "other settings: push.rate_max, push.signed, push.secrets_count" in other.stderr
    assert "other settings: push\n" in none.stderr
    assert {call.method for call in server.calls} == {"GET"}


def test_a_refusal_of_the_daemon_is_told_as_it_is() -> None:
    error = {"code": "push_forbidden", "message": "10.0.0.8 is not allowed", "detail": {}}

    def script(call: Any) -> Answer:
        return Answer(400, {"error": error}) if call.method == "PUT" else Present(None)(call)

    with scripted(script) as server:
        refused = run(
            server, "subscriptions", "create", "orders", "s", "--push", "http://10.0.0.8/"
        )
    assert (refused.exit_code, server.calls[-1].path) == (1, f"{AT}/s")
    assert "10.0.0.8 is not allowed" in refused.stderr
    with says(Answer(500)) as server:
        assert run(server, "subscriptions", "alter", "orders", "s").exit_code == 2
