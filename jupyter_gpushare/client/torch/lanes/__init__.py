"""The lanes of iterations on `host` and on GPUs, and the pager of what persists."""
