"""Addresses of the rendezvous."""

import contextlib
import errno
import socket

import pytest

from tf_libra.coordination import rendezvous_address


def test_host_has_its_own_addresses_alone() -> None:
    assert rendezvous_address.is_of_this_host("127.0.0.1")
    assert rendezvous_address.is_of_this_host("localhost")
    assert not rendezvous_address.is_of_this_host("192.0.2.1")
    assert not rendezvous_address.is_of_this_host("no.such.host.invalid")


def test_first_free_port_is_taken() -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as raised:
            rendezvous_address.listen("127.0.0.1", [port], is_one_host=True)
        assert raised.value.errno == errno.EADDRINUSE
        for listener in rendezvous_address.listen("127.0.0.1", [port, 0], is_one_host=True):
            assert stack.enter_context(listener).getsockname()[0] == "127.0.0.1"


def test_unknown_name_has_no_addresses() -> None:
    assert rendezvous_address.resolve("no.such.host.invalid") == []
    assert rendezvous_address.resolve("127.0.0.1") == ["127.0.0.1"]


@pytest.mark.parametrize("host, is_loopback", [("127.0.0.1", True), ("192.0.2.1", False)])
def test_remedy_names_loopback_addresses(host: str, is_loopback: bool) -> None:
    remedy = rendezvous_address.start_remedy(f"{host}:1", [host])
    assert f"{host}:1" in remedy
    assert ("loopback" in remedy) == is_loopback
