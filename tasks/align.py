"""Stage `align`: train the small model to be accepted by the large one (BiLD, section 3.5.1; DistillSpec).

`python -m tasks.align --task translation`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.errors import stage
from tasks.paths import TaskPaths
from tasks.training import launch

if TYPE_CHECKING:
    from tasks.config import Task
    from tasks.machine import MachineSettings


def main() -> None:
    """Read `params.yaml` and the calibration set; write the aligned drafter."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    launch.add_arguments(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, machine = params.task(arguments.task), launch.with_overrides(params.machine, arguments)
    launch.run(machine, lambda: _train(task, machine, paths))


def _train(task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    # Imported here: a process that only launches others does not need them.
    from tasks.alignment.description import describe_method
    from tasks.alignment.spec import alignment_spec, start_model
    from tasks.alignment.stored import FOLDER
    from tasks.training.context import TrainingJob
    from tasks.training.stage import train_stage

    job = TrainingJob(
        name="aligned",
        stage="align",
        paths=paths,
        model=start_model(task.align, task.models.small, paths.model("small")),
        training=task.align,
        text=task.text,
        machine=machine,
        metric=task.metric,
        train_file=paths.calibration_set,
        held_out_file=paths.held_out_calibration,
        method=describe_method(task.align),
        teachers=(paths.model("large"),),
        files=(paths.calibration / FOLDER,) if task.align.reads_stored else (),
        code=("alignment", "training", "decoding", "models"),
    )
    train_stage(job, lambda context: alignment_spec(context, task.align, paths.model("large")))


if __name__ == "__main__":
    with stage(), launch.as_rank():
        main()
