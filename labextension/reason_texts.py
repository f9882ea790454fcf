"""Write src/state/reason_texts.ts, the panel's table of reasons, from the one in reasons.py.

Run it after a change there; a test compares the file with what this would write. Each text is an
argument of `trans.__`, where tools that collect texts for translation find it.
"""

from __future__ import annotations

from pathlib import Path

from jupyter_gpushare.reasons import TEXTS

FILE = Path(__file__).resolve().parent / "src" / "state" / "reason_texts.ts"
HEAD = """\
// Written by reason_texts.py from jupyter_gpushare/reasons.py; change it there.

import { ITranslate } from './format';

/** The text of each code. */
export function texts(trans: ITranslate): Record<string, string> {
  return {
"""
TAIL = """\
  };
}
"""


def text() -> str:
    rows = (f"    {code}: trans.__({quoted(said)})" for code, said in TEXTS.items())
    return HEAD + ",\n".join(rows) + "\n" + TAIL


def quoted(said: str) -> str:
    assert not {"'", "\\", "\n"} & {*said}
    return f"'{said}'"


if __name__ == "__main__":
    FILE.write_text(text())
