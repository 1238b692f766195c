"""The token of a client: where it comes from, and where it must not go."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.access.bearer import TokenUnusable, bearer

LOCAL = "http://127.0.0.1:7440"


def test_it_comes_from_the_environment_or_a_file_that_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hg_file\n")
    assert bearer(LOCAL, {}) == {}
    assert bearer(LOCAL, {"HEADGATE_TOKEN": ""}) == {}
    assert bearer(LOCAL, {"HEADGATE_TOKEN": "hg_1"}) == {"Authorization": "Bearer hg_1"}
    named = {"HEADGATE_TOKEN_FILE": str(file)}
    assert bearer(LOCAL, named) == {"Authorization": "Bearer hg_file"}
    assert bearer(LOCAL, {**named, "HEADGATE_TOKEN": "hg_1"}) == {"Authorization": "Bearer hg_1"}


@pytest.mark.parametrize("url", ["http://headgate:7440", "http://10.0.0.1", "http://[2001:db8::1]"])
def test_it_crosses_no_network_in_clear_text(url: str) -> None:
    with pytest.raises(TokenUnusable, match=r"in clear text.*use https://"):
        bearer(url, {"HEADGATE_TOKEN": "hg_1"})
    assert bearer(url, {}) == {}
    assert bearer(url.replace("http:", "https:"), {"HEADGATE_TOKEN": "hg_1"})
    for near in ("http://localhost:1", "http://[::1]:1", "http://127.9.9.9"):
        assert bearer(near, {"HEADGATE_TOKEN": "hg_1"})


@pytest.mark.parametrize("text", ["two words", "a\nb", "café"])
def test_what_no_header_can_carry_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(TokenUnusable, match="HEADGATE_TOKEN has no token") as caught:
        bearer(LOCAL, {"HEADGATE_TOKEN": text})
    assert text not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenUnusable, match=r"cannot read HEADGATE_TOKEN_FILE .*/nothing"):
        bearer(LOCAL, {"HEADGATE_TOKEN_FILE": str(tmp_path / "nothing")})
