"""``python -m tests.models.fuzz TARGET [libFuzzer's options] [folders or files]``: fuzz one target.

Without a folder it begins with the corpus and keeps its findings in build/fuzz. Given files, it
only runs these. CONTRIBUTING.md says more.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

FOUND = Path(__file__).parents[3] / "build" / "fuzz"
MOST_SECONDS = 60  # for one input: after that it hangs

INSTRUMENTED = ["jupyter_gpushare", "tomllib", "tests.models.fuzz.numbers"]

with atheris.instrument_imports(include=INSTRUMENTED):
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
    # the command by which libFuzzer starts more of us, to merge
    again = f"{sys.executable} -m tests.models.fuzz {name}"
    atheris.Setup([again, *given], target.fuzz, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    logging.disable()
    main(*sys.argv[1:])
