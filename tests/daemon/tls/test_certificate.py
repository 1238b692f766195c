"""Which pairs of certificate and key are used, and when others take their place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from daemon.tls import certificate as certificates
from daemon.tls.certificate import Certificate, CertificateError, Files, checked
from tests.e2e.secured import BAD, LATELY, LONG_AGO, Authority, replace, spoil


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(authority: Authority, client_ca: Path | None = None) -> Files:
    return Files(authority.certificate, authority.key, client_ca)


def test_a_good_pair_has_names_and_an_end(authority: Authority) -> None:
    authority.issue("headgate.example")
    found = Certificate(files(authority)).in_force
    assert found.names == ("headgate.example", "127.0.0.1") and found.expires.year > 2026
    assert "KEY" not in f"{found}{found!r}"


@pytest.mark.parametrize("how", BAD)
def test_a_bad_pair_is_refused_by_name(authority: Authority, how: str) -> None:
    message = spoil(authority, how)
    with pytest.raises(CertificateError, match=message) as caught:
        Certificate(files(authority))
    if how in ("expired", "not valid yet"):
        years = ("2019", "2020") if how == "expired" else ("2090", "2099")
        dates = rf"valid from Jan  1 .* {years[0]} GMT to Jan  1 .* {years[1]} GMT.*set .* clock"
        assert re.search(dates, str(caught.value))


def test_authorities_of_clients_must_be_certificates(authority: Authority, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(CertificateError, match=f"tls_client_ca {wrong} has no certificate"):
        Certificate(files(authority, wrong))
    with pytest.raises(CertificateError, match="tls_client_ca"):
        Certificate(files(authority, tmp_path / "none.pem"))
    assert Certificate(files(authority, authority.file)).in_force.pair.client_ca


def test_a_key_with_a_password_is_refused(authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    replace(authority.key, locked)
    with pytest.raises(CertificateError, match="is encrypted"):
        Certificate(files(authority))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look looks."""
    monkeypatch.setattr(certificates, "LOOK_NS", 0)


@pytest.mark.usefixtures("always")
def test_a_change_is_taken_when_the_files_stay_the_same_for_a_look(authority: Authority) -> None:
    found = Certificate(files(authority))
    before = found.in_force
    certificate, key = authority.pair()
    replace(authority.certificate, certificate)
    assert not found.look(), "the key may come later"
    replace(authority.key, key)
    assert not found.look() and found.in_force is before
    assert found.look() and found.in_force.pair.certificate == certificate.decode()
    assert not found.look(), "nothing has changed"


@pytest.mark.usefixtures("always")
def test_a_signal_does_not_wait_for_another_look(authority: Authority) -> None:
    found = Certificate(files(authority))
    authority.issue()
    assert found.look(now=True)


@pytest.mark.usefixtures("always")
def test_a_bad_change_is_told_once_and_leaves_the_pair_in_force(authority: Authority) -> None:
    found = Certificate(files(authority))
    before = found.in_force
    for how in BAD:
        message = spoil(authority, how)
        assert not found.look()
        with pytest.raises(CertificateError, match=message):
            found.look()
        assert not found.look() and not found.look(now=True) and found.in_force is before
    authority.issue()
    assert not found.look() and found.look()


def test_a_shard_takes_the_pair_in_force_though_it_has_expired(authority: Authority) -> None:
    authority.certificate.unlink()
    certificate, key = authority.pair(not_before=LONG_AGO, not_after=LATELY)
    pair = certificates.Pair(certificate.decode(), key.decode(), None)
    with pytest.raises(CertificateError, match="has expired"):
        checked(pair, files(authority))
    assert Certificate(files(authority), pair).in_force.pair == pair
