"""Run by each Python that starts for `pytest --squeeze-to-floor`: iterations are squeezed as far as
possible wherever they may be squeezed, and activations of any size leave memory."""

from __future__ import annotations

from typing import Any

import wrapt

FLOOR = 1  # bytes


def force(module: Any) -> None:
    """Change the class that squeezes: what wants `auto` gets the floor, also where that brings
    little."""
    squeeze = module.Squeeze
    squeeze.floor, squeeze.is_futile = 0, False
    original, want = squeeze.__init__, squeeze.want

    def begin(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.want("auto")

    squeeze.__init__ = begin
    squeeze.want = lambda self, wanted: want(self, FLOOR if wanted == "auto" else wanted)


def lower(name: str) -> Any:
    """Return what sets a module's least size of storages that take part to one byte."""

    def lower(module: Any) -> None:
        assert getattr(module, name) > 1
        setattr(module, name, 1)

    return lower


PACKAGE = "jupyter_gpushare.client.torch.squeeze"
wrapt.register_post_import_hook(force, f"{PACKAGE}.squeeze")
wrapt.register_post_import_hook(lower("LEAST"), f"{PACKAGE}.hooks")
wrapt.register_post_import_hook(lower("TINY"), f"{PACKAGE}.recompute.recorder")
