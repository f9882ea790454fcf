"""``python -m jupyter_gpushare_server.hub_service``: one host's devices, for all users of a hub.

A service of JupyterHub. It starts the host's broker where none answers, and again when it has
ended, and shows the panel as a page, with the same routes below it as a Jupyter server has. Who may
come in is the hub's word: scopes of ours, `custom:gpushare:read` and `custom:gpushare:admin`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from jupyter_events import EventLogger
from jupyter_server.auth import Authorizer
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider, JupyterHubUser
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

import jupyter_gpushare
from jupyter_gpushare.errors import GpuShareError, InvalidValue

from .app import GpuShareExtension
from .handlers import AUTH_RESOURCE, add_to

STATIC = Path(jupyter_gpushare.__file__).parent / "static"
READ, ADMIN = "custom:gpushare:read", "custom:gpushare:admin"
LETS = {"read": {READ, ADMIN}, "execute": {READ, ADMIN}, "write": {ADMIN}}  # any scope of these
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


class ScopesAuthorizer(Authorizer):
    """Lets do what a scope of the user's token lets do. What has no scope, nobody does."""

    def is_authorized(self, handler: JupyterHandler, user: Any, action: str, resource: str) -> bool:
        assert isinstance(user, JupyterHubUser)  # our identity provider knows no others
        assert isinstance(self.identity_provider, JupyterHubIdentityProvider)
        check = self.identity_provider.hub_auth.check_scopes
        return bool(check(LETS[action], user.hub_user))


class PageHandler(JupyterHandler):
    """The panel."""

    auth_resource = AUTH_RESOURCE
    content_security_policy = PAGE_POLICY

    @web.authenticated
    @authorized
    async def get(self) -> None:
        xsrf = self.xsrf_token.decode()
        self.finish(PAGE.substitute(base_url=escape(self.base_url), xsrf=escape(xsrf)))


class MetricsHandler(JupyterHandler):
    """Figures for Prometheus, which comes with a token of a service of the hub."""

    auth_resource = AUTH_RESOURCE

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest())


class HubService:
    """What stands around the extension here, where no Jupyter server does."""

    def __init__(self) -> None:
        self.log = log
        self.io_loop = IOLoop.current()
        self.event_logger = EventLogger(handlers=[logging.StreamHandler()])
        self.extension = GpuShareExtension(log=log)

    async def run(self) -> None:
        """Serve until a signal ends it. The broker stays, and notices nothing. Raises InvalidValue,
        and OSError where it may not listen."""
        host, port = _address(os.environ.get("JUPYTERHUB_SERVICE_URL", ""))
        identity = JupyterHubIdentityProvider()
        self.extension.load(self)
        server = HTTPServer(self._application(identity), xheaders=True)
        server.listen(port, host)
        log.info("the service listens on %s:%d", host, port)
        await _signal(signal.SIGTERM, signal.SIGINT)
        server.stop()
        await self.extension.unload()

    def _application(self, identity: JupyterHubIdentityProvider) -> web.Application:
        base_url = identity.hub_auth.base_url
        application = web.Application(
            [
                (base_url, PageHandler),
                (f"{base_url}metrics", MetricsHandler),
                *((base_url.rstrip("/") + path, *rest) for path, *rest in identity.get_handlers()),
            ],
            base_url=base_url,
            static_path=os.fspath(STATIC),
            static_url_prefix=f"{base_url}static/",
            cookie_secret=secrets.token_bytes(32),
            identity_provider=identity,
            authorizer=ScopesAuthorizer(identity_provider=identity),
            allow_remote_access=True,  # the hub's proxy has looked at the name of the host
        )
        add_to(application, self.extension)
        return application


def _address(url: str) -> tuple[str, int]:
    """Host and port of the URL that the hub gives its services. Raises InvalidValue."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass  # a port that is none
    raise InvalidValue(
        f"JUPYTERHUB_SERVICE_URL is {url!r}, and should be like http://127.0.0.1:18090:"
        " JupyterHub sets it to the service's `url`"
    )


async def _signal(*numbers: int) -> None:
    """Wait for one of these."""
    came = asyncio.Event()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, came.set)
    await came.wait()


def main() -> int:
    """Run the service; the exit status."""
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(_serve())
    except (GpuShareError, OSError) as error:
        print(f"jupyter-gpushare-hub: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve() -> None:
    await HubService().run()


if __name__ == "__main__":
    sys.exit(main())
