"""Which module may import which: the rooms of CONTRIBUTING.md, held."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "jupyter_gpushare"
TORCH = LIBRARY / "client" / "torch"
SERVER = ROOT / "server_ext" / "jupyter_gpushare_server"
KERNEL = ROOT / "kernel_ext" / "jupyter_gpushare_kernel"
CORE = ROOT / "csrc" / "core"
SIMULATION = ROOT / "csrc" / "simulation"
MEMORY = ROOT / "csrc" / "memory"
HANDOFF = ROOT / "csrc" / "handoff"
CLAIMS = ROOT / "csrc" / "claims"
VIEW = ROOT / "labextension" / "src"

FRAMEWORKS = {
    "jupyter_server",
    "jupyterhub",
    "IPython",
    "ipykernel",
    "ipywidgets",
    "tornado",
    "torch",
}
HOOKS = {"jupyter_gpushare_kernel", "jupyter_gpushare_server"}

# room -> what nothing in it imports, not even inside a function
NEVER = {
    LIBRARY / "broker": FRAMEWORKS | HOOKS,
    LIBRARY / "cluster": FRAMEWORKS | HOOKS,
    SERVER: {"IPython", "ipykernel", "ipywidgets", "torch", "jupyter_gpushare_kernel"},
    KERNEL: {"jupyter_server", "tornado", "torch", "jupyter_gpushare_server"},
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
    "wire": BASE,
    "devices": BASE | {"wire"},
    "client": BASE | {"wire", "devices"},
    "broker": BASE | {"wire", "devices"},
    "cluster": BASE | {"wire", "devices"},
    "simulator": BASE | {"tables", "wire"},
    "tools": BASE
    | {
        *("tables", "wire", "devices", "client", "broker", "cluster", "simulator"),
    },
}

# modules of others, of which the client has to use what they do not publish
WITH_PRIVATES = ("c10d", "sys")

# what keeps the core a function of its events, and the memory free of the interpreter
INPUT_OUTPUT = r"iostream|fstream|thread|mutex|condition_variable|chrono|ctime|sys/.*|unistd\.h"
PYTHON = r"Python\.h|pybind11/.*"
OUTSIDE_OF_CORE = rf"memory/.*|handoff/.*|bindings/.*|{PYTHON}|{INPUT_OUTPUT}"


def imports(path: Path, whole_file: bool = True) -> Iterator[str]:
    """Full names of the modules that a file imports; relative ones begin with a dot."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if whole_file else _run_at_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ([module] if node.module else [module + alias.name for alias in node.names])


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Return all of a module but the bodies of its functions and imports for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_at_import(child)


def packages(path: Path, whole_file: bool = True) -> set[str]:
    """The top-level packages that a file imports."""
    return {name.split(".")[0] for name in imports(path, whole_file) if not name.startswith(".")}


def includes(path: Path) -> list[str]:
    """Return the names in the #include lines of a C++ file."""
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.MULTILINE)


def python_files(room: Path) -> list[Path]:
    return sorted(room.rglob("*.py"))


def cxx_files(room: Path) -> list[Path]:
    return sorted([*room.rglob("*.h"), *room.rglob("*.cpp")])


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", python_files(LIBRARY), ids=named)
def test_the_library_imports_no_framework_when_it_is_imported(path: Path) -> None:
    allowed = {"torch"} if path.is_relative_to(TORCH) else set()
    assert packages(path, whole_file=False) & (FRAMEWORKS | HOOKS) <= allowed


@pytest.mark.parametrize("path", python_files(LIBRARY), ids=named)
def test_torch_is_imported_in_its_own_folder_alone(path: Path) -> None:
    assert "torch" not in packages(path) or path.is_relative_to(TORCH)


@pytest.mark.parametrize("path", python_files(LIBRARY), ids=named)
def test_only_the_title_page_knows_the_two_front_ends(path: Path) -> None:
    assert not packages(path) & HOOKS or path == LIBRARY / "__init__.py"


@pytest.mark.parametrize("path", python_files(SERVER), ids=named)
def test_only_the_hubs_service_needs_a_hub(path: Path) -> None:
    assert "jupyterhub" not in packages(path) or path == SERVER / "hub_service.py"


@pytest.mark.parametrize("room", NEVER, ids=named)
def test_a_room_keeps_to_itself(room: Path) -> None:
    found = {named(path): packages(path) & NEVER[room] for path in python_files(room)}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_the_layers_it_may(layer: str) -> None:
    files = python_files(LIBRARY / layer) or [LIBRARY / f"{layer}.py"]
    found = {f"{named(path)}: {room}" for path in files for room in rooms(path) - {layer}}
    assert {line for line in found if line.split(": ")[1] not in LAYERS[layer]} == set()


def test_each_part_of_the_library_has_a_layer() -> None:
    parts = {
        path.relative_to(LIBRARY).parts[0].removesuffix(".py") for path in python_files(LIBRARY)
    }
    assert parts - {"__init__", "_version"} == LAYERS.keys()


def test_no_part_of_the_broker_knows_the_service() -> None:
    """It is made of them; only the event loop calls it."""
    knows = {
        named(path)
        for path in python_files(LIBRARY / "broker")
        if any(name.rpartition(".")[2] == "service" for name in imports(path))
    }
    assert knows == {"jupyter_gpushare/broker/transport/server.py"}


@pytest.mark.parametrize("path", python_files(LIBRARY / "cluster" / "engines"), ids=named)
def test_an_engine_knows_its_seam_and_errors_alone(path: Path) -> None:
    """So neither the queue, the journal nor the states of jobs."""
    found = {name for name in imports(path) if name.startswith(".")}
    assert found <= {".engine", "..command", "...errors"}


@pytest.mark.parametrize("path", sorted((LIBRARY / "cluster").glob("*.py")), ids=named)
def test_the_service_of_a_cluster_knows_the_seam_of_engines_alone(path: Path) -> None:
    if path.stem == "program":  # which chooses one
        return
    found = {name for name in imports(path) if "engines" in name.split(".")}
    assert found <= {".engines.engine"}


@pytest.mark.parametrize("name", ["jobs", "verdicts", "sights", "facts", "gangs", "looks"])
def test_what_a_cluster_decides_by_writes_nothing(name: str) -> None:
    """The journal, and the acts at an engine, are of the service alone."""
    found = {*imports(LIBRARY / "cluster" / f"{name}.py")}
    assert not found & {".journal", ".records", ".acts", ".service", "sqlite3", "subprocess"}


@pytest.mark.parametrize("name", ["generation", "launcher"])
def test_what_runs_on_a_node_of_a_cluster_needs_the_standard_library_alone(name: str) -> None:
    path = LIBRARY / "cluster" / f"{name}.py"
    assert packages(path) - sys.stdlib_module_names <= {"generation"}
    assert {found for found in imports(path) if found.startswith(".")} <= {".generation"}


def rooms(path: Path) -> set[str]:
    """The folders and modules at the top of the library that a file in it imports."""
    package = [*path.relative_to(LIBRARY).parent.parts]
    found = set()
    for name in imports(path):
        level = len(name) - len(name.lstrip("."))
        if level:
            absolute = [*package[: len(package) - level + 1], *name.lstrip(".").split(".")]
            found.add(absolute[0])
    return found


@pytest.mark.parametrize("path", sorted((LIBRARY / "client").glob("*.py")), ids=named)
def test_no_part_of_a_session_touches_what_is_private_to_another(path: Path) -> None:
    private = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr)
    }
    own = re.compile(rf"self\.\w+$|({'|'.join(WITH_PRIVATES)})\.")
    assert {name for name in private if not own.match(name)} == set()


def test_the_cxx_rooms_exist() -> None:
    assert cxx_files(CORE)
    assert cxx_files(SIMULATION)
    assert cxx_files(MEMORY)
    assert cxx_files(HANDOFF)
    assert cxx_files(CLAIMS)


@pytest.mark.parametrize("path", cxx_files(CORE), ids=named)
def test_the_core_knows_neither_memory_nor_python_nor_the_outside(path: Path) -> None:
    forbidden = re.compile(rf"({OUTSIDE_OF_CORE}|simulation/.*|claims/.*)$")
    assert not [name for name in includes(path) if forbidden.match(name)]


@pytest.mark.parametrize("path", cxx_files(SIMULATION), ids=named)
def test_the_simulation_knows_the_core_and_the_claims_alone(path: Path) -> None:
    forbidden = re.compile(rf"({OUTSIDE_OF_CORE})$")
    assert not [name for name in includes(path) if forbidden.match(name)]


@pytest.mark.parametrize("path", cxx_files(MEMORY), ids=named)
def test_the_memory_knows_neither_core_nor_python(path: Path) -> None:
    forbidden = re.compile(rf"(core/.*|handoff/.*|bindings/.*|{PYTHON})$")
    assert not [name for name in includes(path) if forbidden.match(name)]


@pytest.mark.parametrize("path", cxx_files(HANDOFF), ids=named)
def test_the_handoff_knows_neither_core_nor_memory_nor_python(path: Path) -> None:
    forbidden = re.compile(rf"(core/.*|memory/.*|bindings/.*|{PYTHON})$")
    assert not [name for name in includes(path) if forbidden.match(name)]


@pytest.mark.parametrize("path", cxx_files(CLAIMS), ids=named)
def test_the_claims_know_nothing_of_ours(path: Path) -> None:
    forbidden = re.compile(rf"((core|memory|handoff|bindings)/.*|{PYTHON}|{INPUT_OUTPUT})$")
    assert not [name for name in includes(path) if forbidden.match(name)]


@pytest.mark.parametrize("path", cxx_files(CORE / "policies"), ids=named)
def test_a_policy_does_not_know_the_scheduler(path: Path) -> None:
    forbidden = {"core/scheduler.h", "core/lane_allocator.h"}
    assert not forbidden & set(includes(path))


def test_only_events_the_pass_and_what_they_call_change_a_device() -> None:
    """All else in the core has what is known of a device by a constant reference."""
    changes = re.compile(r"(?<!const )\bDeviceState[&*](?! operator)|unique_ptr<DeviceState>")
    headers = [path for path in cxx_files(CORE) if path.suffix == ".h"]
    found = {path.stem for path in headers if changes.search(path.read_text())}
    assert found == {"scheduler", "pass", "turns", "paging", "fitting"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "view.ts",
            "format.ts",
            "snapshot.ts",
            "dom.ts",
            "view_model.ts",
            "memory.ts",
            "lanes.ts",
        ),
        *("notebooks.ts", "details.ts", "rules.ts"),
        *("use.ts", "anywidget.ts", "actions.ts", "page.ts"),
    ],
)
def test_the_view_needs_no_framework(name: str) -> None:
    imported = re.findall(r"""from\s+['"]([^'"]+)['"]""", (VIEW / name).read_text())
    assert all(module.startswith("./") for module in imported)


@pytest.mark.parametrize("module", ["jupyter_gpushare", "jupyter_gpushare.client.session"])
def test_importing_the_library_is_light(module: str) -> None:
    assert loaded_by(module) == set()


def test_a_broker_process_has_no_framework_in_it() -> None:
    assert loaded_by("jupyter_gpushare.broker.transport.server") == set()


def loaded_by(module: str) -> set[str]:
    """The frameworks that a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*{FRAMEWORKS | HOOKS!r} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())
