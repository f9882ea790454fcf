"""One table of all settings: a field has the type and the default, and a text beside the type has
the sentence.

A setting is read once, from ``JUPYTER_GPUSHARE_<NAME>`` in the environment. A Jupyter server sets
the same names as traits and passes them on to the broker that it starts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from . import refusals
from .errors import InvalidValue

if TYPE_CHECKING:
    from . import _core

PREFIX = "JUPYTER_GPUSHARE_"
Engine = Literal["local", "slurm", "ray"]
JobPolicy = Literal["las", "gittins"]
ENGINES: tuple[str, ...] = get_args(Engine)
Positive = Meta(gt=0)
NotNegative = Meta(ge=0)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. Sizes are bytes and times are seconds, as the names say."""

    socket: Annotated[
        str, "path of the broker's Unix socket; empty: in a private directory of the user"
    ] = ""
    socket_mode: Annotated[
        str,
        Meta(pattern=r"^0?[0-7]{3}$", examples=["0660"]),
        "file mode of the broker's socket, which decides what users may connect, such as 0660",
    ] = "0600"
    socket_group: Annotated[
        str, "Unix group of the broker's socket; empty: the broker's own group"
    ] = ""
    start_broker: Annotated[
        bool, "start a broker where none answers; False: only connect to a running one"
    ] = True
    hub_api_url: Annotated[
        str,
        Meta(pattern=r"^(https?://.*[^/])?$", examples=["http://127.0.0.1:8081/hub/api"]),
        "API of the JupyterHub whose users the broker serves, such as"
        " http://127.0.0.1:8081/hub/api; empty: Unix users",
    ] = ""
    hub_scope: Annotated[
        str,
        "scope of JupyterHub that a user needs in order to share; empty: every user of the hub may",
    ] = ""
    hub_cache_seconds: Annotated[
        float,
        Positive,
        "how long a hub token lookup is cached; cached entries stay valid while the hub is"
        " unreachable",
    ] = 300.0
    ticket_socket: Annotated[
        str,
        "Unix socket at which a kernel in a hub gets its one-time tokens; set by its Jupyter"
        " server",
    ] = ""
    device: Annotated[
        str, "device of a session that names none; auto: the visible GPU with most room, else host"
    ] = "auto"
    accounts: Annotated[
        str, "SQLite database of the usage accounts; empty: in the user's state directory"
    ] = ""
    auto: Annotated[bool, "share as soon as `%load_ext jupyter_gpushare` has run"] = False
    policy: Annotated[
        str, "policy of a broker that starts; `jupyter gpushare policy` lists them"
    ] = "fair"
    rulebook: Annotated[
        str, "TOML file of groups, roles, quotas and reservations; empty: no rules"
    ] = ""
    running_lanes: Annotated[
        int, NotNegative, "lanes of a device that may run at the same time; 0: the policy decides"
    ] = 0
    share_lanes: Annotated[
        bool,
        "two notebooks of one trust domain may compute at once in one lane, where policy or"
        " running_lanes let several lanes run at once; not on a GPU",
    ] = False
    quantum_seconds: Annotated[
        float,
        Positive,
        "time after which a turn ends at the next boundary if another session waits; sooner for"
        " one that itself gives short turns back",
    ] = 0.25
    half_life_seconds: Annotated[
        float, Positive, "time after which used device time counts half in the fair share"
    ] = 3600.0
    lease_seconds: Annotated[
        float,
        Positive,
        "time that a holder has to yield after a preemption request; then it is overdue",
    ] = 30.0
    aging_seconds: Annotated[
        float,
        NotNegative,
        "aging threshold: after this long waiting for memory, later sessions can no longer be"
        " admitted first",
    ] = 60.0
    boost_seconds: Annotated[
        float,
        NotNegative,
        "interactive boost: seconds of device time for which a new cell has priority; 0 disables"
        " it",
    ] = 0.5
    page_waiting: Annotated[
        bool,
        "also page out queued (not only idle) notebooks to admit a higher-ranked one that has"
        " waited aging_seconds for memory; not on a GPU",
    ] = False
    squeeze: Annotated[
        bool,
        "squeeze notebooks, as far as they agree, so that more of them fit: their iterations take"
        " less memory and more time",
    ] = True
    page_directory: Annotated[
        str, "directory to which persistent memory is paged out; empty: the user's cache directory"
    ] = ""
    page_file_bytes: Annotated[
        int,
        NotNegative,
        "bytes of the file in page_directory to which one notebook's squeezed iterations write; 0:"
        " no limit, but a tenth of the file system stays free",
    ] = 0
    all_page_files_bytes: Annotated[
        int,
        NotNegative,
        "bytes of all such files of the notebooks that have the same page_directory together, in"
        " whole MiB; 0: no limit, but a tenth of the file system stays free",
    ] = 0
    host_capacity_bytes: Annotated[
        int,
        NotNegative,
        "memory shared on the device host; 0: 90 % of this machine's or container's",
    ] = 0
    cuda_context_bytes: Annotated[
        int,
        NotNegative,
        "memory of a GPU that CUDA itself takes in each process, where the driver does not tell",
    ] = 512 << 20
    idle_exit_seconds: Annotated[
        float, NotNegative, "time after which a broker without connections ends; 0: never"
    ] = 600.0
    recovery_seconds: Annotated[
        float,
        NotNegative,
        "after a crash a new broker waits at least this long for old sessions before it grants,"
        " and up to lease_seconds more for those that had turns",
    ] = 0.5
    start_seconds: Annotated[
        float, Positive, "how long a client waits for a broker that it starts"
    ] = 10.0
    report_seconds: Annotated[
        float,
        Positive,
        "interval at which a session reports iterations and memory in a long turn; at the end of a"
        " turn it reports after a tenth of this time",
    ] = 0.5
    cluster_socket: Annotated[
        str, "Unix socket of the service that runs jobs; empty: cluster.sock beside the broker's"
    ] = ""
    cluster_url: Annotated[
        str,
        Meta(pattern=r"^(https?://[^/?#\s]+(/[^?#\s]*)?)?$"),
        "URL of the service of a JupyterHub that takes jobs, for notebooks on machines without"
        " that socket, like https://hub.example/services/gpushare",
    ] = ""
    cluster_directory: Annotated[
        str, "directory of jobs and of their journal; empty: in the user's state directory"
    ] = ""
    cluster_engine: Annotated[
        Engine, "what starts jobs: this machine, the Slurm that it belongs to, or a Ray cluster"
    ] = "local"
    cluster_ray_address: Annotated[
        str,
        "head of the Ray cluster of the engine `ray`, like 10.0.0.5:6379; `auto`: the one that"
        " this machine belongs to",
    ] = "auto"
    cluster_nodes: Annotated[
        str,
        "nodes of the engine `local` and the GPUs of each, like here=4, or here=4/2 where each is"
        " divided into 2 shards for jobs that want a part of one; empty: this machine with its"
        " GPUs, or with one where it has none",
    ] = ""
    cluster_sbatch: Annotated[
        str,
        "options of the engine `slurm` for each job, as sbatch has them, like `--partition=gpu"
        " --account=lab`",
    ] = ""
    cluster_as_user: Annotated[
        str,
        "command with which a service of several users does as one of them what is to be done for"
        " that user's jobs, like `sudo -n -u {user}`; empty: it serves its own user alone. Its"
        " socket has `socket_mode` and `socket_group` then",
    ] = ""
    cluster_jobs_per_user: Annotated[
        int, Positive, "jobs of one user that wait or run, where there are several"
    ] = 1_000
    cluster_policy: Annotated[
        JobPolicy,
        "order of the jobs of one queue: `las`, first come, first served; or `gittins`, by how"
        " likely a job ends within the first of `cluster_bounds` more, judged by the last 1000"
        " jobs",
    ] = "las"
    cluster_bounds: Annotated[
        str,
        Meta(pattern=r"^[0-9]+([.][0-9]+)?( [0-9]+([.][0-9]+)?)*$"),
        "GPU-seconds at which a job goes to the next queue, which comes after all before it, like"
        " `60 3600`; in a queue the first that came is the first",
    ] = "3600"
    cluster_knob: Annotated[
        float,
        NotNegative,
        "a job that has waited for this many times as long as it has computed comes to the first"
        " queue again; 0: none does",
    ] = 8.0
    cluster_least_seconds: Annotated[
        float,
        NotNegative,
        "a job computes for this time before it is asked to yield; free GPUs are kept as long for"
        " the first job that waits, from those behind it that were stopped",
    ] = 30.0
    cluster_most_least_seconds: Annotated[
        float,
        NotNegative,
        "`cluster_least_seconds` grows up to this time, to ten times what it costs"
        " to stop a job and start it again, by the median of the last 20; 0: it does not grow",
    ] = 600.0
    cluster_pending_seconds: Annotated[
        float,
        Positive,
        "a job that has been in the engine's own queue for this time is taken out of it, so that"
        " others are started, and is started again after a while",
    ] = 10.0
    cluster_begin_seconds: Annotated[
        float,
        Positive,
        "a job that the engine runs is given up if it has not begun on each of its nodes after"
        " this time, which includes the start of Python there",
    ] = 60.0
    cluster_look_seconds: Annotated[
        float,
        NotNegative,
        "interval at which the service of jobs looks at them; 0: 5 s on Slurm, whose controller"
        " serves others too, else 1 s",
    ] = 0.0
    cluster_keep_days: Annotated[
        float,
        NotNegative,
        "days for which a finished job is listed and its checkpoints are kept; 0: no limit."
        " Its logs and other files stay",
    ] = 30.0
    cluster_keep_usage_days: Annotated[
        float,
        NotNegative,
        "days for which the GPU time of jobs is kept for reports; 0: no limit",
    ] = 400.0
    max_sessions: Annotated[int, Positive, "sessions that one broker admits at most"] = 20_000
    max_sessions_per_user: Annotated[int, Positive, "sessions that one user may have"] = 1_000
    max_connections_per_user: Annotated[
        int, Positive, "connections to the broker that one user may have, sessions or not"
    ] = 1_000
    max_watchers_per_user: Annotated[
        int, Positive, "connections of one user that may subscribe to changes"
    ] = 250
    messages_per_second: Annotated[
        int, Positive, "messages per second that one connection may send, averaged over ten seconds"
    ] = 20_000


def load(environ: Mapping[str, str] = os.environ, **given: Any) -> Settings:
    """Return settings from `environ`, overridden by `given`. Raises InvalidValue naming the
    setting."""
    values: dict[str, Any] = {
        field: environ[PREFIX + field.upper()]
        for field in Settings.__struct_fields__
        if PREFIX + field.upper() in environ
    }
    values.update({name: value for name, value in given.items() if value is not None})
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError:
        wrong = refusals.in_value(values, Settings, "the settings", strict=False)
        setting = wrong.partition(" ")[0]
        is_found = given.get(setting) is None
        where = f" ({PREFIX}{setting.upper()} in the environment)" if is_found else ""
        raise InvalidValue(f"a setting is wrong: {wrong}{where}") from None


def descriptions() -> dict[str, str]:
    """Return the sentence of each setting."""
    return {
        field.name: next(text for text in get_args(field.type) if isinstance(text, str))
        for field in msgspec.structs.fields(Settings)
    }


def as_environment(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults, for the environment of a child
    process."""
    default = Settings()
    return {
        PREFIX + name.upper(): str(getattr(settings, name))
        for name in Settings.__struct_fields__
        if getattr(settings, name) != getattr(default, name)
    }


def overriding_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of child processes for which these settings hold, whatever they would
    inherit otherwise."""
    names = {PREFIX + name.upper(): name for name in Settings.__struct_fields__}
    inherited = {
        variable: str(getattr(settings, name))
        for variable, name in names.items()
        if variable in os.environ
    }
    return {**inherited, **as_environment(settings)}


def socket_path(settings: Settings) -> Path:
    """Return the path at which the broker listens: the setting, else one in a directory that only
    this user can enter."""
    if settings.socket:
        return Path(settings.socket)
    import platformdirs  # knows XDG_RUNTIME_DIR and its fallbacks better than we would

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fallback in /tmp is checked to be the user's own
        return Path(platformdirs.user_runtime_dir("jupyter-gpushare")) / "broker.sock"


def cluster_socket_path(settings: Settings) -> Path:
    """Return the path at which the service of the user's cluster listens: the setting, else one
    beside the broker."""
    if settings.cluster_socket:
        return Path(settings.cluster_socket)
    return socket_path(settings).with_name("cluster.sock")


def cluster_directory(settings: Settings) -> Path:
    """Return the directory of jobs and their journal: the setting, else one in the user's state
    directory."""
    if settings.cluster_directory:
        return Path(settings.cluster_directory)
    import platformdirs

    return Path(platformdirs.user_state_dir("jupyter_gpushare")) / "cluster"


def accounts_path(settings: Settings) -> Path:
    """Return the path of the accounts: the setting, else one in the state directory of the broker's
    user."""
    if settings.accounts:
        return Path(settings.accounts)
    import platformdirs

    return Path(platformdirs.user_state_dir("jupyter_gpushare")) / "accounts.sqlite"


def scheduler_rules(settings: Settings) -> _core.Rules:
    """Return the settings that the scheduler reads, for one device."""
    from . import _core

    rules = {name.removesuffix("_seconds"): value for name, value in asdict(settings).items()}
    return _core.Rules(**{name: rules[name] for name in _core.Rules.names})
