"""``python -m jupyter_gpushare.broker``: a broker in the foreground, set up by the environment."""

from __future__ import annotations

import logging
import sys

from ..errors import GpuShareError
from ..settings import Settings, load


def main(settings: Settings | None = None) -> int:
    """Run a broker until it ends. Returns the exit status."""
    from .transport import server
    from .transport.log_limit import Throttle

    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Throttle())
    try:
        server.run(settings or load())
    except GpuShareError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
