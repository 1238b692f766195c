"""Who may be called."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.posts.addresses import (
    AllowList,
    BadEndpoint,
    ForbiddenEndpoint,
    IPAddress,
    check_endpoint,
    is_own,
    is_public,
    networks_6,
)

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8"]
PUBLIC += ["64:ff9b::8.8.8.8", "2002:808:808::1"]
LOCAL = ["127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1"]
LOCAL += ["169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1"]
LOCAL += ["203.0.113.7", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"]
LOCAL += ["::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1"]
LOCAL += ["2001:db8::1", "2001::1", "3fff::1", "5f00::1", "100::1", "::127.0.0.1"]
LOCAL += ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1"]
LOCAL += ["2002:7f00:1::", "2002:a00:1::1", "64:ff9b:1::1"]


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_that_the_internet_routes_is_public(address: str) -> None:
    assert is_public(ip_address(address))
    assert not AllowList(["public"]).why_not("any.example", address)


@pytest.mark.parametrize("address", LOCAL)
def test_no_other_address_is_public(address: str) -> None:
    assert not is_public(ip_address(address))
    assert AllowList(["public"]).why_not("any.example", address)


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_that_stands_for_an_ipv4_address_is_as_public(address: object) -> None:
    plain = ip_address(str(address))
    assert is_public(ip_address(f"::ffff:{plain}")) == is_public(plain)
    assert is_public(ip_address(f"64:ff9b::{plain}")) == is_public(plain)
    assert is_public(ip_address(int(plain) << 80 | 0x2002 << 112)) == is_public(plain)


def test_nothing_is_allowed_by_an_empty_list() -> None:
    assert AllowList([]).why_not("any.example", "8.8.8.8")


def test_without_public_only_what_is_named_is_allowed() -> None:
    allow = AllowList(["10.1.0.0/16", "192.168.7.7", "fd00::/8"])
    assert not allow.why_not("any.example", "10.1.2.3")
    assert not allow.why_not("any.example", "::ffff:10.1.2.3")
    assert not allow.why_not("any.example", "192.168.7.7")
    assert not allow.why_not("any.example", "fd00::9")
    assert allow.why_not("any.example", "10.2.0.1")
    assert allow.why_not("any.example", "192.168.7.8")
    assert allow.why_not("any.example", "8.8.8.8")


def test_a_name_that_is_allowed_may_lead_anywhere() -> None:
    allow = AllowList(["Hooks.Example.com", "*.internal.example"])
    for host in ("hooks.example.com", "HOOKS.example.com.", "a.internal.example"):
        assert not allow.why_not(host, "10.0.0.1")
    assert not allow.why_not("a.b.internal.example", "127.0.0.1")
    for host in ("internal.example", "xhooks.example.com", "a.hooks.example.com", "example.com"):
        assert allow.why_not(host, "10.0.0.1")
    assert allow.why_not("evilinternal.example", "10.0.0.1")


def test_an_address_in_the_url_is_never_taken_for_a_name() -> None:
    assert AllowList(["*.1", "public"][1:]).why_not("10.0.0.1", "10.0.0.1")


@pytest.mark.parametrize(
    "entry",
    ["", " ", "*", "*.", "http://a.example", "a.example:80", "10.0.0.1/8", "10.0.0.0/33", "a b",
     "-a.example", "10.0.0.999", "*.1", "a..b", "ü.example", "x" * 300, "1.2", "0x7f.1"],
)  # fmt: skip
def test_an_entry_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="must have"):
        AllowList([entry])


def test_a_list_has_at_most_a_thousand_entries() -> None:
    AllowList([f"h{n}.example" for n in range(1_000)])
    with pytest.raises(ValueError, match="at most 1000"):
        AllowList([f"h{n}.example" for n in range(1_001)])


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://a.example", ("http", "a.example", 80)),
        ("https://A.Example/x?y=%20", ("https", "a.example", 443)),
        ("https://a.example.:8443/", ("https", "a.example.", 8443)),
        ("http://8.8.8.8/", ("http", "8.8.8.8", 80)),
        ("http://[2606:4700::1]:81/", ("http", "2606:4700::1", 81)),
        ("http://xn--bcher-kva.example/a_b", ("http", "xn--bcher-kva.example", 80)),
        ("HTTP://a.example/;p=1,2", ("http", "a.example", 80)),
    ],
)  # fmt: skip
def test_an_endpoint_is_a_url_with_a_host(endpoint: str, expected: tuple[str, str, int]) -> None:
    found = AllowList(["public"]).check(endpoint)
    assert (found.scheme, found.host, found.port) == expected


@pytest.mark.parametrize(
    "endpoint",
    ["", "a", "a.example", "//a.example", "/x", "ftp://a.example", "file:///etc/passwd", "http:",
     "http://", "http:///x", "http://:80/", "http://a.example:0/", "http://a.example:65536/",
     "http://a.example:/", "http://a.example:x/", "http://u:p@a.example/", "http://@a.example/",
     "http://a.example/#x", "http://a.example#", "http://a b.example/", "http://a.example/a b",
     "http://a.example/\r\nX: y", "http://a.example/\n", "http://a.example\\@b.example/",
     "http://ü.example/", "http://a.example/ü", "http://[::1", "http://[::1]x/", "http://[v1.a]/",
     "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/", "http://0177.0.0.1/",
     "http://1.2.3.4.5/", "http://999.1.1.1/", "http://a..example/", "http://-/", "http://%31/",
     "http://[fe80::1%25eth0]:99999/", "http://a.example/" + "x" * 2_048, "x" * 1_000_000],
)  # fmt: skip
def test_what_is_no_url_that_can_be_called_is_refused(endpoint: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        check_endpoint(endpoint)
    assert "the endpoint" in str(caught.value)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:9/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/latest",
     "http://localhost/", "http://LOCALHOST.:80/", "http://a.localhost/", "http://[::]/",
     "http://[::ffff:127.0.0.1]/", "http://[fe80::1%25eth0]/", "http://0.0.0.0/"],
)  # fmt: skip
def test_a_url_that_shows_an_address_which_is_not_allowed_is_refused(endpoint: str) -> None:
    with pytest.raises(ForbiddenEndpoint, match=r"not allowed by push_allow: add|denied by push_d"):
        AllowList(["public"]).check(endpoint)


METADATA = ["169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254",
            "::ffff:168.63.129.16", "64:ff9b::a83f:8110"]  # fmt: skip


@pytest.mark.parametrize("address", METADATA)
def test_hosts_of_a_cloud_are_denied_whatever_name_or_larger_network_leads_there(
    address: str,
) -> None:
    allow = AllowList(["public", "*.example.com", "100.64.0.0/10", "169.254.0.0/16", "::/0"])
    why = allow.why_not("a.example.com", address)
    assert why.startswith(
        f"{address} (a.example.com leads there) is denied by push_deny, which has"
    )
    assert not AllowList(["0.0.0.0/0", "::/0"], ()).why_not("a.example", address), (
        "nothing is denied"
    )


def test_of_an_allowed_and_a_denied_network_the_narrower_one_decides() -> None:
    allow = AllowList(["10.0.0.0/8", "10.1.2.0/24", "10.9.0.0/16"], ["10.1.0.0/16", "10.9.0.0/16"])
    assert not allow.why_not("a.example", "10.0.0.1")
    assert allow.why_not("a.example", "10.1.0.1")
    assert not allow.why_not("a.example", "10.1.2.1")
    assert not allow.why_not("a.example", "10.9.0.1"), "of two that are alike, push_allow"
    assert not AllowList(["169.254.169.254"]).why_not("a.example", "169.254.169.254")


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("::ffff:10.0.0.0/104", "10.9.9.9"),
        ("[::ffff:a00:1]", "10.0.0.1"),
        ("::ffff:0:0/96", "8.8.8.8"),
    ],
)
def test_networks_of_mapped_addresses_are_those_of_ipv4(network: str, address: str) -> None:
    for shown in (address, f"::ffff:{address}"):
        denying, allowing = AllowList(["0.0.0.0/0"], [network]), AllowList([network])
        assert not allowing.why_not("a.example", shown)
        assert not AllowList(["0.0.0.0/0"], ()).why_not("a.example", shown)
        why = AllowList(["public", "*.example"], [network]).why_not("a.example", shown)
        assert "is denied by push_deny, which has" in why
        is_denied = bool(denying.why_not("a.example", shown))
        assert is_denied == (network != "::ffff:0:0/96"), "the narrower"
    assert AllowList(["::ffff:10.0.0.0/104"]).why_not("a.example", "11.0.0.1")


def test_addresses_of_this_machine_are_not_public_but_may_be_allowed() -> None:
    asked: list[str] = []

    def is_own(address: IPAddress) -> bool:
        asked.append(str(address))
        return str(address) in ("8.8.8.8", "2606:4700::1")

    for own in ("8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        why = AllowList(["public"], is_own=is_own).why_not("a.example", own)
        assert "denied by push_deny, which has `own`" in why
        assert not AllowList(["public", "a.example"], is_own=is_own).why_not("a.example", own)
        assert not AllowList(["public"], (), is_own).why_not("a.example", own)
    assert not AllowList(["public", "8.0.0.0/8"], is_own=is_own).why_not("a.example", "8.8.8.8")
    asked.clear()
    allow = AllowList(["public"], is_own=is_own)
    assert not allow.why_not("a.example", "1.1.1.1") and allow.why_not("a.example", "10.0.0.1")
    assert asked == ["1.1.1.1"]


def test_each_address_of_an_interface_is_own_and_others_are_not() -> None:
    found = [each.address.partition("%")[0] for some in psutil.net_if_addrs().values()
             for each in some if each.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    assert found
    for address in found:
        assert is_own(ip_address(address)), address
    for other in ("192.0.2.7", "8.8.8.8", "2001:db8::7"):
        assert not is_own(ip_address(other))


def test_networks_are_those_of_all_interfaces(tmp_path: Path) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(
        "20010db8000100020000000000000042 02 40 00 80     eth0\n"
        "fe800000000000000042acfffe110002 02 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    assert [str(each) for each in networks_6(file)] == ["2001:db8:1:2::/64", "fe80::/64", "::1/128"]
    assert networks_6(tmp_path / "none") == []


def test_an_address_of_the_machines_ipv6_network_is_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "if_inet6"
    file.write_text("26064700000000000000000000000042 02 40 00 80     eth0\n")
    monkeypatch.setattr("delivery.push.posts.addresses.INTERFACES_6", file)
    assert is_own(ip_address("2606:4700::7"))
    assert not is_own(ip_address("2606:4701::7"))


@pytest.mark.parametrize("entry", ["", "a.example", "*.example.com", "10.0.0.1/8", "public", "*"])
def test_only_addresses_networks_and_their_words_can_be_denied(entry: str) -> None:
    with pytest.raises(ValueError, match="must have"):
        AllowList((), [entry])


def test_lists_that_are_set_are_those_of_all_who_have_the_object() -> None:
    allow = AllowList(["public", "a.example"])
    allow.set(["10.0.0.0/8"], ["10.1.0.0/16"])
    assert (allow.entries, allow.denied) == (("10.0.0.0/8",), ("10.1.0.0/16",))
    assert allow.why_not("a.example", "8.8.8.8") and allow.why_not("b.example", "10.1.0.1")
    with pytest.raises(ValueError, match="must have"):
        allow.set(["public"], ["x"])
    with pytest.raises(ValueError, match="at most 256 characters"):
        allow.set(["[" * 300 + "::1]"], ())
    assert allow.entries == ("10.0.0.0/8",)


def test_a_name_is_not_looked_up_for_the_check() -> None:
    assert AllowList([]).check("http://nowhere.invalid/").address is None


def test_an_address_that_is_allowed_passes_the_check() -> None:
    allow = AllowList(["127.0.0.0/8", "localhost"])
    assert str(allow.check("http://127.0.0.1:8080/hook").address) == "127.0.0.1"
    assert allow.check("http://localhost/").host == "localhost"


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda text: "http://" + text))
def test_no_text_is_too_odd_for_the_check(text: str) -> None:
    try:
        found = check_endpoint(text)
    except BadEndpoint:
        return
    assert found.host and 1 <= found.port <= 65_535
