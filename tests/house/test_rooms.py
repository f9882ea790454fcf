"""Which module may import which: the rooms of CONTRIBUTING.md, held."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ..violations import ROOT, expect_none, named

LIBRARY = ROOT / "jupyter_gpushare"
CLUSTER = LIBRARY / "cluster"
TORCH = LIBRARY / "client" / "torch"
SERVER = ROOT / "server_ext" / "jupyter_gpushare_server"
KERNEL = ROOT / "kernel_ext" / "jupyter_gpushare_kernel"
CORE = ROOT / "csrc" / "core"
VIEW = ROOT / "labextension" / "src"

FRAMEWORKS = {
    *("jupyter_server", "jupyterhub", "IPython", "ipykernel", "ipywidgets", "tornado", "torch")
}
HOOKS = {"jupyter_gpushare_kernel", "jupyter_gpushare_server"}

# room -> what nothing in it imports, not even inside a function
NEVER = {
    LIBRARY / "broker": FRAMEWORKS | HOOKS,
    CLUSTER: FRAMEWORKS | HOOKS,
    SERVER: {"IPython", "ipykernel", "ipywidgets", "torch", "jupyter_gpushare_kernel"},
    KERNEL: {"jupyter_server", "tornado", "torch", "jupyter_gpushare_server"},
}
# package -> room in which it is imported, and the only folder or file there that does so
ONLY = {
    "torch": (LIBRARY, TORCH),
    "jupyter_gpushare_kernel": (LIBRARY, LIBRARY / "__init__.py"),
    "jupyter_gpushare_server": (LIBRARY, LIBRARY / "__init__.py"),
    "jupyterhub": (SERVER, SERVER / "hub_service.py"),
}

# folder or module of the library -> what it may import of the others, by the process that runs it
BASE = {"_core", "_version", "errors", "format", "reasons", "refusals", "settings"}
LAYERS = {
    "errors": set(),
    "refusals": {"errors"},
    "settings": {"_core", "errors", "refusals"},
    "format": set(),
    "reasons": {"format"},
    "tables": {"format"},
    "database": set(),
    "wire": BASE,
    "devices": BASE | {"wire"},
    "client": BASE | {"wire", "devices"},
    "jobs": BASE | {"wire", "devices", "client"},
    "broker": BASE | {"wire", "devices", "database"},
    "cluster": BASE | {"wire", "devices", "database"},
    "simulator": BASE | {"tables", "wire"},
    "tools": BASE
    | {*("tables", "wire", "devices", "client", "jobs", "broker", "cluster", "simulator")},
}

# modules of others whose unpublished names the client has to use
WITH_PRIVATES = ("c10d", "sys")

# what keeps the core a function of its events, and the memory free of the interpreter
INPUT_OUTPUT = r"iostream|fstream|thread|mutex|condition_variable|chrono|ctime|sys/.*|unistd\.h"
PYTHON = r"Python\.h|pybind11/.*"
OUTSIDE_OF_CORE = rf"memory/.*|handoff/.*|bindings/.*|{PYTHON}|{INPUT_OUTPUT}"
# folder of csrc -> what no file in it includes
NOT_INCLUDED = {
    "core": rf"{OUTSIDE_OF_CORE}|simulation/.*|claims/.*",
    "simulation": OUTSIDE_OF_CORE,
    "memory": rf"core/.*|handoff/.*|bindings/.*|{PYTHON}",
    "handoff": rf"core/.*|memory/.*|bindings/.*|{PYTHON}",
    "claims": rf"(core|memory|handoff|bindings)/.*|{PYTHON}|{INPUT_OUTPUT}",
}

# Each room of the core includes only itself and those before it.
ROOMS_OF_CORE = (
    *("model", "shares", "policies", "lanes", "tuner"),
    *("device", "pass", "view", "host", "cluster"),
)

# Folder -> its rooms: each imports, as it is imported itself, only those before it.
IN_ORDER = {
    LIBRARY / "client": (
        *("options", "progress", "process_groups", "end_of_wait", "session", "checkpoints"),
        *("torch", "notebook"),
    ),
    TORCH: (
        *("unpublished", "patches", "backwards", "storages", "lanes", "demand", "iterations"),
        *("squeeze", "holdings", "memory", "checkpoints"),
    ),
    CLUSTER: (
        *("launch", "hands", "engines", "jobs", "journal", "looks", "queues", "records"),
        *("troubles", "acts", "pruning", "service", "loop", "views", "server", "program"),
        "__main__",
    ),
}

CODE = {".py", ".cpp", ".c", ".h", ".ts"}
MOST_IN_A_FOLDER = 12  # nouns: a .h and its .cpp are one
# Folders of peers, which each have one row of a table.
PEERS = {"csrc/bindings", "jupyter_gpushare/tools/cli"}

# Room of the panel -> what a file in it may import; a path is from labextension/src on.
PANEL = {
    "state": r"state/|@lumino/signaling$",
    "view": r"(state|view)/",
    "lab": r"(state|view|lab)/|actions$|@jupyterlab/|@lumino/",
    "actions.ts": r"view/view_model$",
    "anywidget.ts": r"view/view$",
    "page.ts": r"(state|view)/|actions$",
}


class Import(NamedTuple):
    path: Path
    line: int
    name: str  # of a module; a relative one begins with a dot
    is_run: bool  # when the file is imported

    def __str__(self) -> str:
        return f"{named(self.path)}:{self.line}: imports {self.name}"

    @property
    def package(self) -> str:
        """The package at the top level; empty if the name is relative."""
        return self.name.split(".")[0]

    @property
    def target(self) -> Path:
        """What a relative name means; a file elsewhere for the name of a package."""
        level = len(self.name) - len(self.name.lstrip("."))
        return self.path.parents[level - 1].joinpath(*self.name.lstrip(".").split("."))

    @property
    def layer(self) -> str:
        """The folder or module at the top of the library; empty where the name is not relative."""
        level = len(self.name) - len(self.name.lstrip("."))
        folders = self.path.relative_to(LIBRARY).parent.parts
        above = folders[: len(folders) - level + 1]
        return [*above, *self.name.lstrip(".").split(".")][0] if level else ""


@cache
def imports(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text())
    run = {*_run_at_import(tree)}
    return [
        Import(path, node.lineno, name, node in run)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _names(node)
    ]


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [module] if node.module else [module + alias.name for alias in node.names]


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Return all of a module but the bodies of its functions and imports for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_at_import(child)


def imports_in(room: Path) -> list[Import]:
    files = sorted(room.rglob("*.py")) if room.is_dir() else [room]
    assert files
    return [each for path in files for each in imports(path)]


def included(room: str) -> Iterator[tuple[str, str]]:
    """Return each file and line with an #include, and the name that it includes."""
    files = cxx_files(ROOT / "csrc" / room)
    assert files
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := re.match(r'\s*#\s*include\s*[<"]([^>"]+)', line):
                yield f"{named(path)}:{number}", found[1]


def cxx_files(room: Path) -> list[Path]:
    return sorted([*room.rglob("*.h"), *room.rglob("*.cpp")])


# --- Python ---------------------------------------------------------------------------------------


def test_the_library_imports_no_framework_when_it_is_imported() -> None:
    expect_none(
        each
        for each in imports_in(LIBRARY)
        if each.is_run and each.package in FRAMEWORKS | HOOKS
        if each.package != "torch" or not each.path.is_relative_to(TORCH)
    )


def test_a_room_keeps_to_itself() -> None:
    rooms = NEVER.items()
    expect_none(each for room, never in rooms for each in imports_in(room) if each.package in never)


def test_only_one_place_of_a_room_knows_pytorch_the_front_ends_or_a_hub() -> None:
    expect_none(
        each
        for package, (room, only) in ONLY.items()
        for each in imports_in(room)
        if each.package == package and not each.path.is_relative_to(only)
    )


def test_a_layer_imports_only_the_layers_it_may() -> None:
    expect_none(
        each
        for each in imports_in(LIBRARY)
        if (of := layer_of(each.path)) in LAYERS
        if each.layer not in LAYERS[of] | {of, ""}
    )


def layer_of(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def test_each_part_of_the_library_has_a_layer() -> None:
    parts = {layer_of(path) for path in LIBRARY.rglob("*.py")}
    assert parts - {"__init__", "_version"} == LAYERS.keys()


def test_no_part_of_the_broker_knows_the_service() -> None:
    """It is made of them; only the event loop calls it."""
    broker = LIBRARY / "broker"
    found = [each for each in imports_in(broker) if each.name.rpartition(".")[2] == "service"]
    assert {each.path for each in found} == {broker / "transport" / "server.py"}


ENGINE_KNOWS = {
    *(".engine", ".sbatch", ".slurm_commands", ".slurm_nodes"),
    *("..hands.command", "..launch.generation", "...errors"),
}


def test_an_engine_knows_its_seam_directories_and_errors_alone() -> None:
    """It knows neither the queue, the journal nor the states of jobs."""
    found = [each for each in imports_in(CLUSTER / "engines") if each.name.startswith(".")]
    expect_none(each for each in found if each.name not in ENGINE_KNOWS)


def test_the_service_of_a_cluster_knows_the_seam_of_engines_alone() -> None:
    files = {*CLUSTER.rglob("*.py")} - {*(CLUSTER / "engines").iterdir()}
    files -= {CLUSTER / "program.py"}  # which chooses one
    found = [each for path in sorted(files) for each in imports(path)]
    expect_none(
        each
        for each in found
        if "engines" in each.name.split(".") and not each.name.endswith(".engines.engine")
    )


def test_what_a_cluster_decides_by_writes_nothing() -> None:
    """The journal, and the acts at an engine, are of the service alone."""
    never = {".journal", ".records", ".acts", ".service", "..database", "sqlite3", "subprocess"}
    rooms = ("looks", "queues", "jobs.py", "launch/facts.py")
    found = (each for room in rooms for each in imports_in(CLUSTER / room))
    expect_none(each for each in found if each.name.removeprefix(".") in never)


def test_what_runs_on_a_node_of_a_cluster_needs_the_standard_library_alone() -> None:
    may = sys.stdlib_module_names | {"generation", ""}
    names = ("generation", "launcher")
    found = [each for name in names for each in imports(CLUSTER / "launch" / f"{name}.py")]
    expect_none(
        each
        for each in found
        if each.package not in may or (not each.package and each.name != ".generation")
    )


def test_no_part_of_a_session_touches_what_is_private_to_another() -> None:
    own = re.compile(rf"self\.\w+$|({'|'.join(WITH_PRIVATES)})\.")
    expect_none(
        f"{named(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((LIBRARY / "client" / "session").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr)
        if not own.match(ast.unparse(node))
    )


def test_importing_the_library_is_light() -> None:
    modules = ("", ".client.session.session", ".broker.transport.server", ".tools.cli")
    loaded = ((name, loaded_by(f"jupyter_gpushare{name}")) for name in modules)
    expect_none(f"jupyter_gpushare{name} loads {found}" for name, found in loaded if found)


def loaded_by(module: str) -> str:
    """Return the frameworks that a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*{FRAMEWORKS | HOOKS | {'rich'}!r} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


SAMPLE = """
from typing import TYPE_CHECKING
import a.b
from . import c
if TYPE_CHECKING:
    import d
def e():
    from ...f import g
class H:
    from i import j
"""


def test_imports_are_found_wherever_they_are(tmp_path: Path) -> None:
    (path := tmp_path / "sample.py").write_text(SAMPLE)
    found = imports(path)
    assert {each.name for each in found if each.is_run} == {"typing", "a.b", ".c", "i"}
    assert {each.name for each in found if not each.is_run} == {"d", "...f"}
    with pytest.raises(AssertionError, match=r"(?s)6 violations:\n.*:3: imports a\.b\n"):
        expect_none(found)


# --- C++ and TypeScript ---------------------------------------------------------------------------


def test_a_room_of_cxx_includes_nothing_that_it_must_not_know() -> None:
    expect_none(
        f"{place}: {room} includes {name}"
        for room, never in NOT_INCLUDED.items()
        for place, name in included(room)
        if re.fullmatch(never, name)
    )


def test_a_room_of_the_core_includes_no_later_one() -> None:
    expect_none(
        f"{place}: includes {name}"
        for number, room in enumerate(ROOMS_OF_CORE, 1)
        for place, name in included(f"core/{room}")
        if name.startswith("core/") and name.split("/")[1] not in ROOMS_OF_CORE[:number]
    )


def test_only_events_the_pass_and_what_they_call_change_a_device() -> None:
    """All else in the core has what is known of a device by a constant reference."""
    changes = re.compile(r"(?<!const )\bDeviceState[&*](?! operator)|unique_ptr<DeviceState>")
    headers = [path for path in cxx_files(CORE) if path.suffix == ".h"]
    found = {path.stem for path in headers if changes.search(path.read_text())}
    assert found == {"scheduler", "pass", "turns", "paging", "fitting"}


def test_each_room_of_the_panel_imports_only_those_below_it() -> None:
    expect_none(
        f"{named(file)}: imports {module}"
        for room, allowed in PANEL.items()
        for file in sorted((VIEW / room).glob("*.ts")) or [VIEW / room]
        for module in imported_by(file)
        if not re.match(allowed, module)
    )


def imported_by(file: Path) -> Iterator[str]:
    """Yield what a file of the panel imports: a package, or a path from labextension/src on."""
    for module in re.findall(r"""from\s+['"]([^'"]+)['"]""", file.read_text()):
        path = (file.parent / module).resolve()
        yield path.relative_to(VIEW).as_posix() if module.startswith(".") else module


@pytest.mark.parametrize("folder", IN_ORDER, ids=named)
def test_each_room_imports_only_those_before_it(folder: Path) -> None:
    order = [folder / room for room in IN_ORDER[folder]]
    present = {path.with_suffix("") for path in folder.iterdir() if path.name[:2] != "__"}
    assert present <= set(order)
    expect_none(
        each
        for each in imports_in(folder)
        if each.is_run
        for user, used in [(room_of(each.path, order), room_of(each.target, order))]
        if user and used and order.index(used) > order.index(user)
    )


def room_of(path: Path, rooms: list[Path]) -> Path | None:
    return next((room for room in rooms if path.with_suffix("").is_relative_to(room)), None)


def test_a_folder_has_at_most_twelve_nouns() -> None:
    nouns: dict[str, set[str]] = {}
    for file in map(Path, tracked_files()):
        if file.suffix in CODE and file.name != "__init__.py" and "third_party" not in file.parts:
            nouns.setdefault(file.parent.as_posix(), set()).add(file.stem)
    expect_none(
        f"{folder} has {len(names)}"
        for folder, names in nouns.items()
        if len(names) > MOST_IN_A_FOLDER and folder not in PEERS
    )


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    return listed.stdout.decode().splitlines()
