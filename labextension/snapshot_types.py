"""Write src/state/snapshot.ts, the TypeScript types of what the server says, from the Python ones.

Run it after a change of Snapshot, of the server's Viewer or of the view of jobs, and with a new
version; a test compares the file with what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from jupyter_gpushare_server.messages import JobLog, Viewer

from jupyter_gpushare import __version__
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.jobs import ClusterView
from jupyter_gpushare.wire.snapshot import Snapshot

FILE = Path(__file__).resolve().parent / "src" / "state" / "snapshot.ts"
HEADER = "// Written by snapshot_types.py from wire/snapshot.py; change it there.\n"
SPARSE = {"Error", "Reason"}  # fields that have their default are left out
SCALARS = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def type_of(schema: dict[str, Any]) -> str:
    """Return the TypeScript type of a JSON schema as msgspec writes them."""
    if "$ref" in schema:
        return "I" + schema["$ref"]
    if "enum" in schema:
        return " | ".join(f"'{value}'" for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(option) for option in schema["anyOf"]))
    if schema["type"] == "array":
        return type_of(schema["items"]) + "[]"
    if schema["type"] == "object":
        return f"Record<string, {type_of(schema['additionalProperties'])}>"
    return SCALARS[schema["type"]]


def interface(name: str, schema: dict[str, Any]) -> str:
    optional = {*schema["properties"]} - {*schema["required"]} if name in SPARSE else set()
    fields = "".join(
        f"  {key}{'?' * (key in optional)}: {type_of(part)};\n"
        for key, part in schema["properties"].items()
    )
    return f"\nexport interface I{name} {{\n{fields}}}\n"


def text() -> str:
    _, components = msgspec.json.schema_components(
        [Snapshot, messages.Error, Viewer, ClusterView, JobLog], ref_template="{name}"
    )
    version = f"\nexport const VERSION = '{__version__}';\n"
    interfaces = "".join(interface(name, components[name]) for name in sorted(components))
    return HEADER + version + interfaces


if __name__ == "__main__":
    FILE.write_text(text())
