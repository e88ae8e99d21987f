"""viser's server with the guard in front of everything that it answers."""

import contextlib
import dataclasses
import functools
import http
import io
from collections.abc import Callable, Iterator
from typing import Any

import viser
import websockets.asyncio.server
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tokenfield.errors import RunError
from tokenfield.lab import guard


def guarded_server(host: str, port: int) -> tuple[viser.ViserServer, str]:
    """The server, and the address with its token.

    Args:
        host: name or address to listen at.
        port: port to listen at, or the next free one; 0: any that is free.
    """
    doorkeeper = Doorkeeper(host)
    # viser would print a page of its own, and could ask others to share the page
    with contextlib.redirect_stdout(io.StringIO()), _every_server_guarded(doorkeeper):
        server = viser.ViserServer(host=host, port=port, label="tokenfield lab", verbose=False)
    server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]
    if not doorkeeper.installed:
        server.stop()
        raise RunError("the lab could not be guarded with this version of viser, so it was not started")
    doorkeeper.port = server.get_port()
    return server, guard.address(host, doorkeeper.port, doorkeeper.token)


class Doorkeeper:
    """Looks at every request before viser does, handshakes of websockets too."""

    def __init__(self, host: str):
        self.host, self.port, self.token = host, 0, guard.new_token()
        self.installed = False

    def before(self, answer: Callable[[Any, Request], Response | None]) -> Callable[..., Response | None]:
        """The function that answers requests, called for those that may come in only."""
        self.installed = True

        def guarded(connection: Any, request: Request) -> Response | None:
            try:
                headers = {
                    name: request.headers[name]
                    for name in ("Host", "Origin", "Upgrade")
                    if name in request.headers
                }
            except LookupError:  # one of them is there twice
                headers = {}
            sentence = guard.refusal(headers, request.path, self.token, self.host, self.port)
            if sentence:
                return _answer(http.HTTPStatus.FORBIDDEN, sentence)
            found = answer(connection, dataclasses.replace(request, path=guard.inner_path(request.path)))
            if found is not None:
                for name, value in guard.HEADERS.items():
                    found.headers[name] = value
            return found

        return guarded


def _answer(status: http.HTTPStatus, sentence: str) -> Response:
    body = sentence.encode("utf8")
    headers = Headers(guard.HEADERS)
    headers["Content-Type"], headers["Content-Length"] = "text/plain; charset=utf-8", str(len(body))
    return Response(status.value, status.phrase, headers, body)


@contextlib.contextmanager
def _every_server_guarded(doorkeeper: Doorkeeper) -> Iterator[None]:
    """While viser starts its server: there is no other way to tell it who may come in."""
    serve = websockets.asyncio.server.serve

    @functools.wraps(serve)
    def guarded(*arguments: Any, **more: Any) -> Any:
        return serve(*arguments, **more | {"process_request": doorkeeper.before(more["process_request"])})

    websockets.asyncio.server.serve = guarded  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        websockets.asyncio.server.serve = serve  # type: ignore[misc]
