"""Stage `finetune`: train the small or the large model on the corpus, in one process or several.

`python -m tasks.finetune --task translation --model large`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.errors import stage
from tasks.paths import TaskPaths
from tasks.training import launch

if TYPE_CHECKING:
    from tasks.config import Task
    from tasks.machine import MachineSettings

_CHECKED = 200
"""Validation examples whose outputs are compared with trivial baselines after training; they take about a second."""


def main() -> None:
    """Read `params.yaml` and the corpus; write the trained model."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--model", required=True, choices=("small", "large"))
    launch.add_arguments(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, machine = params.task(arguments.task), launch.with_overrides(params.machine, arguments)
    launch.run(machine, lambda: _train(arguments.model, task, machine, paths))


def _train(model: str, task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    # Imported here: a process that only launches others does not need them.
    from tasks.training.context import TrainingContext, TrainingJob
    from tasks.training.loop import EvaluationData
    from tasks.training.sources import DatasetSource
    from tasks.training.stage import TrainingSpec, train_stage

    job = TrainingJob(
        name=model,
        stage="finetune",
        paths=paths,
        model=getattr(task.models, model),
        training=getattr(task.finetune, model),
        text=task.text,
        machine=machine,
        metric=task.metric,
        train_file=paths.split("train"),
        held_out_file=paths.split("validation"),
        checked=_CHECKED,
    )

    def make_spec(context: TrainingContext) -> TrainingSpec:
        return TrainingSpec(DatasetSource(context.examples, job.training), EvaluationData(context.held_out))

    train_stage(job, make_spec)


if __name__ == "__main__":
    with stage(), launch.as_rank():
        main()
