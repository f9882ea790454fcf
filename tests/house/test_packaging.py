"""The files that a user installs: the wheel, the source distribution, and the parts that Jupyter
finds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from jupyter_gpushare import __version__

from ..violations import ROOT, expect_none

BIN = Path(sys.executable).parent
LIKE_MAKE = {"cmake.define.GPUSHARE_WERROR": "ON"}
PACKAGES = ("jupyter_gpushare", "jupyter_gpushare_kernel", "jupyter_gpushare_server")
STATIC = ("page.js", "page.css", "widget.js", "widget.css")
WHERE_JUPYTER_LOOKS = (
    "share/jupyter/labextensions/jupyter-gpushare/package.json",
    "share/jupyter/labextensions/jupyter-gpushare/install.json",
    "share/jupyter/labextensions/jupyter-gpushare/schemas/jupyter-gpushare/plugin.json",
    "etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
)

pytestmark = pytest.mark.timeout(300)  # a first build compiles C++ and the front end


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tarfile.TarFile]:
    with tarfile.open(built("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        yield archive


def built(kind: str, folder: Path) -> Path:
    """Build one distribution with the tools of this environment: nothing is fetched, and what
    `make build` has compiled is not compiled again."""
    code = f"from scikit_build_core import build; build.build_{kind}({str(folder)!r}, {LIKE_MAKE})"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    (made,) = folder.iterdir()
    return made


def jupyter_says(program: str, *arguments: str) -> str:
    run = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, check=True)
    return run.stdout + run.stderr


def line_of(name: str, text: str) -> str:
    return next((line for line in text.splitlines() if name in line), "")


def test_the_wheel_carries_packages_with_types_the_widget_the_page_and_data(
    wheel: zipfile.ZipFile,
) -> None:
    files = [f"{package}/{name}" for package in PACKAGES for name in ("__init__.py", "py.typed")]
    files += [f"jupyter_gpushare/static/{name}" for name in STATIC]
    names = [name.partition(".data/data/")[2] or name for name in wheel.namelist()]
    files += [*WHERE_JUPYTER_LOOKS, "jupyter_gpushare/_core.pyi"]
    expect_none(file for file in files if file not in names)
    assert any(PurePosixPath(name).match("jupyter_gpushare/_core.*so") for name in names)


def test_the_wheel_carries_nothing_else_and_nothing_that_only_tests_use(
    wheel: zipfile.ZipFile,
) -> None:
    folders = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in folders if "-" not in name} == set(PACKAGES)
    assert importlib.util.find_spec("jupyter_gpushare._core_testing"), "an editable one has it"
    assert [name for name in wheel.namelist() if "_core_testing" in name] == []


def test_the_front_end_is_small(wheel: zipfile.ZipFile) -> None:
    """It counts our code, without the entry by which JupyterLab shares modules among
    extensions."""
    ours = [
        part.file_size
        for part in wheel.infolist()
        if PurePosixPath(part.filename).match("*/labextensions/jupyter-gpushare/static/*.js")
        and "remoteEntry" not in part.filename
    ]
    assert ours
    assert sum(ours) < 82_000


def test_torch_is_installed_only_for_users_that_ask_for_it(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    required = Parser().parsestr(wheel.read(path).decode()).get_all("Requires-Dist") or []
    assert [line for line in required if line.startswith("torch")] == [
        'torch>=2.6; extra == "torch"'
    ]


def test_the_sdist_builds_without_node_and_carries_nothing_that_was_compiled(
    sdist: tarfile.TarFile,
) -> None:
    """It carries the sources of the front end, and the built front end with its hash."""
    names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "csrc/CMakeLists.txt",
        "labextension/src/index.ts",
        "labextension/yarn.lock",
        "jupyter_gpushare/labextension/package.json",
        "jupyter_gpushare/labextension/.hash",
        "jupyter_gpushare/static/widget.js",
    } <= names
    unwanted = {"node_modules", ".venv", "build", "__pycache__", ".yarn"}
    assert not [name for name in names if unwanted & set(name.split("/"))]
    assert not [name for name in names if name.endswith(".so")]


def test_the_same_sources_and_date_make_the_same_sdist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = (built("sdist", tmp_path / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        parts = {(part.mtime, part.uid, part.mode & 0o7022) for part in archive.getmembers()}
    assert parts == {(1700000000, 0, 0)}


def test_jupyter_server_finds_the_extension() -> None:
    listed = jupyter_says("jupyter-server", "extension", "list")
    assert "OK" in line_of(f"jupyter_gpushare {__version__}", listed)


@pytest.mark.system
def test_jupyterlab_finds_the_extension() -> None:
    line = line_of("jupyter-gpushare", jupyter_says("jupyter-labextension", "list"))
    assert "enabled" in line
    assert "OK" in line


def test_front_end_and_package_have_one_version() -> None:
    described = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert described["version"] == __version__


def test_the_lock_file_names_no_host() -> None:
    assert "://" not in (ROOT / "labextension" / "yarn.lock").read_text()


def test_a_checkout_that_is_not_built_says_where_to_start_python(tmp_path: Path) -> None:
    (tmp_path / "jupyter_gpushare").mkdir()
    copy = tmp_path / "jupyter_gpushare" / "__init__.py"
    copy.write_bytes((ROOT / "jupyter_gpushare" / "__init__.py").read_bytes())
    command = [sys.executable, "-S", "-c", "import jupyter_gpushare"]  # without this environment's
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    sentence = run.stderr.splitlines()[-1]
    assert sentence.startswith(
        f"ImportError: {copy.parent} lacks the compiled module: start Python"
    )
