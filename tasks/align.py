"""Stages `align` and `control`: train the drafters of one arm, one for each seed.

Both arms take the same steps from the same start, with the same optimiser, on the same inputs in the same batches; only the
targets differ. The aligned drafters learn from the large model (BiLD, section 3.5.1; DistillSpec). The unaligned ones are their
control and learn from the references of the corpus.

`python -m tasks.align --task translation --arm aligned`
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from tasks.errors import stage
from tasks.files import remove
from tasks.paths import ARMS, TaskPaths
from tasks.training import launch

if TYPE_CHECKING:
    from tasks.alignment.settings import AlignSettings
    from tasks.machine import MachineSettings
    from tasks.schema import Task
    from tasks.training.context import TrainingJob


def main() -> None:
    """Read `params.yaml` and the calibration set; write the drafters of an arm."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--arm", default="aligned", choices=ARMS, help="which arm to train (default: %(default)s)")
    launch.add_arguments(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, machine = params.task(arguments.task), launch.with_overrides(params.machine, arguments)
    launch.run(machine, lambda: _train(arguments.arm, task, machine, paths))


def _train(arm: str, task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    """Train the drafter of each seed; those that an interrupted run has finished are kept, those of other seeds removed."""
    # Imported here: a process that only launches others does not need them.
    from tasks.alignment.spec import alignment_spec
    from tasks.training import distributed
    from tasks.training.stage import train_stage

    if distributed.is_main():
        kept = {str(seed) for seed in task.seeds}
        for folder in (paths.model(arm), paths.training_log(arm, task.seeds[0]).parent):
            for other in folder.iterdir() if folder.is_dir() else ():
                if other.stem not in kept:
                    remove(other)
    for seed in task.seeds:
        settings = dataclasses.replace(task.align if arm == "aligned" else task.align.control, seed=seed)
        job = _job(arm, settings, task, machine, paths)
        train_stage(job, partial(alignment_spec, settings=settings, large_folder=paths.model("large")))


def _job(arm: str, settings: AlignSettings, task: Task, machine: MachineSettings, paths: TaskPaths) -> TrainingJob:
    from tasks.alignment.description import CONTROL, describe_method
    from tasks.alignment.spec import start_model
    from tasks.alignment.stored import FOLDER
    from tasks.training.context import TrainingJob

    aligned = arm == "aligned"
    return TrainingJob(
        name=arm,
        stage="align" if aligned else "control",
        paths=paths,
        model=start_model(settings, task.models.small, paths.model("small")),
        training=settings,
        text=task.text,
        machine=machine,
        metric=task.metric,
        train_file=paths.calibration_set if aligned else paths.control_set,
        held_out_file=paths.held_out_calibration,
        method=describe_method(settings) if aligned else CONTROL,
        teachers=(paths.model("large"),),
        files=(paths.calibration / FOLDER,) if settings.reads_stored else (),
        code=("alignment", "training", "decoding", "models"),
        batched_like=None if aligned else paths.calibration_set,
        seed=settings.seed,
    )


if __name__ == "__main__":
    with stage(), launch.as_rank():
        main()
