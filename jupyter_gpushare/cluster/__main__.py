"""``python -m jupyter_gpushare.cluster``: the service of the user's jobs, configured by the
environment."""

from __future__ import annotations

import sys

from ..errors import GpuShareError
from ..settings import Settings, load


def main(settings: Settings | None = None) -> int:
    """Run it until it ends. Returns the exit status."""
    from . import program

    try:
        program.run(settings or load())
    except GpuShareError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
