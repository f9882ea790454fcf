"""What all programs of these tests have: ``PROGRAM FUNCTION ARGUMENTS``; the last line is JSON."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Mapping
from typing import Any

MIB = 1 << 20


def say(line: str) -> None:
    """Then wait until the test lets this process go on."""
    print(line, flush=True)
    sys.stdin.readline()


def main(functions: Mapping[str, Any]) -> None:
    faulthandler.enable()
    answer = functions[sys.argv[1]](*json.loads(sys.argv[2]))
    print("\n" + json.dumps(answer), flush=True)
