"""``jupyter gpushare``: one file per command, and the table of them in ``parser``.

Exit status: 0 success, 1 a sentence on standard error tells the problem, 2 a wrong command line.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from ...errors import GpuShareError
from .output import tell
from .parser import make_parser
from .submit import divided

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    _make_writable()
    words, options = divided([*(sys.argv[1:] if argv is None else argv)])
    arguments, rest = make_parser().parse_known_args(words)
    arguments.words, arguments.options = words, options
    if rest:
        arguments.parser.refuse(rest[0])
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except GpuShareError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        return 130  # the exit status that a shell reports for an interrupted program
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no complaint at exit
        if error.errno == errno.ENOSPC:
            tell(f"the output is incomplete: {error.strerror}")
        return 1  # the reader, such as `| head`, has enough; rich exits with 1 here too


def _make_writable() -> None:
    """Let output be lost that nothing takes, after `>&-`, and let `?` stand for characters that
    the terminal lacks."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
