"""REST and WebSocket, under jupyter-gpushare/api/v1/. openapi.yaml describes each route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_gpushare import refusals
from jupyter_gpushare.broker.validation import ID
from jupyter_gpushare.errors import ConnectionLost, GpuShareError, InvalidValue
from jupyter_gpushare.tools import usage_report
from jupyter_gpushare.wire.jobs import Submit
from jupyter_gpushare.wire.messages import Change, ClassMode, SetPolicy, Welcome
from jupyter_gpushare.wire.snapshot import Snapshot

from .events.attendance import SessionOnDevice, sessions
from .jobs import Jobs
from .messages import (
    ASKS,
    NAMESPACE,
    ClassChoice,
    Failure,
    JobAsk,
    PolicyChoice,
    PolicyState,
    SessionAsk,
    SessionChange,
    Viewer,
    Wish,
)
from .openapi import document
from .processes import processes

if TYPE_CHECKING:
    from .app import Delegate, GpuShareExtension

AUTH_RESOURCE = "gpushare"
ANSWER_SECONDS = 10.0
MOST_LOGGED = 1000  # characters of a refusal in the log
STATUS = {
    "invalid": 400,
    "not_permitted": 403,
    "unknown_route": 404,
    "unknown_session": 404,
    "unknown_device": 404,
    "unknown_job": 404,
    "does_not_fit": 409,
    "limit": 429,
    "quota": 429,
    "unidentified": 403,
    "unavailable": 503,
    "engine": 503,
    "lost": 503,
}
Answer = TypeVar("Answer")
Asked = TypeVar("Asked")
Body = TypeVar("Body", bound=msgspec.Struct)


class RefusedRequest(web.HTTPError):
    """A refused request; the answer is a Failure."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(STATUS.get(code, 500), "%s", _one_line(message))  # for the log
        self.failure = Failure(message, code)


def _one_line(text: str) -> str:
    """Return the text as one printable line. It may contain text of other users, which must not
    forge lines of the log or control a terminal."""
    return "".join(
        character if character.isprintable() else "?" for character in text[:MOST_LOGGED]
    )


class Handler(APIHandler):
    """The base of all REST handlers."""

    auth_resource = AUTH_RESOURCE

    @property
    def extension(self) -> GpuShareExtension:
        extension: GpuShareExtension = self.settings["gpushare"]
        return extension

    @property
    def delegate(self) -> Delegate:
        return self.extension.delegate(self.current_user)

    @property
    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; refuse the request while the broker is away."""
        state = self.delegate.feed.now()
        if isinstance(state, Snapshot):
            return state
        raise RefusedRequest("unavailable", f"The broker is away: {state.message}")

    def body(self, kind: type[Body]) -> Body:
        """Return the request's body as `kind`. Refuse the request if the body is invalid or sets no
        field."""
        body = self.decoded(kind)
        if body == kind():
            raise RefusedRequest("invalid", f"Name one of {', '.join(kind.__struct_fields__)}.")
        return body

    def decoded(self, kind: type[Body]) -> Body:
        try:
            return refusals.decoded(self.request.body, kind, "the body")
        except InvalidValue as error:
            raise RefusedRequest(error.code, f"The request is refused: {error}.") from None

    async def from_broker(self, answer: Awaitable[Answer]) -> Answer:
        """Return the broker's answer; refuse the request if the broker refuses."""
        return await _in_time(answer, "The broker")

    async def of_jobs(self, question: Callable[[Jobs, Asked], Answer], asked: Asked) -> Answer:
        """Return the answer of the job service of the user's cluster; refuse the request if the
        service refuses."""
        if (jobs := self.delegate.jobs) is None:
            raise RefusedRequest(
                "not_permitted", "Jobs are seen in the Jupyter server of their user."
            )
        return await _in_time(asyncio.to_thread(question, jobs, asked), "The service of jobs")

    async def carry_out(self, message: Wish) -> Snapshot:
        """Let the broker make a change, and record the user in the audit trail."""
        after = await self.from_broker(asyncio.to_thread(self.delegate.carry_out, message))
        self.delegate.feed.take(after)
        self.extension.audit.changed(self.current_user.username, message)
        return after

    def answer(self, body: Any) -> None:
        self.finish(msgspec.json.encode(body))

    def write_error(self, status_code: int, **about: Any) -> None:
        error = about.get("exc_info", (None, None))[1]
        if isinstance(error, RefusedRequest):
            self.answer(error.failure)
        elif status_code == 405:
            there = f"{self.request.method} is not known at {self.request.path}"
            self.answer(Failure(f"{there}; {ROUTES_ARE}.", "unknown_route"))
        else:
            super().write_error(status_code, **about)


async def _in_time(answer: Awaitable[Answer], whose: str) -> Answer:
    """Return an answer. Refuse the request if there is an error, or no answer in time."""
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS)
    except GpuShareError as error:
        raise RefusedRequest(error.code, str(error)) from None
    except asyncio.TimeoutError:
        text = f"{whose} did not answer within {ANSWER_SECONDS:g} s."
        raise RefusedRequest(ConnectionLost.code, text) from None


class StateHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(self.snapshot)


class SessionsHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(list(sessions(self.snapshot)))


class SessionHandler(Handler):
    @web.authenticated
    @authorized
    async def patch(self, session: str) -> None:
        _check_id(session)
        change = Change(session, **msgspec.structs.asdict(self.body(SessionChange)))
        self.answer(_find(session, await self.carry_out(change)))


class AsksHandler(Handler):
    @web.authenticated
    @authorized
    async def post(self, session: str) -> None:
        _check_id(session)
        wish = ASKS[self.body(SessionAsk).ask]
        self.answer(_find(session, await self.carry_out(wish(session))))


class ViewerHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(_viewer(self, await _may_change(self)))


class PolicyHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(_policy(self.snapshot))

    @web.authenticated
    @authorized
    async def put(self) -> None:
        choice = SetPolicy(**msgspec.structs.asdict(self.body(PolicyChoice)))
        self.answer(_policy(await self.carry_out(choice)))


class ReportHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the usage that the broker lets this server's user see."""
        first, last = (self.get_query_argument(name, "") for name in ("from", "to"))
        try:
            asked = usage_report.question(first, last, self.get_query_argument("by", "user"))
        except GpuShareError as error:
            raise RefusedRequest(error.code, str(error)) from None
        self.answer(await self.from_broker(asyncio.to_thread(self.delegate.report, asked)))


class ClassesHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(self.snapshot.classes)

    @web.authenticated
    @authorized
    async def put(self) -> None:
        choice = ClassMode(**msgspec.structs.asdict(self.body(ClassChoice)))
        self.answer((await self.carry_out(choice)).classes)


class JobsHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        asked = self.get_query_argument("all", "false")
        if asked not in ("true", "false"):
            raise RefusedRequest("invalid", "`all` is true or false.")
        self.answer(await self.of_jobs(Jobs.look, asked == "true"))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.answer(await self.of_jobs(Jobs.submit, self.decoded(Submit)))


class JobHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self, job: str) -> None:
        self.answer(await self.of_jobs(Jobs.job, job))


class JobLogHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self, job: str) -> None:
        self.answer(await self.of_jobs(Jobs.log, job))


class JobAsksHandler(Handler):
    @web.authenticated
    @authorized
    async def post(self, job: str) -> None:
        self.body(JobAsk)
        self.answer(await self.of_jobs(Jobs.cancel, job))


class OpenAPIHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(document())


class NowhereHandler(Handler):
    """Answers all other requests below our name, in JSON like the other handlers."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        raise RefusedRequest(
            "unknown_route", f"There is no {self.request.path} here; {ROUTES_ARE}."
        )

    post = put = patch = delete = head = get


class EventsHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """Pushes the present state, and each new one. A slow client gets only the newest.

    A Viewer, with the permissions of the user, precedes the state to which it applies.
    """

    auth_resource = AUTH_RESOURCE

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        user = self.current_user
        allowed = self.authorizer.is_authorized(self, user, "read", AUTH_RESOURCE)
        if not await ensure_async(allowed):
            raise web.HTTPError(403, f"User is not authorized to read on {AUTH_RESOURCE}.")
        await super().get(*args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self._push = asyncio.create_task(self._follow())

    def on_close(self) -> None:
        self._push.cancel()
        super().on_close()

    def on_message(self, message: str | bytes) -> None:
        """Ignore the message: this socket only sends."""

    async def _follow(self) -> None:
        feed = self.settings["gpushare"].delegate(self.current_user).feed
        may_change, told = await _may_change(self), None
        with suppress(WebSocketClosedError):
            async for _ in feed.follow():
                if (viewer := _viewer(self, may_change)) != told:
                    told = viewer
                    await self.write_message(msgspec.json.encode(viewer))
                # awaiting the write until our buffer is empty bounds the buffer to one frame
                await self.write_message(feed.frame())


async def _may_change(handler: JupyterHandler) -> bool:
    user = handler.current_user
    allowed = handler.authorizer.is_authorized(handler, user, "write", AUTH_RESOURCE)
    return bool(await ensure_async(allowed))


def _viewer(handler: JupyterHandler, may_change: bool) -> Viewer:
    feed = handler.settings["gpushare"].delegate(handler.current_user).feed
    known: Welcome | None = feed.welcome
    return Viewer(
        user="" if known is None else known.user,
        is_administrator=known is not None and known.is_administrator,
        may_change=may_change,
        kernels=dict(processes(handler.kernel_manager)) if feed.sees_processes else {},
        sees_processes=feed.sees_processes,
    )


def _find(session: str, snapshot: Snapshot) -> SessionOnDevice:
    for view in sessions(snapshot):
        if view.id == session:
            return view
    raise RefusedRequest("unknown_session", f"The session {session} has just ended.")


def _check_id(session: str) -> None:
    """Refuse a malformed id, without repeating its text."""
    if not ID.fullmatch(session):
        raise RefusedRequest(
            "unknown_session", "A session's id is 1 to 64 letters, digits, - or _."
        )


def _policy(snapshot: Snapshot) -> PolicyState:
    lanes = {device.name: device.running_lanes for device in snapshot.devices}
    return PolicyState(snapshot.policy, snapshot.policies, lanes)


ROUTES: dict[str, type[web.RequestHandler]] = {
    "state": StateHandler,
    "sessions": SessionsHandler,
    "sessions/([^/]+)": SessionHandler,
    "sessions/([^/]+)/asks": AsksHandler,
    "viewer": ViewerHandler,
    "policy": PolicyHandler,
    "report": ReportHandler,
    "classes": ClassesHandler,
    "jobs": JobsHandler,
    "jobs/([^/]+)": JobHandler,
    "jobs/([^/]+)/log": JobLogHandler,
    "jobs/([^/]+)/asks": JobAsksHandler,
    r"openapi\.json": OpenAPIHandler,
    "events": EventsHandler,
}
NOWHERE = f"{NAMESPACE.partition('/')[0]}(?:/.*)?"
ROUTES_ARE = f"the routes are below {NAMESPACE}, and {NAMESPACE}/openapi.json describes them"


def add_to(web_app: web.Application, extension: GpuShareExtension) -> None:
    """Serve the routes below the server's base URL."""
    base = web_app.settings["base_url"]
    web_app.settings["gpushare"] = extension
    served = [(url_path_join(base, NAMESPACE, path), kind) for path, kind in ROUTES.items()]
    web_app.add_handlers(".*$", [*served, (url_path_join(base, NOWHERE), NowhereHandler)])
