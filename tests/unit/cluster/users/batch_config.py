"""The hub of `batch.py`: the hub of tests/system/hub, but a Slurm starts the servers of its
users."""

import os

import batchspawner  # whose route takes the ports of servers

c = get_config()  # noqa: F821  # JupyterHub calls us with it
load_subconfig(os.environ["BATCH_CLASS"])  # noqa: F821
PLACE, USERS = os.environ["BATCH_PLACE"], os.environ["BATCH_USERS"].split()

# --- what docs/how-to/jobs.md says ----------------------------------------------------------------

service = c.JupyterHub.services[0]
service["environment"]["JUPYTER_GPUSHARE_CLUSTER_SOCKET"] = os.environ["BATCH_SOCKET"]
c.Spawner.environment = {
    "JUPYTER_GPUSHARE_CLUSTER_URL": f"{os.environ['CLASS_URL']}/services/gpushare",
    "JUPYTER_GPUSHARE_CLUSTER_DIRECTORY": lambda spawner: f"{PLACE}/{spawner.user.name}/jobs",
}

# --- this site ------------------------------------------------------------------------------------

c.JupyterHub.spawner_class = batchspawner.SlurmSpawner
c.SlurmSpawner.exec_prefix = "sudo -E -u {username}"
c.SlurmSpawner.batch_script = f"""#!/bin/bash
#SBATCH --job-name=server
#SBATCH --output={PLACE}/{{{{username}}}}/server.log
#SBATCH --chdir={PLACE}/{{{{username}}}}
#SBATCH --export={{{{keepvars}}}}
export HOME={PLACE}/{{{{username}}}} GPUSHARE_ADDRESS=127.0.0.1
{{{{cmd}}}}
"""
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"  # where all nodes are
c.Spawner.env_keep.append("SLURM_CONF")  # a site's is in /etc
c.Spawner.cmd = [os.environ["BATCH_SINGLEUSER"]]
c.BatchSpawnerBase.batchspawner_singleuser_cmd = os.environ["BATCH_WRAPPER"]
c.Spawner.args = []
c.Authenticator.allowed_users = {*USERS}
c.JupyterHub.load_groups = {"students": {"users": USERS}}
