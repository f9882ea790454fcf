"""The fuzz targets: a row for each part that reads text from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import documents, frames, numbers
from .drawing import Mutator
from .stories import conversation, sockets, story

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"


class Target(NamedTuple):
    """`fuzz` takes any bytes, and raises only for a defect. The corpus has the name of the
    target."""

    fuzz: Callable[[bytes], None]
    options: tuple[str, ...] = ()
    mutate: Mutator | None = None


JSON = (f"-dict={HERE / 'json.dict'}",)
STORIES = ("-max_len=6000", "-len_control=0")

TARGETS = {
    "frames": Target(frames.fuzz, JSON, frames.mutated),
    "rulebook": Target(documents.fuzz_rulebook, (f"-dict={HERE / 'toml.dict'}",)),
    "record": Target(documents.fuzz_record, JSON, documents.mutated_record),
    "answers": Target(documents.fuzz_answers, JSON, documents.mutated_answer),
    "core": Target(numbers.fuzz, ("-max_len=400", "-len_control=0")),
    "connection": Target(sockets.fuzz, STORIES, story.mutated),
    "service": Target(conversation.fuzz, STORIES, story.mutated),
}
