"""No secret of a URI is shown or told, however it is written."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.access.redaction import redacted, redacted_text, secrets_of, without_secrets

# Of characters that no other part of the URIs below has, among those that people do not escape.
SECRETS = st.text("ÄÖÜ0123456789/?#&=;:@%+ '\"$", min_size=4, max_size=30).filter(
    lambda text: any(each in text for each in "ÄÖÜ0123456789")
)
ESCAPES = st.sampled_from([str, quote, quote_plus, lambda text: quote(text, safe="")])
USERS = st.sampled_from(["me", "", "m.e"])
SCHEMES = st.sampled_from(["postgresql", "postgresql+asyncpg", "mysql", "https", "http", "x"])
KEYS = st.sampled_from(["password", "sslpassword", "token", "odbc_connect", "credential", "pwd"])
TAILS = st.sampled_from(["", "/db", "/db?sslmode=require", "/db?timeout=x&token=y", "/db?user=a@b"])


def is_shown(secret: str, uri: str, escape: object) -> bool:
    """Whether a part of the secret that says something is in what is shown."""
    assert callable(escape)
    for form in (secret, escape(secret)):
        for text in (redacted(uri), without_secrets(uri), redacted_text(f"cannot open '{uri}'")):
            kept = {each for each in form if each in "ÄÖÜ0123456789"}
            if form in text or kept & set(text):
                return True
    return False


@given(SCHEMES, USERS, SECRETS, ESCAPES, TAILS)
def test_no_password_of_a_user_is_shown(
    scheme: str, user: str, secret: str, escape: object, tail: str
) -> None:
    assert callable(escape)
    if " " in escape(secret) or set("'\"") & set(escape(secret)):
        escape = lambda text: quote(text, safe="/?#&=;:@+$")  # noqa: E731 - no URI has them
    uri = f"{scheme}://{user}:{escape(secret)}@host{tail}"
    assert not is_shown(secret, uri, escape)


@given(SCHEMES, SECRETS, KEYS, st.sampled_from(["?", "?timeout=x&", "#", "?a=b;"]))
def test_no_value_of_a_query_is_shown(scheme: str, secret: str, key: str, before: str) -> None:
    assert not is_shown(secret, f"{scheme}://me@host/db{before}{key}={quote(secret)}", quote)
    assert not is_shown(secret, f"{scheme}://host/db{before}{quote(secret)}", quote)
    assert not is_shown(secret, f"{scheme}://{quote(secret, safe='')}@host/db", quote)


@pytest.mark.parametrize(
    ("uri", "shown", "told"),
    [
        ("postgresql://me:se/cret@h:5432/db", "postgresql://me:***@h:5432/db",
         "postgresql://me@h:5432/db"),
        ("postgresql://h/db?password=x&sslmode=require", "postgresql://h/db?***&sslmode=require",
         "postgresql://h/db?sslmode=require"),
        ("postgresql://me:se?cr@h/db", "postgresql://***@", "postgresql://"),
        ("mysql://h/db?user=a@b&password=x", "mysql://***@", "mysql://"),
        ("https://token@h/v1", "https://***@h/v1", "https://h/v1"),
        ("sqlite:////a@b/catalog.db?timeout=3", "sqlite:////a@b/catalog.db?timeout=3",
         "sqlite:////a@b/catalog.db?timeout=3"),
        ("sqlite+pysqlcipher://:phrase@/c.db", "sqlite+pysqlcipher://:***@/c.db",
         "sqlite+pysqlcipher:///c.db"),
        ("s3://bucket/a/b", "s3://bucket/a/b", "s3://bucket/a/b"),
        ("/srv/a@b/c?d", "/srv/a@b/c?d", "/srv/a@b/c?d"),
        ("me:secret@h/db", "***@h/db", "h/db"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_what_is_no_secret_is_shown(uri: str, shown: str, told: str) -> None:
    assert (redacted(uri), without_secrets(uri)) == (shown, told)
    assert redacted(shown) == shown


def test_secrets_are_known_as_they_are_written_and_as_they_are_read() -> None:
    assert secrets_of("mysql://me:a%2Fb@h/d?password=c+d") >= {"a%2Fb", "a/b", "c+d", "c d"}
    assert secrets_of("http://h/x") == set()
