"""A process of the lab: lives in one namespace under one uid and gid, serves and calls there as it is told.

Run as a program, by its text (`python -S -c TEXT UID GID`): it takes its ids only after the interpreter has loaded, so
that the files of this project need not be readable by them. Speaks JSON lines: a command on stdin, its answer on
stdout; ends with its stdin. Servers answer every caller with what they see of it: its address and what it asked for.
"""

import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

SO_ORIGINAL_DST = 80
DNS_QUESTION = b"\x03who\x03lab\x00\x00\x10\x00\x01"  # who.lab, TXT, IN


def kind_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def original_destination(connection: socket.socket) -> list[Any] | None:
    """The destination before a redirect, as a proxy asks for it; None where connections are not tracked."""
    try:
        if connection.family == socket.AF_INET:
            raw = connection.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, 16)
            return [socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack_from("!H", raw, 2)[0]]
        raw = connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
        return [socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from("!H", raw, 2)[0]]
    except OSError:
        return None


def headers_of(head: bytes) -> dict[str, str]:
    """Header lines by name in small letters; repeated ones joined by commas, as HTTP has it."""
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name = name.strip().lower()
        headers[name] = f"{headers[name]},{value.strip()}" if name in headers else value.strip()
    return headers


def receive_until(connection: socket.socket, mark: bytes, data: bytes = b"") -> bytes:
    while mark not in data:
        more = connection.recv(65536)
        if not more:
            break
        data += more
    return data


def serve_stream(name: str, listener: socket.socket) -> None:
    while True:
        connection, peer = listener.accept()
        threading.Thread(target=answer_stream, args=(name, connection, peer), daemon=True).start()


def answer_stream(name: str, connection: socket.socket, peer: tuple[Any, ...]) -> None:
    """HTTP, or DNS over TCP when the first byte is the high half of a short length."""
    with connection:
        connection.settimeout(5)
        try:
            seen: dict[str, Any] = {
                "name": name, "peer": list(peer[:2]), "local": list(connection.getsockname()[:2]),
                "original": original_destination(connection),
            }  # fmt: skip
            data = connection.recv(65536)
            if data[:1] == b"\0":
                while len(data) < 2 or len(data) < 2 + struct.unpack_from("!H", data)[0]:
                    data += connection.recv(65536)
                answer = dns_answer(data[2:], seen)
                connection.sendall(struct.pack("!H", len(answer)) + answer)
                return
            head = receive_until(connection, b"\r\n\r\n", data)
            body = json.dumps(seen | {"headers": headers_of(head.partition(b"\r\n\r\n")[0])}).encode()
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )
        except OSError:  # the caller went away
            return


def serve_datagrams(name: str, server: socket.socket) -> None:
    while True:
        data, peer = server.recvfrom(4096)
        if data:
            server.sendto(dns_answer(data, {"name": name, "peer": list(peer[:2])}), peer)


def dns_answer(query: bytes, seen: dict[str, Any]) -> bytes:
    """A TXT answer that holds what the server saw."""
    text = json.dumps(seen).encode()
    head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, 16, 1, 0, len(text) + 1) + bytes([len(text)]) + text
    return head + DNS_QUESTION + record


def bound(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    server = socket.socket(kind_of(address), kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if server.family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((address, port))
    return server


def serve(name: str, tcp: list[list[Any]], udp: list[list[Any]]) -> dict[str, Any]:
    for address, port in tcp:
        listener = bound(socket.SOCK_STREAM, address, port)
        listener.listen(64)
        threading.Thread(target=serve_stream, args=(name, listener), daemon=True).start()
    for address, port in udp:
        server = bound(socket.SOCK_DGRAM, address, port)
        threading.Thread(target=serve_datagrams, args=(name, server), daemon=True).start()
    return {}


def http(address: str, port: int, source: str = "", timeout: float = 3.0) -> dict[str, Any]:
    """One GET: what the server saw (`seen`), or the status of a proxy that could not reach it."""
    with socket.socket(kind_of(address), socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        if source:
            client.bind((source, 0))
        client.connect((address, port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
        mine = list(client.getsockname()[:2])
        data = receive_until(client, b"\r\n\r\n")
        head, _, body = data.partition(b"\r\n\r\n")
        if not head:
            raise ConnectionResetError(0, "closed without an answer")
        length = int(headers_of(head).get("content-length", "0"))
        while len(body) < length and (more := client.recv(65536)):
            body += more
    status = int(head.split()[1])
    return {"status": status, "source": mine, "seen": json.loads(body) if status == 200 else None}


def dns(protocol: str, address: str, port: int = 53, timeout: float = 3.0) -> dict[str, Any]:
    """One TXT query over a connected socket: an answer from any other address than was asked is not seen."""
    query = os.urandom(2) + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 0) + DNS_QUESTION
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(kind_of(address), kind) as client:
        client.settimeout(timeout)
        client.connect((address, port))
        mine = list(client.getsockname()[:2])
        if protocol == "udp":
            client.send(query)
            answer = client.recv(4096)
        else:
            client.sendall(struct.pack("!H", len(query)) + query)
            answer = client.recv(4096)
            while len(answer) < 2 or len(answer) < 2 + struct.unpack_from("!H", answer)[0]:
                answer += client.recv(4096)
            answer = answer[2:]
    if answer[:2] != query[:2]:
        raise ConnectionError(0, "an answer to another question")
    text = answer[12 + len(DNS_QUESTION) + 13 :]
    return {"source": mine, "seen": json.loads(text)}


def main() -> None:
    uid, gid = int(sys.argv[1]), int(sys.argv[2])
    commands: dict[str, Callable[..., dict[str, Any]]] = {"serve": serve, "http": http, "dns": dns}
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = commands[command.pop("do")](**command)
        except OSError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
