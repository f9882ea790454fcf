"""Words that no person should ever read when something that they typed is refused."""

from __future__ import annotations

VALIDATORS_WORDS = (
    *("Expected `", "`$", "$.", "Errno", "Traceback", "_seconds value", "int value"),
    *("ValidationError", "msgspec", "not a message of protocol", "null"),
)


def is_one_plain_sentence(text: str) -> bool:
    words = text.strip()
    return bool(words) and "\n" not in words and not any(bad in words for bad in VALIDATORS_WORDS)
