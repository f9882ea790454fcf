"""A rank of a job takes turns as a notebook does, from its import of PyTorch on."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import wrapt

from ..client.notebook.sharing import current, job_has_broker, session, spare_the_cores
from ..devices.nvml import gpus
from ..devices.visible import VARIABLE, Visible
from ..errors import GpuShareError
from ..settings import Settings, load


def share_from_import(environment: Mapping[str, str]) -> None:
    """Open a session as soon as this process imports PyTorch. A rank that cannot share logs the
    reason, and computes without turns."""
    if not gpus():
        spare_the_cores("host")
    wrapt.register_post_import_hook(lambda torch: share(environment), "torch")


def share(environment: Mapping[str, str]) -> None:
    """Share until the process ends, unless the script does so itself."""
    if current() is not None:
        return
    block = ExitStack()
    try:
        settings = load()
        if not job_has_broker(settings):
            return
        block.enter_context(session(name=name_of(environment), **place_of(environment, settings)))
    except GpuShareError as error:
        print(f"this rank computes without turns: {error}", file=sys.stderr)
    else:
        atexit.register(block.close)


def name_of(environment: Mapping[str, str]) -> str:
    job, rank = Path(environment["GPUSHARE_JOB"]).name, environment.get("RANK")
    return f"job {job}" if rank is None else f"job {job} rank {rank}"


def place_of(environment: Mapping[str, str], settings: Settings) -> dict[str, Any]:
    """Return the options of the session for the GPUs of the job. Each of several ranks of a node
    has one of the GPUs, and a single rank has all. Raises InvalidValue."""
    given = len(Visible(gpus(), environment).allowed) if VARIABLE in environment else 0
    if not given or settings.device == "host":
        return {}
    if (rank := environment.get("LOCAL_RANK")) is not None:
        return {"device": f"cuda:{rank}"}
    return {"devices": given} if given > 1 else {"device": "cuda:0"}
