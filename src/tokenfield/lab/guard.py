"""Who may talk to the lab: pages that it served itself, to people who know the address it printed.

Any page in a person's browser can send requests to this machine. So the name that a request is for (Host)
must be one of ours, which stops names that somebody else lets point here; the page that it comes from
(Origin) must be ours; and the address must begin with a token that nobody can guess. The functions know
nothing of a particular server.
"""

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

#: Bytes of chance in a token.
TOKEN_BYTES = 24
#: Sent with every page: no other page may frame it, and its address goes nowhere.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def new_token() -> str:
    """A token that nobody can guess, made of letters that an address may have."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(host: str, port: int, token: str) -> str:
    """What a person opens in a browser.

    Args:
        host: that is listened at.
        port: that is listened at.
        token: that the address must hold.
    """
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/{token}/"


def refusal(headers: Mapping[str, str], path: str, token: str, host: str, port: int) -> str:
    """Why a request is not answered, in a sentence; empty if it may be.

    Args:
        headers: of the request; names are looked up as "Host", "Origin" and "Upgrade".
        path: of the request, with what follows a question mark.
        token: that the path must begin with.
        host: that is listened at.
        port: that is listened at.
    """
    name = headers.get("Host", "")
    if not _is_ours(name, host, port):
        return "This server does not go by that name."
    origin, upgrade = headers.get("Origin"), headers.get("Upgrade", "").lower()
    if (origin is not None or upgrade) and origin != f"http://{name}":
        return "Only the lab's own page may talk to it."
    if not secrets.compare_digest(_first(path).encode("utf8"), token.encode("utf8")):
        return "This is not the address that `tokenfield lab` printed."
    return ""


def inner_path(path: str) -> str:
    """The path without the token."""
    return "/" + path.lstrip("/").partition("?")[0].partition("/")[2]


def _first(path: str) -> str:
    return path.lstrip("/").partition("?")[0].partition("/")[0]


def _is_ours(name: str, host: str, port: int) -> bool:
    """Whether the Host of a request is a name of this server.

    A number cannot be made to point elsewhere, as a name can: where others may come, every number will do.
    """
    try:
        found = urlsplit(f"//{name}")
        asked, right_port = found.hostname or "", (found.port or 80) == port
    except ValueError:
        return False
    if not right_port or found.username is not None or found.path or found.query:
        return False
    if asked in ("localhost", host.lower()):
        return True
    try:
        number = ipaddress.ip_address(asked)
    except ValueError:
        return not is_loopback(host) and asked in (socket.gethostname().lower(), socket.getfqdn().lower())
    return number.is_loopback or not is_loopback(host)
