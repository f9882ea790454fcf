"""``python -m jupyter_gpushare_server.hub_service``: one host's devices, for all users of a hub.

A service of JupyterHub. It starts the host's broker if none answers, and again when it has ended.
It shows the panel as a page, with the same routes below it as a Jupyter server. Users need the
scope `custom:gpushare:read`. The broker decides by their own tokens what they may do;
`custom:gpushare:admin` makes them its administrators.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jupyter_events import EventLogger
from jupyter_server.auth import Authorizer
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyterhub.services.auth import HubOAuth
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

import jupyter_gpushare
from jupyter_gpushare.broker.access.jupyterhub import ADMINISTRATOR
from jupyter_gpushare.errors import GpuShareError, InvalidValue, cause
from jupyter_gpushare.settings import PREFIX
from jupyter_gpushare.wire.launch import ensure
from jupyter_gpushare.wire.messages import Error

from .app import Delegate, GpuShareExtension
from .feed import LOOKING, Feed, State
from .handlers import AUTH_RESOURCE, add_to
from .jobs import Jobs

STATIC = Path(jupyter_gpushare.__file__).parent / "static"
READ = "custom:gpushare:read"  # scope
MAY_COME = {READ, ADMINISTRATOR}  # users need one of these
UNSEEN_SECONDS = 60.0  # a visitor who makes no request for this time is forgotten
MOST_TOKENS = 8  # of a user: each costs a thread here, and a connection to the broker
REQUEST_SECONDS = 30.0  # for the head of a request, and then for its body
MOST_BODY_BYTES = 1 << 16  # bodies are small
PAGE_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>GPU sharing</title>
<link rel="stylesheet" href="${base_url}static/page.css">
<main id="jupyter-gpushare-page" data-base-url="$base_url" data-xsrf="$xsrf"></main>
<script type="module" src="${base_url}static/page.js"></script>
</html>
""")

log = logging.getLogger("jupyter_gpushare.hub_service")
pages_log = log.getChild("pages")
pages_log.setLevel(logging.ERROR)  # the service's own connection logs for all


class VisitorDelegate(Delegate):
    """Speaks for the user whose token it has."""

    def __init__(self, user: str, token: str, is_person: bool, extension: HubExtension) -> None:
        """A service of the hub is not a person, and has no jobs."""
        self.user = user
        self.settings, self.audit = extension.settings, extension.audit
        self._hub_auth = extension.hub_auth
        self.proof = lambda hello, _: msgspec.structs.replace(hello, token=token)
        self.feed = Feed(
            self.settings,
            IOLoop.current(),
            pages_log,
            self._observe,
            self.proof,
            ends_refused=True,
        )
        self.feed.start()
        if is_person and self.settings.cluster_socket:
            here = msgspec.structs.replace(self.settings, cluster_url="")  # only for servers
            self.jobs = Jobs(here, speak_for=user)
        self.used = time.monotonic()

    async def know(self) -> None:
        """Wait until the broker has answered, or is known to be away."""
        self.used = time.monotonic()
        async for state in self.feed.follow():
            if state is not LOOKING:
                return

    def is_idle(self, now: float) -> bool:
        return not self.feed.is_followed and now - self.used > UNSEEN_SECONDS

    def _observe(self, state: State) -> None:
        """Drop cached answers of the hub after a refusal: a reload of the page has to log in."""
        if self.feed.is_refused:
            self._hub_auth.cache.clear()


class HubExtension(GpuShareExtension):
    """The extension in this service: it keeps a broker running, and speaks for each visitor."""

    def load(self, server: HubService) -> None:
        super().load(server)
        self.hub_auth = server.hub_auth
        self._delegates: dict[str, VisitorDelegate] = {}  # by token
        self._leaving: set[asyncio.Task[None]] = set()
        self._work = [asyncio.create_task(work()) for work in (self._keep_broker, self._tidy)]

    async def unload(self) -> None:
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await super().unload()

    def delegate(self, user: Any) -> Delegate:
        delegate: VisitorDelegate = user.delegate
        return delegate

    async def admit(self, user: str, token: str, is_person: bool) -> VisitorDelegate:
        """Return a delegate of this token, once it has a state to show."""
        delegate = self._delegates.get(token)
        if delegate is None or delegate.feed.is_refused:  # the broker may accept it now
            self._delegates.pop(token, None)
            self._make_room(user)
            delegate = self._delegates[token] = VisitorDelegate(user, token, is_person, self)
        await delegate.know()
        return delegate

    def _make_room(self, user: str) -> None:
        """Drop the least recently used token of this user, if there are too many.

        Raises HTTPError if all of them are in use.
        """
        own = {token: one for token, one in self._delegates.items() if one.user == user}
        if len(own) < MOST_TOKENS:
            return
        if not (unseen := [token for token, one in own.items() if not one.feed.is_followed]):
            raise web.HTTPError(429, f"{MOST_TOKENS} tokens of yours look already: end one first")
        oldest = min(unseen, key=lambda token: own[token].used)
        leaves = asyncio.create_task(self._delegates.pop(oldest).feed.close())
        self._leaving.add(leaves)
        leaves.add_done_callback(self._leaving.discard)

    def _as_found(self, server: HubService, socket: str | None) -> dict[str, str]:
        """Return settings for a broker that serves the users of this hub with the scope."""
        return {PREFIX + "HUB_API_URL": server.hub_auth.api_url, PREFIX + "HUB_SCOPE": READ}

    def _own_environment(self, server: HubService) -> dict[str, str]:
        """Issue no one-time tokens, since this service has no kernels."""
        return {}

    async def _keep_broker(self) -> None:
        async for state in self.feed.follow():
            if isinstance(state, Error):
                try:
                    await asyncio.to_thread(ensure, self.settings)
                except GpuShareError as error:
                    log.error("no broker: %s", error)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(UNSEEN_SECONDS)
            now = time.monotonic()
            idle = [token for token, one in self._delegates.items() if one.is_idle(now)]
            for delegate in [self._delegates.pop(token) for token in idle]:
                await delegate.feed.close()


class Visitors(JupyterHubIdentityProvider):  # type: ignore[misc]  # untyped for us
    """Identifies users of the hub, and keeps the token of each user with access."""

    def __init__(self, extension: HubExtension, **traits: Any) -> None:
        super().__init__(**traits)
        self._extension = extension

    async def get_user(self, handler: JupyterHandler) -> Any:
        user = await super().get_user(handler)
        if user is not None and may_come(self.hub_auth, user):
            token = proven_token(self.hub_auth, handler)
            is_person = user.hub_user.get("kind") == "user"
            user.delegate = await self._extension.admit(user.username, token, is_person)
        return user


def proven_token(hub_auth: HubOAuth, handler: web.RequestHandler) -> str:
    """Return the token that identified the user of a request. If the token in the header is wrong,
    the cookie has identified the user."""
    by_header = getattr(handler, "_token_authenticated", False)
    token: str = (
        hub_auth.get_token(handler, in_cookie=False)
        if by_header
        else hub_auth._get_token_cookie(handler)
    )
    return token


class ScopeAuthorizer(Authorizer):
    """Admits each user with one of our scopes, to all routes."""

    def is_authorized(self, handler: JupyterHandler, user: Any, action: str, resource: str) -> bool:
        """Return True, or raise HTTPError, which names the missing scope."""
        assert isinstance(self.identity_provider, Visitors)
        if not may_come(self.identity_provider.hub_auth, user):
            raise web.HTTPError(403, f"You lack the scope {READ}, which is needed here.")
        return True


def may_come(hub_auth: HubOAuth, user: Any) -> bool:
    return bool(hub_auth.check_scopes(MAY_COME, user.hub_user))


class Page(JupyterHandler):
    """The base of the pages. There are no templates, so errors are plain text."""

    auth_resource = AUTH_RESOURCE

    def write_error(self, status_code: int, **about: Any) -> None:
        error = about.get("exc_info", (None, None))[1]
        said = getattr(error, "log_message", None)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(said % error.args if said else self._reason)


class PageHandler(Page):
    """Serves the panel."""

    content_security_policy = PAGE_POLICY

    @web.authenticated
    @authorized
    async def get(self) -> None:
        xsrf = self.xsrf_token.decode()
        self.finish(PAGE.substitute(base_url=escape(self.base_url), xsrf=escape(xsrf)))


class MetricsHandler(Page):
    """Serves metrics to Prometheus, which shows the token of a service of the hub."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest())


class HubService:
    """The environment of the extension, in place of a Jupyter server. Raises InvalidValue."""

    def __init__(self) -> None:
        self.log = log
        self.io_loop = IOLoop.current()
        self.event_logger = EventLogger(handlers=[logging.StreamHandler()])
        self.kernel_manager = AsyncMappingKernelManager()  # type: ignore[no-untyped-call]  # of none
        self.address = _address(os.environ.get("JUPYTERHUB_SERVICE_URL", ""))
        self.hub_auth = HubOAuth()
        self.extension = HubExtension(log=log)

    async def run(self) -> None:
        """Serve until a signal ends the service. The broker stays. Raises InvalidValue, and OSError
        if the service cannot listen."""
        host, port = self.address
        self.extension.load(self)
        server = bounded_server(self._application())
        server.listen(port, host)
        log.info("the service listens on %s:%d", host, port)
        await _signal(signal.SIGTERM, signal.SIGINT)
        server.stop()
        await self.extension.unload()

    def _application(self) -> web.Application:
        base_url = self.hub_auth.base_url
        visitors = Visitors(self.extension, hub_auth=self.hub_auth)
        application = web.Application(
            [
                (base_url, PageHandler),
                (f"{base_url}metrics", MetricsHandler),
                *((base_url.rstrip("/") + path, *rest) for path, *rest in visitors.get_handlers()),
            ],
            base_url=base_url,
            static_path=os.fspath(STATIC),
            static_url_prefix=f"{base_url}static/",
            cookie_secret=secrets.token_bytes(32),
            identity_provider=visitors,
            authorizer=ScopeAuthorizer(identity_provider=visitors),
            kernel_manager=self.kernel_manager,
            allow_remote_access=True,  # the hub's proxy has checked the host name
        )
        add_to(application, self.extension)
        return application


def bounded_server(application: web.Application, seconds: float = REQUEST_SECONDS) -> HTTPServer:
    """Return a server that limits the time and size of requests, since it reads them before clients
    are authenticated."""
    return HTTPServer(
        application,
        xheaders=True,
        max_body_size=MOST_BODY_BYTES,
        max_buffer_size=2 * MOST_BODY_BYTES,
        idle_connection_timeout=seconds,
        body_timeout=seconds,
    )


def _address(url: str) -> tuple[str, int]:
    """Return host and port of the URL that the hub gives its services. Raises InvalidValue."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass  # the URL has an invalid port
    raise InvalidValue(
        f"JUPYTERHUB_SERVICE_URL is {url!r}, and should be like http://127.0.0.1:18090:"
        " JupyterHub sets it to the service's `url`"
    )


async def _signal(*numbers: int) -> None:
    """Wait for one of these signals."""
    came = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, came.set)
    await came.wait()


def main() -> int:
    """Run the service; return the exit status."""
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(_serve())
    except (GpuShareError, OSError) as error:
        print(f"jupyter-gpushare-hub: {cause(error)}", file=sys.stderr)
        return 1
    return 0


async def _serve() -> None:
    await HubService().run()


if __name__ == "__main__":
    sys.exit(main())
