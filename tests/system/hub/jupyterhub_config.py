"""The class of examples/hub, with a stranger in it, and a service by which tests ask the hub."""

import os

c = get_config()  # noqa: F821  # JupyterHub calls us with it
load_subconfig(os.environ["CLASS_CONFIG"])  # noqa: F821

# a user that may log in and have a server, and has no scope for the devices
c.Authenticator.allowed_users |= {"eve"}

# A hub does not give its TMPDIR to servers by itself, and tests have to notice what servers leave
# behind.
c.Spawner.environment["TMPDIR"] = os.environ["TMPDIR"]

c.JupyterHub.services.append({"name": "tests", "api_token": os.environ["CLASS_TESTS_TOKEN"]})
c.JupyterHub.load_roles.append(
    {
        "name": "tests",
        "services": ["tests"],
        "scopes": ["admin:users", "admin:servers", "tokens", "access:servers"],
    }
)

c.JupyterHub.cleanup_servers = False  # users' servers outlive a restart of the hub
c.ConfigurableHTTPProxy.check_running_interval = 1
c.Spawner.default_url = "/api"  # no page is opened
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.JupyterHub.concurrent_spawn_limit = 3
