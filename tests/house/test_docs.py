"""The pages are true: the reference is that of the code, and links and commands lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from jupyter_gpushare.client.notebook.waiting_line import sentence
from jupyter_gpushare.reasons import TEXTS, Reason
from jupyter_gpushare.tools.cli.parser import COMMANDS
from jupyter_gpushare.wire.messages import Wait

from ..violations import ROOT, expect_none, named

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGE_OF_WAITS = (DOCS / "how-to" / "my-cell-waits.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
ALL = "\n".join(page.read_text() for page in PAGES)
FOLDERS = ("jupyter_gpushare", "server_ext", "kernel_ext", "csrc", "benchmarks", "tests", "deploy")
CODE = ("*.py", "*.pyi", "*.h", "*.cpp", "*.ts", "*.yaml", "*.sh", "*.toml", "*.csv", "*.json")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


# --- reference ------------------------------------------------------------------------------------


def test_the_reference_is_what_make_reference_writes() -> None:
    written = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    there = {page.stem: page.read_text() for page in (DOCS / "reference").glob("*.md")}
    assert there.keys() == written.keys()
    expect_none(f"docs/reference/{name}.md" for name in there if there[name] != written[name])


def test_the_stubs_are_what_make_reference_writes() -> None:
    written = runpy.run_path(str(DOCS / "stubs.py"))["stubs"]()
    folder = ROOT / "jupyter_gpushare"
    expect_none(name for name in written if (folder / f"{name}.pyi").read_text() != written[name])


# --- links ----------------------------------------------------------------------------------------


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(((?!https?:)[^)\s]+)\)", without_code(page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return an anchor as the site and the repository's host make it from a heading."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_each_link_leads_somewhere() -> None:
    expect_none(
        f"{named(page)}: {link}"
        for page in PAGES
        for link in links(page)
        if not leads_somewhere(page, *link.partition("#")[::2])
    )


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_a_page_of_the_site_links_to_nothing_outside_of_it() -> None:
    expect_none(
        f"{named(page)}: {link}"
        for page in DOCS.rglob("*.md")
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    )


def test_each_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


# --- commands and names ---------------------------------------------------------------------------


def test_each_command_that_a_page_names_exists() -> None:
    expect_none(sorted({*re.findall(r"jupyter gpushare ([a-z]+)", ALL)} - COMMANDS.keys()))


def test_each_target_that_a_page_names_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    expect_none(sorted({*re.findall(r"`make ([a-z-]+)`", ALL)} - {*targets}))


def test_each_file_that_a_page_names_exists() -> None:
    roots = (ROOT, ROOT / "csrc", ROOT / "jupyter_gpushare")
    paths = sorted({*re.findall(r"`((?!build/)(?:\w+/)+[\w./-]*\w)`", ALL)})
    expect_none(path for path in paths if not any((root / path).exists() for root in roots))


def test_the_line_that_the_page_of_waits_shows_is_said() -> None:
    why = [Reason("waits_for", other="c")]
    wait = Wait(1, 2, 3.0, "", "cnn.ipynb", 12.0, why, {"c": "cnn.ipynb"}).in_words()
    assert sentence(wait) in " ".join(re.findall(r"^> (.*)$", PAGE_OF_WAITS, re.MULTILINE))


def test_each_reason_that_the_page_of_waits_explains_is_said() -> None:
    texts = "\n".join(TEXTS.values())
    cells = re.findall(r"^\| (`.*?) \|", PAGE_OF_WAITS, re.MULTILINE)  # the first ones of its table
    expect_none(said for cell in cells for said in cell.split("`")[1::2] if said not in texts)


# Reasons of notebooks that do not wait for a turn, and parts that need no explanation.
OF_NO_WAIT = {
    *("idle", "needs_no_turn", "did_not_fit", "overdue", "asked_to_yield", "yields_to_others"),
    *("runs", "runs_beside", "runs_with_whole_device", "runs_with_whole_devices"),
    *("asked_to_page_out", "asked_to_page_out_for", "asked_to_page_out_for_programs"),
    *("paged_out", "paged_out_for", "paged_out_for_programs", "squeezed", "squeezed_for"),
    *("ask_contact", "ask_operator", "waits", "is_next", "used_by_programs"),
    *("throttled_on_device", "comes_back"),
}


def test_the_page_of_waits_explains_each_reason_of_a_wait() -> None:
    rows = re.findall(r"^\| .*`.* \|$", PAGE_OF_WAITS, re.MULTILINE)
    told = [words for row in rows for words in row.split("`")[1::2]]
    expect_none(
        f"{code}: {text}"
        for code, text in TEXTS.items()
        if code not in OF_NO_WAIT and not any(words in text for words in told)
    )


def test_each_setting_or_field_that_a_page_names_is_in_the_code() -> None:
    files = [file for folder in FOLDERS for kind in CODE for file in (ROOT / folder).rglob(kind)]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    names = {page: re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text()) for page in PAGES}
    expect_none(
        f"{named(page)}: {name}" for page in PAGES for name in names[page] if name not in words
    )


def test_the_readme_is_a_page_that_one_reads_in_a_minute() -> None:
    assert len(README.splitlines()) <= 130


def test_contributing_names_each_module_of_the_library() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("\n## The one obvious place")[0]
    modules = {file.stem for file in (ROOT / "jupyter_gpushare").rglob("*.py")}
    named = set(re.findall(r"\w+", tree))
    assert {name for name in modules if not name.startswith("__")} - named - {"_version"} == set()
