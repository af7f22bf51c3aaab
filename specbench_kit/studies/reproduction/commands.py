"""The commands of experiments, each loaded when an experiment needs it: arithmetic need not wait for a decoder."""

from dataclasses import fields

from specbench_kit.studies.reproduction.grid import ExperimentCommand

COMMANDS = ("simulate", "capacity", "bench", "train", "profile", "law")


def find_command(name: str) -> ExperimentCommand:
    """Return the function that runs experiments of a command."""
    if name == "law":
        from specbench_kit.studies.reproduction.laws import law

        return law
    if name == "profile":
        from specbench_kit.studies.reproduction.profiling import profile

        return profile
    if name == "train":
        from specbench_kit.studies.reproduction.training import train

        return train
    if name == "bench":
        from specbench_kit.studies.reproduction.decoding import bench

        return bench
    from specbench_kit.studies.reproduction import serving

    return {"simulate": serving.simulate, "capacity": serving.capacity}[name]


def option_names(name: str) -> frozenset[str]:
    """Return the names of the options of a command's experiments."""
    if name == "law":
        return frozenset({"series"})
    if name == "profile":
        return frozenset({"series", "seeds"})
    if name == "train":
        from specbench_kit.studies.reproduction.training import PredictorExperiment

        return frozenset({field.name for field in fields(PredictorExperiment)} | {"seeds"})
    if name == "bench":
        from specbench_kit.studies.reproduction.decoding import DecodingExperiment

        return frozenset({field.name for field in fields(DecodingExperiment)} | {"seeds"})
    from specbench_kit.studies.reproduction import serving

    return frozenset(serving.OPTIONS if name == "simulate" else serving.OPTIONS | serving.RULE)
