"""The Jupyter server extension: finds or starts the broker, and shows it to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "jupyter_gpushare_server"}]


def _load_jupyter_server_extension(server_app: ServerApp) -> None:
    from jupyter_gpushare.errors import InvalidValue

    from .app import GpuShareExtension
    from .handlers import add_to

    extension = GpuShareExtension(parent=server_app)
    try:
        extension.load(server_app)
    except InvalidValue as error:
        server_app.log.error("jupyter_gpushare: sharing is off: %s", error)
    else:
        add_to(server_app.web_app, extension)


async def _unload_jupyter_server_extension(server_app: ServerApp) -> None:
    """Unload the extension. A Jupyter server never calls this; code that loads extensions by hand
    may."""
    extension = server_app.web_app.settings.get("gpushare")
    if extension is not None:
        await extension.unload()
