"""MLflow's tracking: parameters, metrics and reports of a run, in a store of files or on a
server.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.studies.interchange.base import Format, formats
from specbench_kit.studies.interchange.numbers import (
    load_package,
    numbers_of,
    parameters_of,
    title_of,
)

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

LONGEST = 500
"""Characters of a parameter that MLflow accepts."""


@formats.register("mlflow")
class MLflow(Format):
    """One MLflow run for a run directory, in an experiment named after the dataset.

    It goes to the server that MLFLOW_TRACKING_URI names, or else into a database in the folder
    `out`.
    """

    summary = "a run with parameters, metrics and reports in MLflow's tracking (extra mlflow)"
    tool = "MLflow"

    def save(self, run: "RunDirectory", out: Path) -> None:
        client_type = load_package("mlflow").MlflowClient
        out.mkdir(parents=True, exist_ok=True)
        server = os.environ.get("MLFLOW_TRACKING_URI")
        uri = server or f"sqlite:///{(out / 'mlflow.db').resolve()}"
        artifacts = None if server else (out / "artifacts").resolve().as_uri()
        client, (experiment_name, run_name) = client_type(tracking_uri=uri), title_of(run)
        experiment = client.get_experiment_by_name(experiment_name)
        number = (
            experiment.experiment_id
            if experiment
            else client.create_experiment(experiment_name, artifacts)
        )
        run_id = client.create_run(number, run_name=run_name).info.run_id
        for key, value in parameters_of(run).items():
            client.log_param(run_id, key, value[:LONGEST])
        for key, figure in numbers_of(run).items():
            client.log_metric(run_id, key, figure)
        for file in ("report.md", "summary.json"):
            if (run.path / file).is_file():
                client.log_artifact(run_id, str(run.path / file))
        client.set_terminated(run_id)
