"""A connection that ends while nvrun still writes to it, without a host: both ends of ssh in this process."""

from __future__ import annotations

import socket
import threading

import paramiko
import paramiko.common
import pytest

from nvrun.fleet.ssh import ChannelLink


class Anybody(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED


def test_writing_to_what_has_ended_is_one_error_of_every_link() -> None:
    near, far = socket.socketpair()
    server, client = paramiko.Transport(far), paramiko.Transport(near)
    try:
        server.add_server_key(paramiko.ECDSAKey.generate())
        server.start_server(threading.Event(), Anybody())
        client.start_client()
        client.auth_none("ada")
        link = ChannelLink(client, client.open_session(), client.close)
        link.write(b"x")
        # The moment between the end of the connection and paramiko's own thread noticing it.
        client.packetizer.close()
        with pytest.raises(BrokenPipeError):
            link.close_write()
        with pytest.raises(OSError):  # noqa: PT011 - a closed channel is one too
            link.write(b"y")
    finally:
        client.close()
        server.close()
