"""``python -m tests.fuzz TARGET [libFuzzer's options] [folders or files]``: fuzz one target.

Without a folder it begins with the corpus and keeps in build/fuzz what it finds. With files it only
runs these. CONTRIBUTING.md says more.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

FOUND = Path(__file__).parents[2] / "build" / "fuzz"
MOST_SECONDS = 20  # of one input: then it hangs

with atheris.instrument_imports(include=["jupyter_gpushare", "tomllib", "tests.fuzz.numbers"]):
    from .targets import CORPUS, TARGETS


def main(name: str, *options: str) -> None:
    target = TARGETS[name]
    given = list(options)
    if all(option.startswith("-") for option in given):
        (own := FOUND / name).mkdir(parents=True, exist_ok=True)
        given += [str(own), str(CORPUS / name)]
        given.insert(0, f"-artifact_prefix={own}-")
    given += [f"-timeout={MOST_SECONDS}", *target.options]
    more = {"custom_mutator": target.mutate} if target.mutate else {}
    atheris.Setup([name, *given], target.fuzz, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    logging.disable()
    main(*sys.argv[1:])
