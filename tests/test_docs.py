"""The pages are true: the reference is that of the code, and links and commands lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jupyter_gpushare.client.waiting_line import sentence
from jupyter_gpushare.reasons import TEXTS, Reason
from jupyter_gpushare.wire.messages import Wait

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
REFERENCE = (
    "command-line",
    "magics",
    "metrics",
    "policies",
    "python",
    "rest",
    "rulebook",
    "settings",
)
ALL = "\n".join(page.read_text() for page in PAGES)
CODE = ("*.py", "*.pyi", "*.h", "*.cpp", "*.ts", "*.yaml", "*.sh", "*.toml", "*.csv", "*.json")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


# --- reference ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    found = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_of_the_reference_is_what_make_reference_writes(
    generate: ModuleType, name: str
) -> None:
    assert (DOCS / "reference" / f"{name}.md").read_text() == generate.pages()[name]


def test_each_page_of_the_reference_is_written_by_make_reference(generate: ModuleType) -> None:
    on_disk = {page.stem for page in (DOCS / "reference").glob("*.md")}
    assert on_disk == {*generate.pages()} == {*REFERENCE}


# --- links ----------------------------------------------------------------------------------------


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(((?!https?:)[^)\s]+)\)", without_code(page.read_text()))


def anchors(page: Path) -> set[str]:
    """Return an anchor as the site and the repository's host make it from a heading."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=named)
def test_a_page_of_the_site_links_to_nothing_outside_of_it(page: Path) -> None:
    for link in links(page):
        assert (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS), link


def test_each_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


# --- commands and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(set(re.findall(r"jupyter gpushare ([a-z]+)", ALL))))
def test_each_command_that_a_page_names_exists(command: str) -> None:
    code = "import sys; from jupyter_gpushare.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-c", code, command, "--help"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)`", ALL))))
def test_each_target_that_a_page_names_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?!build/)(?:\w+/)+[\w./-]*\w)`", ALL))))
def test_each_file_that_a_page_names_exists(path: str) -> None:
    assert any((root / path).exists() for root in (ROOT, ROOT / "csrc", ROOT / "jupyter_gpushare"))


def reasons() -> list[str]:
    """Return the quotes of the page of waits: the first cells of its table."""
    page = (DOCS / "how-to" / "my-cell-waits.md").read_text()
    return [
        said for row in re.findall(r"^\| (`.*?) \|", page, re.M) for said in row.split("`")[1::2]
    ]


def test_the_line_that_the_page_of_waits_shows_is_said() -> None:
    why = [Reason("waits_for", other="c")]
    wait = Wait(1, 2, 3.0, "", "cnn.ipynb", 12.0, why, {"c": "cnn.ipynb"}).in_words()
    page = (DOCS / "how-to" / "my-cell-waits.md").read_text()
    assert sentence(wait) in " ".join(re.findall(r"^> (.*)$", page, re.MULTILINE))


@pytest.mark.parametrize("said", reasons())
def test_each_reason_that_the_page_of_waits_explains_is_said(said: str) -> None:
    assert any(said in text for text in TEXTS.values())


@pytest.fixture(scope="module")
def words_of_the_code() -> set[str]:
    folders = (
        "jupyter_gpushare",
        "server_ext",
        "kernel_ext",
        "csrc",
        "benchmarks",
        "tests",
        "deploy",
    )
    files = [file for folder in folders for kind in CODE for file in (ROOT / folder).rglob(kind)]
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_setting_or_field_that_a_page_names_is_in_the_code(
    page: Path, words_of_the_code: set[str]
) -> None:
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text()))
    assert names - words_of_the_code == set()


def test_the_readme_is_a_page_that_one_reads_in_a_minute() -> None:
    assert len(README.splitlines()) <= 130


def test_contributing_names_each_module_of_the_library() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().split("\n## The one obvious place")[0]
    modules = {file.stem for file in (ROOT / "jupyter_gpushare").rglob("*.py")}
    named = set(re.findall(r"\w+", tree))
    assert {name for name in modules if not name.startswith("__")} - named - {"_version"} == set()
