"""The floor for `scripts/bench inject`: aiohttp over TLS that reads the body and answers a constant."""

import asyncio
import sys

from aiohttp import web

from injector.serving.tls import ServingContext, read_pair

ANSWER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"0","allowed":true}}'


async def handle(request: web.BaseRequest) -> web.Response:
    """The least that an HTTP handler can do with a body."""
    await request.content.read()
    return web.Response(body=ANSWER, content_type="application/json")


async def main(directory: str) -> None:
    """Serves until it is terminated; prints its port."""
    context = ServingContext(read_pair(f"{directory}/tls.crt", f"{directory}/tls.key")).context
    server = web.Server(handle, access_log=None)  # type: ignore[arg-type]
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=context)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
