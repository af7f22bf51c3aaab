"""Packages that only some commands need, and the extra of this distribution that installs each of
them.
"""

EXTRA_OF_MODULE = {
    "grpc": "live",
    "grpc_health": "live",
    "grpc_reflection": "live",
    "google": "live",
    "httpx": "live",
    "httpx_sse": "live",
    "prometheus_client": "live",
    "lightgbm": "trees",
    "llguidance": "constrained",
    "xgboost": "trees",
    "llama_cpp": "llama-cpp",
    "mlflow": "mlflow",
    "ray": "ray",
    "aiconfigurator_core": "silicon",
    "wandb": "wandb",
}
"""The extra by the name of a top-level Python module."""
PURPOSES = {
    "live": "work with servers: skit serve, skit load, skit profile-server, skit bench --server, skit ab, skit why",
    "trees": "training predictors of the families xgboost and lightgbm",
    "constrained": "outputs that follow a grammar: skit bench --constraint",
    "llama-cpp": "the comparison with llama.cpp in make benchmark",
    "mlflow": "skit export --format mlflow",
    "ray": "--backend ray of skit simulate, capacity, plan and sweep",
    "silicon": "skit profile-verifier --from silicon for models whose kernels do not come with the kit",
    "wandb": "skit export --format wandb",
}
"""What each extra is for."""


def missing_module_line(module: str) -> str | None:
    """Return the one line that names the extra for a module that is not installed, or None for a
    module of no extra.
    """
    name = module.partition(".")[0]
    extra = EXTRA_OF_MODULE.get(name)
    if extra is None:
        return None
    return f"the package {name} is not installed: pip install 'specbench-kit[{extra}]', which is for {PURPOSES[extra]}"
