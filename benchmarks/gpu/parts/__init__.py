"""Parts of `benchmarks/gpu.sh`, each run by `python -m gpu.parts.NAME`."""
