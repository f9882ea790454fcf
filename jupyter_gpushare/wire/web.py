"""One HTTP request with a token. It follows no redirect and uses no proxy: neither may see it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

MAX_BODY_BYTES = 1 << 20


class Response(NamedTuple):
    status: int
    body: bytes


def ask(method: str, url: str, token: str, seconds: float) -> Response:
    """Send a request, and block for the answer. Raises OSError where there is none within
    `seconds`."""
    from http import client  # most processes never send one

    parts = urlsplit(url)
    kind = client.HTTPSConnection if parts.scheme == "https" else client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request(method, parts.path, headers={"Authorization": f"token {token}"})
        answer = connection.getresponse()
        return Response(answer.status, answer.read(MAX_BODY_BYTES))
    except client.HTTPException as error:
        raise OSError(0, f"no answer in HTTP ({type(error).__name__})") from None
    finally:
        connection.close()
