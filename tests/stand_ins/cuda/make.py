"""Makes the libraries that a CUDA build of PyTorch wants of NVIDIA: ``make.py TORCH HEADERS OUT``.

The driver is tests/stand_ins/driver, and the runtime and a part of NCCL are here. Each other
function that PyTorch's own libraries import does nothing and says that it succeeded, but for those
of libraries.c; so no package of NVIDIA's is needed, and none may be there, since PyTorch would
prefer it. Headers are NVIDIA's, for the layouts of the runtime.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FAKE_DRIVER = ROOT / "tests" / "stand_ins" / "driver"
NOT_SUPPORTED = 801  # of the driver and the runtime
INVALID_USAGE = 5  # of NCCL
PREFIXES = {  # of names that are imported without the name of their library
    "cufile": r"cuFile",
    "cusparseLt": r"cusparseLt",
    "nccl": r"nccl",
    "nvshmem_host": r"nvshmem",
    "cuda": r"cu[A-Z](?!ile)",
}
FETCHED = {  # from the driver, by their names, at run time
    *("cuCtxFromGreenCtx", "cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount"),
    *("cuDeviceGetDevResource", "cuGreenCtxCreate", "cuGreenCtxDestroy"),
    *("cuGreenCtxStreamCreate", "cuMulticastAddDevice", "cuMulticastBindMem"),
    *("cuMulticastCreate", "cuMulticastUnbind", "cuStreamWriteValue32"),
}
SHARED = ("-shared", "-fPIC", "-O1")
CXX = (os.environ.get("CXX", "c++"), "-std=c++20", *SHARED, "-Wall", "-Wextra")
CC = (os.environ.get("CC", "cc"), *SHARED, "-w")


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Imports:
    """The names that PyTorch's libraries import, and the libraries that they need."""

    def __init__(self, folder: Path) -> None:
        self.libraries: set[str] = set()
        self._names: dict[str, set[str]] = {}
        for library in sorted(folder.glob("*.so")):
            needed = run("readelf", "-d", library)
            self.libraries |= set(re.findall(r"\[(lib(?:cu|nccl|nv)\S+)\]", needed))
            for line in run("nm", "-D", "--undefined-only", library).splitlines():
                name, _, version = line.split()[-1].partition("@")
                self._names.setdefault(version.lstrip("@"), set()).add(name)

    def version(self, library: str) -> str:
        """The version under which its names are imported; empty: under none."""
        versions = (library, stem(library).partition("_")[0].upper())
        return next((each for each in versions if each in self._names), "")

    def names(self, library: str) -> set[str]:
        found = set(self._names.get(self.version(library) or library, ()))
        if prefix := PREFIXES.get(stem(library)):
            found |= {name for name in self._names[""] if re.match(prefix, name)}
        return found


def stem(library: str) -> str:
    """``cublasLt`` of ``libcublasLt.so.13``."""
    return library.removeprefix("lib").partition(".so")[0]


def stubs(names: Iterable[str], sources: Iterable[Path], result: int, to: Path) -> Path:
    """C code for those that no source has."""
    own = "".join(path.read_text() for path in sources)
    missing = [name for name in sorted(names) if not re.search(rf"\b{re.escape(name)}\b", own)]
    to.write_text("".join(f"long {name}(void) {{ return {result}; }}\n" for name in missing))
    return to


def link(library: str, version: str, out: Path, *words: str | Path) -> None:
    """The compiler's words make a library of that name, with that symbol version."""
    if version:
        script = out / "work" / f"{library}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        words += (f"-Wl,--version-script={script}",)
    run(*words, f"-Wl,-soname,{library}", "-o", out / library)


def stub_object(code: Path) -> Path:
    made = code.with_suffix(".o")
    run(*CC[:1], "-fPIC", "-O1", "-w", "-c", code, "-o", made)
    return made


def make_driver(imports: Imports, work: Path, out: Path) -> None:
    sources = [FAKE_DRIVER / "fake_driver.cpp", FAKE_DRIVER / "fake_gpu.cpp"]
    names = imports.names("libcuda.so.1") | FETCHED
    rest = stub_object(stubs(names, sources, NOT_SUPPORTED, work / "cuda.c"))
    link("libcuda.so.1", "", out, *CXX, f"-I{ROOT / 'csrc'}", *sources, rest)


def make_runtime(imports: Imports, headers: Path, work: Path, out: Path) -> None:
    (library,) = (each for each in imports.libraries if stem(each) == "cudart")
    sources = sorted(HERE.glob("runtime_*.cpp"))
    rest = stub_object(stubs(imports.names(library), sources, NOT_SUPPORTED, work / "cudart.c"))
    includes = (f"-I{FAKE_DRIVER}", "-isystem", str(headers))
    places = (f"-L{out}", "-l:libcuda.so.1")
    link(library, imports.version(library), out, *CXX, *includes, *sources, rest, *places)


def make_nccl(imports: Imports, headers: Path, work: Path, out: Path) -> None:
    (library,) = (each for each in imports.libraries if stem(each) == "nccl")
    (runtime,) = (each for each in imports.libraries if stem(each) == "cudart")
    source = HERE / "nccl.cpp"
    rest = stub_object(stubs(imports.names(library), [source], INVALID_USAGE, work / "nccl.c"))
    places = (f"-L{out}", f"-l:{runtime}", f"-Wl,-rpath-link,{out}")
    link(library, "", out, *CXX, "-isystem", str(headers), source, rest, *places)


def make_another(library: str, imports: Imports, work: Path, out: Path) -> None:
    own = HERE / "libraries.c"
    name = stem(library)
    code = stubs(imports.names(library), [own], 0, work / f"{name}.c")
    define = f"-DFAKE_{name.upper()}"
    link(library, imports.version(library), out, *CC, define, code, own)


def make_kernels(torch: Path, headers: Path, out: Path) -> None:
    includes = ("include", "include/torch/csrc/api/include")
    words = [word for each in includes for word in ("-isystem", str(torch / each))]
    libraries = ("-ltorch_cpu", "-lc10", "-lc10_cuda", "-ltorch_cuda")
    places = (f"-L{torch / 'lib'}", f"-L{out}", f"-Wl,-rpath-link,{out}")
    source = HERE / "cpu_kernels.cpp"
    run(
        *CXX, *words, "-isystem", headers, source, *places, *libraries, "-o", out / "cpu_kernels.so"
    )


def main(torch: Path, headers: Path, out: Path) -> None:
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    imports = Imports(torch / "lib")
    make_driver(imports, work, out)
    (headers,) = headers.glob("nvidia/*/include")
    make_runtime(imports, headers, work, out)
    make_nccl(imports, headers, work, out)
    for library in sorted(imports.libraries):
        if stem(library) not in ("cuda", "cudart", "nccl"):
            make_another(library, imports, work, out)
    link("libnvidia-ml.so.1", "", out, *CXX, FAKE_DRIVER / "fake_nvml.cpp")
    make_kernels(torch, headers, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
