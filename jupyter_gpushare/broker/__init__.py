"""The broker: endpoint (sockets, credentials) <-> service (messages, deadlines) -> Scheduler.

One process per host. It imports the C++ core, and never jupyter_server, IPython or torch.
"""
