"""What a receiver repeats of a request is shown without its secrets."""

from __future__ import annotations

import html
import json
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.posts.answers import PushAnswer, judge
from delivery.push.secrets import HIDDEN, Hiding, PushSecrets
from tests.signing import secret_of

SIGNING = secret_of(b"k" * 32)
BASIC = "Basic " + b64encode(b"user:pass w\xc3\xb6rd").decode()
SECRETS = PushSecrets(
    (SIGNING,), {"authorization": 'Bearer to"k<en>/+1', "x-basic": BASIC, "x-tiny": "a"}
)


def told(text: str) -> str:
    """What is shown of an answer that says this in all its places."""
    answer = PushAnswer(
        status=400, message=text, head=text.encode(), headers=(("x-echo", text), ("a", "b"))
    )
    shown = Hiding(SECRETS).shown(answer)
    assert shown.status == 400 and shown.headers[1] == ("a", "b")
    (_, value), _ = shown.headers
    assert shown.head.decode("latin-1").encode("latin-1").decode() == value == shown.message
    assert judge(shown).sentence.endswith(f": {value}")
    return value


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a header is missing", "a header is missing"),
        ('got Bearer to"k<en>/+1 and a', f"got {HIDDEN} and a"),
        ('token to"k<en>/+1!', f"token {HIDDEN}!"),
        (json.dumps({"a": 'Bearer to"k<en>/+1'}), f'{{"a": "{HIDDEN}"}}'),
        (html.escape('to"k<en>/+1'), HIDDEN),
        ("?t=" + quote('to"k<en>/+1', safe=""), f"?t={HIDDEN}"),
        (BASIC, HIDDEN),
        ("user:pass wörd is wrong", f"{HIDDEN} is wrong"),
        ("the password pass wörd is wrong", f"the password {HIDDEN} is wrong"),
        (f"{SIGNING}, {SIGNING.removeprefix('whsec_')}", f"{HIDDEN}, {HIDDEN}"),
        ("the answer was cut: Bearer to", f"the answer was cut: {HIDDEN}"),
        ('the answer was cut: to"k<', f"the answer was cut: {HIDDEN}"),
        ('tok to" Bea', 'tok to" Bea'),
    ],
)
def test_a_secret_is_replaced_in_all_its_forms_and_nothing_else_is(said: str, shown: str) -> None:
    assert told(said) == shown


@given(
    st.text(alphabet="abcdefgh", min_size=4, max_size=12),
    st.text(alphabet="abcdefgh ", max_size=30), st.text(alphabet="abcdefgh ", max_size=30),
    st.integers(0, 80),
)  # fmt: skip
def test_no_secret_is_left_wherever_it_stands_and_wherever_the_answer_is_cut(
    secret: str, before: str, after: str, cut: int
) -> None:
    secrets = PushSecrets(headers={"x": secret})
    said = f"{before}{secret}{after}"[:cut]
    shown = Hiding(secrets).shown(PushAnswer(status=400, message=said)).message
    assert secret not in shown.replace(HIDDEN, "|")
    assert not any(shown.endswith(secret[:n]) for n in range(4, len(secret) + 1))


def test_without_secrets_an_answer_is_shown_as_it_is() -> None:
    answer = PushAnswer(status=400, head=b"\xff")
    assert Hiding(None).shown(answer) is answer
    assert Hiding(SECRETS).shown(answer).head == b"\xff"
