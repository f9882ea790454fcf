"""Packages that a machine with a GPU needs beside PyTorch: brought along, installed there, and
built there.

``python -m gpu.packages pack|install|module|driver FOLDER``
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from .places import DRIVER, HERE, HOME, IS_HOST, ROOT, SITE, TAG, say

REQUIREMENTS = HERE / "requirements.txt"
MOST_MB = 60
BUILD_SECONDS = 200.0  # after this time the module that was built ahead is used
PYTHON = os.environ.get("TARGET_PYTHON", "3.12")  # of the machine with the GPU
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 27, 28, 31, 34))
OLD_PLATFORMS = ("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64")
SUFFIX = f".cpython-{PYTHON.replace('.', '')}-x86_64-linux-gnu.so"
SHIPPED = (f"_core{SUFFIX}", DRIVER.name)  # built here already, in case the build fails there
IS_INSTALLED = (
    "import jupyter_gpushare._core, jupyter_gpushare; print(jupyter_gpushare.__version__)"
)


def run(*command: object, seconds: float | None = None) -> None:
    """Run a command. Raises SubprocessError where it fails, or takes longer."""
    words = [str(word) for word in command]
    subprocess.run(words, cwd=ROOT, check=True, stdout=sys.stderr, timeout=seconds)


# --- where there is a network -------------------------------------------------------------------


def pack(folder: Path) -> None:
    """Pack wheels for the Python of the GPU's machine; and our own build, if this is the same
    Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [word for name in PLATFORMS + OLD_PLATFORMS for word in ("--platform", name)]
    of_python = ["--python-version", PYTHON, "--implementation", "cp", *platforms]
    plain = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder]
    run(sys.executable, "-m", "pip", "download", *plain, *of_python, "-r", REQUIREMENTS)
    _build_ahead(folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    if size > MOST_MB:
        sys.exit(f"gpu.sh: {folder} has {size:.0f} MB, more than {MOST_MB}")
    names = len(list(folder.glob("*.whl")))
    print(f"{folder}: {names} packages for Python {PYTHON}, {size:.1f} MB")


def _build_ahead(folder: Path) -> None:
    """Build in case the machine with the GPU has no compiler, or lacks Python's headers."""
    for name in SHIPPED:
        (folder / name).unlink(missing_ok=True)
    if sysconfig.get_python_version() != PYTHON:
        print(f"nothing is built ahead: this is Python {sysconfig.get_python_version()}")
        return
    try:
        install(folder)
        shutil.copy(_compiled_module(), folder / SHIPPED[0])
        shutil.copy(_compiled_driver(), folder / SHIPPED[1])
    except (OSError, subprocess.SubprocessError) as error:
        print(f"nothing is built ahead: {error}")


# --- on the machine with the GPU ----------------------------------------------------------------


def install(folder: Path) -> None:
    """Install packages; those that this Python has already stay, since PyTorch's own needs must
    not be replaced."""
    missing = list(_missing())
    say(note=f"installed: {' '.join(missing) or 'nothing, all is there'}")
    if missing:
        where = ["--no-index", "--find-links", folder, "--target", SITE, "--upgrade"]
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *where, *missing)
        importlib.invalidate_caches()


def _missing() -> Iterator[str]:
    lines = REQUIREMENTS.read_text().splitlines()
    for requirement in (line for line in lines if line and not line.startswith("#")):
        try:
            importlib.metadata.version(requirement.partition("==")[0])
        except importlib.metadata.PackageNotFoundError:
            yield requirement


def module(folder: Path) -> None:
    """Provide the library with its C++ module: as installed, compiled here, or built ahead."""
    found = subprocess.run(
        [sys.executable, "-c", IS_INSTALLED], cwd="/", env=_without(SITE), capture_output=True
    )
    if found.returncode == 0:
        say(note=f"installed already: jupyter_gpushare {found.stdout.decode().strip()}")
        return
    _put(_first(lambda: _compiled_module(BUILD_SECONDS), folder / f"_core{_suffix()}"))


def driver(folder: Path) -> None:
    """Build the program that asks NVIDIA's driver; on the device `host`, also the fake driver."""
    made = _first(_compiled_driver, folder / DRIVER.name)
    if made != DRIVER:
        shutil.copy(made, DRIVER)
    if IS_HOST:
        sources = [
            ROOT / "tests" / "stand_ins" / "driver" / f"fake_{part}.cpp"
            for part in ("driver", "gpu")
        ]
        _compile(HOME / "libcuda.so.1", *sources, "-shared", "-fPIC")


def _without(folder: Path) -> dict[str, str]:
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in parts if p != str(folder))}


def _suffix() -> str:
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def _first(make: Callable[[], Path], built_ahead: Path) -> Path:
    try:
        made = make()
    except (OSError, subprocess.SubprocessError) as error:
        if not built_ahead.exists():
            raise
        say(note="built ahead, since nothing can be compiled here; gpu.log tells why")
        print(error, file=sys.stderr)
        return built_ahead
    say(note="compiled here")
    return made


def _compiled_module(seconds: float | None = None) -> Path:
    """Build only the module: the front end is not needed, and would want Node.js."""
    from pybind11 import get_cmake_dir

    build = HOME / f"module-{TAG}"
    cmake = [sys.executable, "-m", "cmake"]
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_FLAGS": "-w",  # a newer compiler may warn of more, and warnings are errors
        "CMAKE_MAKE_PROGRAM": _ninja(),
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": get_cmake_dir(),
        "SKBUILD_PROJECT_VERSION": _version(),
    }
    run(
        *cmake,
        "-S",
        "csrc",
        "-B",
        build,
        "-G",
        "Ninja",
        *(f"-D{k}={v}" for k, v in definitions.items()),
    )
    run(*cmake, "--build", build, "--target", "_core", seconds=seconds)
    (made,) = build.rglob(f"_core{_suffix()}")
    return made


def _ninja() -> str:
    """Find the package: its folder depends on whether we installed it, a user of this Python, or
    the system."""
    places = [str(SITE / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which("ninja", path=os.pathsep.join(places)) or "ninja"


def _version() -> str:
    source = (ROOT / "jupyter_gpushare" / "_version.py").read_text()
    return source.partition('"')[2].partition('"')[0]


def _compiled_driver() -> Path:
    memory = ROOT / "csrc" / "memory" / "cuda"
    sources = (HERE / "driver.cpp", memory / "cuda_device.cpp", memory / "cuda_driver.cpp")
    _compile(DRIVER, *sources, "-ldl")
    return DRIVER


def _compile(made: Path, *words: object) -> None:
    sources = [word for word in words if isinstance(word, Path)]
    headers = [path.with_suffix(".h") for path in sources if path.with_suffix(".h").exists()]
    changed = max(path.stat().st_mtime for path in sources + headers)
    if made.exists() and made.stat().st_mtime > changed:
        return
    compiler = os.environ.get("CXX", "c++")
    run(compiler, "-std=c++20", "-O2", f"-I{ROOT / 'csrc'}", *words, "-o", made)


def _put(core: Path) -> None:
    """Make a copy of the package, so that the checkout stays as it is."""
    target = SITE / "jupyter_gpushare"
    shutil.rmtree(target, ignore_errors=True)
    unwanted = shutil.ignore_patterns("labextension", "__pycache__", "*.so")
    shutil.copytree(ROOT / "jupyter_gpushare", target, ignore=unwanted)
    shutil.copy(core, target / f"_core{_suffix()}")


STEPS = {step.__name__: step for step in (pack, install, module, driver)}

if __name__ == "__main__":
    STEPS[sys.argv[1]](Path(sys.argv[2]).absolute())
