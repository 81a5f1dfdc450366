"""What may stand where an sshd should: `listener.py MANNER PORT`; also a relay and somebody who holds a connection."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time


def pump(source: socket.socket | int, target: socket.socket | int) -> None:
    while data := os.read(source if isinstance(source, int) else source.fileno(), 1 << 16):
        os.write(target if isinstance(target, int) else target.fileno(), data)
    if isinstance(target, socket.socket):
        target.shutdown(socket.SHUT_WR)


def serve(manner: str, peer: socket.socket) -> None:
    if manner == "close":
        peer.close()
    elif manner == "http":
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        peer.close()
    elif manner == "banner":
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    elif manner == "noise":
        peer.sendall(b"Welcome to the cluster\r\nPlease behave\r\n")
        sshd = socket.create_connection(("127.0.0.1", 22))
        threading.Thread(target=pump, args=(peer, sshd), daemon=True).start()
        pump(sshd, peer)
    # silent, unix: nothing


def main(manner: str, *rest: str) -> None:
    if manner == "relay":
        sock = socket.create_connection((rest[0], int(rest[1])))
        threading.Thread(target=pump, args=(0, sock), daemon=True).start()
        pump(sock, 1)
        return
    if manner == "hold":
        sock = socket.create_connection((rest[0], int(rest[1])))
        sock.recv(1)
        print("held", flush=True)
        time.sleep(float(rest[2]) + 0.5)  # Python and its imports take the rest
        return
    if manner == "unix":
        listening = socket.socket(socket.AF_UNIX)
        path = tempfile.mktemp(prefix="nvrun-test-", dir="/tmp")
        listening.bind(path)
        listening.listen()
        print(path, flush=True)
    else:
        listening = socket.create_server(("", int(rest[0])), backlog=64)
    peers = []
    while True:
        peer, _ = listening.accept()
        peers.append(peer)
        threading.Thread(target=serve, args=(manner, peer), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
