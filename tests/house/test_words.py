"""Pages, comments, sentences of the code, identifiers and names of tests use the words of
docs/explanation/glossary.md, and plain English."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..violations import ROOT, expect_none, named

TOP = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
# Those of docs/reference hold the sentences of the code that its users read.
PAGES = TOP + sorted((ROOT / "docs").rglob("*.md"))
# Folders whose docstrings, comments and names of tests are held.
ROOMS = (
    *("benchmarks", "csrc", "deploy", "docs", "examples", "jupyter_gpushare", "kernel_ext"),
    *("labextension/src", "labextension/style", "labextension/test", "server_ext", "tests"),
)
NOT_OURS = {"third_party", "labextension", "static"}  # in them; the last two are built
# Those of the product, whose sentences and identifiers are held.
PRODUCT = ("csrc", "jupyter_gpushare", "kernel_ext", "labextension/src", "server_ext")

# what is banned -> what to write instead
BANNED = {
    r"change-?overs?": "context switch",
    r"hand(s|ed|ing)? (it |the turn |a turn )?on": "direct handoff",
    r"letters?|mailbox(es)?": "direct handoff, handoff slot",
    r"recall(s|ed)?": "preemption request",
    r"overtak(e|es|en|ing)|overtook": "backfill",
    r"patience": "aging",
    r"dismiss(es|ed)?": "page out",
    r"mak(e|es|ing) (way|room)": "evict, page out",
    r"(on )?probation|trials?|sums? of speeds": "concurrency tuner, probe, weighted speedup",
    r"foreign": "unmanaged",
    r"held back|hold(s|ing)? back": "throttled by a rule",
    r"governor|caretaker|ladders?": "rule engine, idle culling, escalation step",
    r"deeds?": "permission",
    r"vouch(es|ed)?|guess(es)?": "issue a one-time token, failed attempt",
    r"crowds?": "rate limit",
    r"the roll": "recovery journal",
    r"audience": "publisher, subscribers",
    r"whoever|whomever": "a user that, a session that",
    r"so (many|much|long|often)": "the number itself",
    r"as of": "in, from",
    r"he|him|his|himself": "they, their",
}
BANNED_PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
BANNED_IN_CODE = re.compile(r"\b(nobody|somebody)\b", re.IGNORECASE)  # no session, a user
# `Who waits is told`, at the beginning of a clause: write `a session that waits`.
BEGINS_CLAUSE = r"(?:^|[.:;|(] |\b(?:also|ask|of|for|than|to|with|and|but|beside|by) )"
WHO_AS_SUBJECT = re.compile(
    BEGINS_CLAUSE + r"who \w+[^?]*?(?=[.;:|]|$)", re.IGNORECASE | re.MULTILINE
)
# What a sentence of the code may say -> why
SENTENCES_ALLOWED = {"1 to 64 letters, digits": "characters, and no handoff"}
# Identifiers of the product -> why they have a banned word
NAMES_ALLOWED = {
    "kMostLetterBytes": "bytes of a message in a handoff slot",
    "recall_past": "a past that is remembered, and no preemption request",
}
NO_PROSE = re.compile(
    r"```.*?```|<!--.*?-->|`[^`\n]+`|\]\([^)]*\)|https?://\S+", re.DOTALL
)  # code, comments, targets of links


class Remark(NamedTuple):
    """A docstring, a comment or the name of a test, on one line."""

    line: int
    text: str


def prose(text: str) -> str:
    """The text with as many lines, and without what is no sentence."""
    return NO_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)


def line_of(found: re.Match[str]) -> int:
    return found.string.count("\n", 0, found.start()) + 1


def found_in(text: str, *more: re.Pattern[str]) -> Iterator[Remark]:
    sentences = prose(text)
    for pattern in (BANNED_PATTERN, WHO_AS_SUBJECT, *more):
        for found in pattern.finditer(sentences):
            yield Remark(line_of(found), found[0].strip())


def remarks_in_python(source: str) -> Iterator[Remark]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield Remark(node.lineno, str(node.value.value))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield Remark(node.lineno, node.name[5:].replace("_", " "))
    yield from comments_in_python(source)


def comments_in_python(source: str) -> Iterator[Remark]:
    """Comments; those in a column of adjacent lines are one."""
    begins, end, text = 0, (0, 0), ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start != (end[0] + 1, end[1]):
            yield Remark(begins, text)
            begins, text = token.start[0], ""
        end, text = token.start, f"{text} {token.string.lstrip('#: ')}"
    yield Remark(begins, text)


# Strings come first, since two slashes in one begin no comment.
IN_C = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)"""
    r"|(?P<lines>//[^\n]*(?:\n[ \t]*//[^\n]*)*)|(?P<block>/\*.*?\*/)",
    re.DOTALL,
)
TITLE = re.compile(
    r"""\b(?:TEST_CASE_FIXTURE\(\s*\w+,|(?:TEST_CASE|test|it|describe)\()\s*(["'`])(.*?)\1""",
    re.DOTALL,
)


def remarks_in_c(source: str) -> Iterator[Remark]:
    """Those of C++, TypeScript and CSS."""
    for found in IN_C.finditer(source):
        if comment := found["lines"] or found["block"]:
            yield Remark(line_of(found), re.sub(r"//|/?\*+/?", "", comment))
    for found in TITLE.finditer(source):
        yield Remark(line_of(found), found[2])


def sentences_in_python(source: str) -> Iterator[Remark]:
    """Strings with a space, but docstrings."""
    tree = ast.parse(source)
    parts: set[ast.AST] = set()  # of f-strings, and docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            yield Remark(node.lineno, "".join(map(constant, node.values)))
        elif isinstance(node, ast.Expr):
            parts.add(node.value)
        elif isinstance(node, ast.Constant) and node not in parts and " " in constant(node):
            yield Remark(node.lineno, constant(node))


def constant(node: ast.expr) -> str:
    """The string, or what stands for a value that is filled in."""
    if not isinstance(node, ast.Constant):
        return "{}"
    return node.value if isinstance(node.value, str) else ""


def sentences_in_typescript(source: str) -> Iterator[Remark]:
    for found in IN_C.finditer(source):
        if " " in (found["string"] or ""):
            yield Remark(line_of(found), re.sub(r"\$\{[^}]*\}", "{}", found["string"][1:-1]))


def names_in_python(source: str) -> Iterator[Remark]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield Remark(token.start[0], token.string)


def names_in_c(source: str) -> Iterator[Remark]:
    code = IN_C.sub(lambda found: "\n" * found[0].count("\n"), source)
    for found in re.finditer(r"\b[A-Za-z_]\w*", code):
        yield Remark(line_of(found), found[0])


HASHES = re.compile(r"(?:^|(?<=\s))#[^\n]*(?:\n[ \t]*#[^\n]*)*", re.MULTILINE)


def remarks_in_settings(source: str) -> Iterator[Remark]:
    """Those of files in which a hash begins a comment."""
    for found in HASHES.finditer(source):
        yield Remark(line_of(found), found[0].replace("#", ""))


REMARKS = {
    **dict.fromkeys((".py", ".pyi"), remarks_in_python),
    **dict.fromkeys((".h", ".cpp", ".ts", ".css"), remarks_in_c),
    **dict.fromkeys((".yaml", ".toml", ".service", ".sh", "Containerfile"), remarks_in_settings),
}

SENTENCES = {".py": sentences_in_python, ".ts": sentences_in_typescript}
NAMES = {
    **dict.fromkeys((".py", ".pyi"), names_in_python),
    **dict.fromkeys((".h", ".cpp", ".ts"), names_in_c),
}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of an identifier


def kind_of(path: Path) -> str:
    return path.suffix or path.name


def found_in_page(path: Path) -> Iterator[str]:
    for found in found_in(path.read_text()):
        yield f"{named(path)}:{found.line}: {found.text}"


def found_in_code(path: Path) -> Iterator[str]:
    return found_in_remarks(path, REMARKS[kind_of(path)](path.read_text()))


def found_in_sentences(path: Path) -> Iterator[str]:
    return found_in_remarks(path, SENTENCES[kind_of(path)](path.read_text()), SENTENCES_ALLOWED)


def found_in_remarks(
    path: Path, remarks: Iterable[Remark], allowed: Iterable[str] = ()
) -> Iterator[str]:
    for remark in remarks:
        text = " ".join(remark.text.split())
        for words in allowed:
            text = text.replace(words, "")
        for found in found_in(text, BANNED_IN_CODE):
            yield f"{named(path)}:{remark.line}: {found.text}"


def found_in_names(path: Path) -> Iterator[str]:
    """Identifiers, and the name of the file, that contain a banned word."""
    for name in (Remark(0, path.stem), *NAMES[kind_of(path)](path.read_text())):
        if name.text not in NAMES_ALLOWED and any(map(is_banned, WORD.findall(name.text))):
            yield f"{named(path)}:{name.line}: {name.text}"


def is_banned(word: str) -> bool:
    return bool(BANNED_PATTERN.fullmatch(word) or BANNED_IN_CODE.fullmatch(word))


def files_of(rooms: Iterable[str], kinds: Container[str] = REMARKS) -> list[Path]:
    found: list[Path] = []
    for room in rooms:
        paths = [path for path in sorted((ROOT / room).rglob("*")) if kind_of(path) in kinds]
        ours = [path for path in paths if not NOT_OURS & {*path.relative_to(ROOT / room).parts}]
        assert ours or (room, kinds) == ("csrc", SENTENCES), f"{room} has no files"
        found += ours
    return found


def test_pages_use_the_standard_terms() -> None:
    expect_none(found for page in PAGES for found in found_in_page(page))


def test_comments_and_names_of_tests_use_the_standard_terms() -> None:
    expect_none(found for path in files_of(ROOMS) for found in found_in_code(path))


def test_sentences_of_the_code_use_the_standard_terms() -> None:
    files = files_of(PRODUCT, SENTENCES)
    expect_none(found for path in files for found in found_in_sentences(path))


def test_identifiers_use_the_standard_terms() -> None:
    expect_none(found for path in files_of(PRODUCT, NAMES) for found in found_in_names(path))


def test_what_is_allowed_is_there() -> None:
    text = "\n".join(path.read_text() for path in files_of(PRODUCT, NAMES))
    expect_none(one for one in (*SENTENCES_ALLOWED, *NAMES_ALLOWED) if one not in text)


# Contents of files, each with one banned word, and with none.
BANNED_IN: dict[Callable[[Path], Iterator[str]], list[tuple[str, str]]] = {
    found_in_page: [
        ("word.md", "The change-over takes 50 us."),
        ("clause.md", "It is told; who has waited\nlonger comes first."),
        ("cell.md", "| who looks | all |"),
        ("object.md", "the device of who asked"),
    ],
    found_in_code: [
        ("comment.py", "a = 1\n# It is told; a session who waits\n# is held\n# back.\n"),
        ("names.py", "def test_who_waits_is_told() -> None:\n    pass\n"),
        ("field.py", 'class A:\n    a: int\n    """Whoever has the turn."""\n'),
        ("line.cpp", 'auto url = "http://host";  // of nobody\n'),
        ("lines.h", "int a;\n// A session is held\n// back.\nint b;\n"),
        ("block.ts", "/**\n * A large letter.\n */\nlet a = `//`;\n"),
        ("title.ts", "it('is for somebody', () => {});\n"),
        ("lines.service", "A=1\n# It is held\n# back.\n"),
    ],
    found_in_sentences: [
        ("joined.py", 'raise Error(f"{a} is held " f"back by {b}")\n'),
        ("inside.py", "a = f\"{b or 'nobody waits'}\"\n"),
        ("subject.py", 'a = "waits; who comes is told"\n'),
        ("template.ts", "const a = `held ${at} back, or held back`;\n"),
    ],
    found_in_names: [
        ("constant.py", "NOBODY = 1\n"),
        ("argument.pyi", "def page_out(dismissed: int) -> None: ...\n"),
        ("capitals.h", "constexpr int kMostLetters = 2;\n"),
        ("class.cpp", "class HTTPMailbox;\n"),
        ("camel.ts", "const theAudience = [];\n"),
        ("rule_ladder.ts", "const a = 1;\n"),
    ],
}
OTHERS_IN: dict[Callable[[Path], Iterator[str]], list[tuple[str, str]]] = {
    found_in_page: [
        ("user.md", "A user who waits is told."),
        ("code.md", "The setting `aging_seconds` bounds backfill."),
        ("block.md", "```\nWho waits: as of now\n```"),
        ("link.md", "[Scheduling](how-to.md#change-over)"),
        ("question.md", "Who may change it?"),
    ],
    found_in_code: [
        ("string.py", 'a = "who waits"  # a sentence of the user\n'),
        ("identifier.py", "# `aging_seconds` bounds backfill.\npatience = 1\n"),
        ("lines.py", "# Sessions\n# who wait are told.\n"),
        ("string.cpp", 'const char* a = "// nobody";  // a string\n'),
    ],
    found_in_sentences: [
        ("docstring.py", '"""It waits for nobody."""\n'),
        ("key.py", 'a = {"foreign": 1, "a class": nobody}\n'),
        ("field.py", 'a = f"a class of {who} has {foreign}"\n'),
        ("allowed.py", 'a = "an id is 1 to 64 letters, digits or _"\n'),
        ("field.ts", "const a = `${foreign} is in use`;\n"),
    ],
    found_in_names: [
        ("string.py", 'a = "nobody"  # foreign\n'),
        ("allowed.py", "kMostLetterBytes = 1\n"),
        ("longer.py", "theirs = trialled = 1\n"),
    ],
}


def test_banned_words_are_found_where_they_are_and_no_others(tmp_path: Path) -> None:
    wrong = []
    for samples, count in ((BANNED_IN, 1), (OTHERS_IN, 0)):
        for finds, files in samples.items():
            for name, text in files:
                (tmp_path / name).write_text(text)
                if len(found := [*finds(tmp_path / name)]) != count:
                    wrong.append(f"{finds.__name__}, {name}, {text!r}: {found}")
    expect_none(wrong)
