"""Which addresses are this machine's own."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil
import pytest

from delivery.push.posts.own_addresses import is_own, networks_6


def test_each_address_of_an_interface_is_own_and_others_are_not() -> None:
    found = [each.address.partition("%")[0] for some in psutil.net_if_addrs().values()
             for each in some if each.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    assert found
    for address in found:
        assert is_own(ipaddress.ip_address(address)), address
    for other in ("192.0.2.7", "8.8.8.8", "2001:db8::7"):
        assert not is_own(ipaddress.ip_address(other))


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
    monkeypatch.setattr("delivery.push.posts.own_addresses.INTERFACES_6", file)
    assert is_own(ipaddress.ip_address("2606:4700::7"))
    assert not is_own(ipaddress.ip_address("2606:4701::7"))
