"""Questions to the service of jobs over the service of a JupyterHub. Notebooks need it on machines
without the socket of the service, such as nodes of a cluster on which a hub has started them."""

from __future__ import annotations

import http.client
import os
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import BrokerUnavailable, ConnectionLost, NotPermitted, ProtocolError, cause
from ..wire.credentials import TOKEN
from ..wire.jobs import (
    MAX_ANSWER_BYTES,
    CancelJob,
    ClusterView,
    FromCluster,
    JobView,
    LookAtJobs,
    Submit,
    ToCluster,
)
from ..wire.messages import Error
from .connection import ANSWER_SECONDS

ROUTES = "/jupyter-gpushare/api/v1/jobs"
CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class Asked(NamedTuple):
    """A request, and the kind of its answer."""

    method: str
    path: str
    kind: type[JobView | ClusterView]
    body: object = None


class Refusal(msgspec.Struct):
    """The answer of the service to a refused request."""

    message: str
    code: str = ""


class OverHub:
    """`url` is the address of the hub's service, like ``https://hub.example/services/gpushare``.
    The token goes only there: no redirection is followed."""

    def __init__(self, url: str) -> None:
        """Raises BrokerUnavailable."""
        if not (token := os.environ.get(TOKEN, "")):
            raise BrokerUnavailable(
                f"cluster_url names a service of a JupyterHub, and this process has no {TOKEN},"
                " as servers of a hub have"
            )
        self._url = url
        self._headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}

    def ask(self, question: ToCluster) -> FromCluster:
        asked = request_of(question)
        status, body = self._answer(asked)
        try:
            if status != http.client.OK:
                refusal = msgspec.json.decode(body, type=Refusal)
                return Error(refusal.code, refusal.message)
            answer = msgspec.json.decode(body, type=asked.kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ProtocolError(
                f"{self._url} is not the service of a hub that has jobs: it answers with status"
                f" {status}"
            ) from None
        if isinstance(question, LookAtJobs) and isinstance(answer, JobView):
            return ClusterView(cluster="", pid=0, jobs=[answer], nodes=[], trouble="")
        return answer

    def _answer(self, asked: Asked) -> tuple[int, bytes]:
        """Return status and body. Raises ConnectionLost."""
        parts = urlsplit(self._url)
        connection = CONNECTIONS[parts.scheme](parts.netloc, timeout=ANSWER_SECONDS)
        body = None if asked.body is None else msgspec.json.encode(asked.body)
        try:
            path = parts.path.rstrip("/") + ROUTES + asked.path
            connection.request(asked.method, path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"{self._url} does not answer: {cause(error)}") from None
        finally:
            connection.close()

    def close(self) -> None: ...


def request_of(question: ToCluster) -> Asked:
    """Return the request for a question. Raises NotPermitted."""
    match question:
        case Submit():
            return Asked("POST", "", JobView, question)
        case CancelJob(id):
            return Asked("POST", f"/{quote(id, safe='')}/asks", JobView, {"ask": "cancel"})
        case LookAtJobs("", all):
            return Asked("GET", f"?all={str(all).lower()}", ClusterView)
        case LookAtJobs(id):
            return Asked("GET", f"/{quote(id, safe='')}", JobView)
    raise NotPermitted("the use of jobs is told on the machine of their service")
