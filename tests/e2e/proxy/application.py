#!/usr/bin/python3 -I
"""What the tests run as an application: tells who asked, and asks others. Standard library only.

application serve PORT...              HTTP on each, both families; answers who the peer is
application get URL...                 prints each answer, or why there is none
application get-every SECONDS URL      prints a line each time, until it is stopped
application resolve NAME               prints its addresses
"""

import json
import socket
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Echo(BaseHTTPRequestHandler):
    """Says what it sees of the connection."""

    def do_GET(self) -> None:
        seen = {
            "peer": self.client_address[0].removeprefix("::ffff:"),
            "path": self.path,
            "certificate": self.headers.get("X-Forwarded-Client-Cert", ""),  # what the peer's proxy proved to ours
        }
        body = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main(arguments: list[str]) -> None:
    match arguments:
        case ["serve", *ports]:
            for port in ports:
                threading.Thread(target=Server(("", int(port)), Echo).serve_forever).start()
        case ["get", *urls]:
            for url in urls:
                print(get(url), flush=True)
        case ["get-every", seconds, url]:
            while True:
                print(time.time(), get(url), flush=True)
                time.sleep(float(seconds))
        case ["resolve", name]:
            print(*sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)}))
        case _:
            sys.exit(__doc__)


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError as error:
        return json.dumps({"error": str(error)})


if __name__ == "__main__":
    main(sys.argv[1:])
