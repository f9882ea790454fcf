"""A class on one machine: three students, a teacher and an admin share its device.

`python start.py` runs it. First come the lines that any hub needs to share its devices. Below them
is the configuration of this class, which is only for trying things out: all users log in with the
same password, and all servers run as the Unix user that started the hub. A real hub has its own
lines there.
"""

import os
import sys
from pathlib import Path

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub's
RULES = os.environ.get("CLASS_RULES", Path(__file__).with_name("rules.toml"))
HOME = Path(os.environ.get("CLASS_HOME", "/srv/class"))

# --- jupyter_gpushare -----------------------------------------------------------------------------

gpushare = {"JUPYTER_GPUSHARE_SOCKET": str(HOME / "run" / "broker.sock")}
c.Spawner.environment = gpushare
c.JupyterHub.services = [
    {
        "name": "gpushare",
        "display": True,  # in the hub's menu of services
        "url": os.environ.get("CLASS_SERVICE_URL", "http://127.0.0.1:18090"),
        "command": [sys.executable, "-m", "jupyter_gpushare_server.hub_service"],
        "environment": {
            **gpushare,
            "JUPYTER_GPUSHARE_RULEBOOK": str(RULES),
            "JUPYTER_GPUSHARE_ACCOUNTS": str(HOME / "run" / "accounts.sqlite"),
        },
        "oauth_no_confirm": True,
        # without these a browser's token has none of our scopes
        "oauth_client_allowed_scopes": ["custom:gpushare:read", "custom:gpushare:admin"],
    }
]
c.JupyterHub.custom_scopes = {
    "custom:gpushare:read": {"description": "See who shares the devices"},
    "custom:gpushare:admin": {
        "description": "Change how the devices are shared",
        "subscopes": ["custom:gpushare:read"],
    },
}
VISIT = "access:services!service=gpushare"
c.JupyterHub.load_roles = [
    {"name": "user", "scopes": ["self", VISIT]},
    {"name": "gpu-users", "groups": ["students", "teachers"], "scopes": ["custom:gpushare:read"]},
    {"name": "gpu-admin", "users": ["admin"], "scopes": ["custom:gpushare:admin"]},
    # the rights of a server's token, as far as its user has them
    {
        "name": "server",
        "scopes": ["users:activity!user", "access:servers!server", VISIT, "custom:gpushare:read"],
    },
]

# --- the class ------------------------------------------------------------------------------------

c.JupyterHub.load_groups = {
    "students": {"users": ["ada", "ben", "cleo"]},
    "teachers": {"users": ["tess"]},
}
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ.get("CLASS_PASSWORD", "class")
c.Authenticator.allowed_users = {"ada", "ben", "cleo", "tess"}
c.Authenticator.admin_users = {"admin"}

c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = str(HOME / "homes" / "{username}")
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"] if os.getuid() == 0 else []
c.Spawner.default_url = "/lab"

c.JupyterHub.bind_url = os.environ.get("CLASS_URL", "http://127.0.0.1:8000")
c.JupyterHub.hub_bind_url = os.environ.get("CLASS_HUB_URL", "http://127.0.0.1:8081")
c.ConfigurableHTTPProxy.api_url = os.environ.get("CLASS_PROXY_API_URL", "http://127.0.0.1:8001")
c.ConfigurableHTTPProxy.pid_file = str(HOME / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{HOME / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(HOME / "cookie_secret")
