"""Stage `finetune`: train the small or the large model on the corpus, in one process or several.

`python -m tasks.finetune --task translation --model large`
"""

from __future__ import annotations

from tasks.config import Task, load, task_parser
from tasks.console import log
from tasks.errors import stage
from tasks.files import atomic_folder, atomic_write
from tasks.machine import MachineSettings
from tasks.models.layers import check_layers
from tasks.models.settings import LayersSettings
from tasks.paths import TaskPaths
from tasks.training import distributed
from tasks.training.data import DatasetSource
from tasks.training.stage import TrainingContext, TrainingJob, TrainingSpec, train_stage

_CHECKED = 200
"""Validation examples whose outputs are compared with trivial baselines after training; they take about a second."""


def main() -> None:
    """Read `params.yaml` and the corpus; write the trained model."""
    parser = task_parser(__doc__)
    parser.add_argument("--model", required=True, choices=("small", "large"))
    distributed.add_arguments(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, machine = params.task(arguments.task), params.machine
    distributed.run(machine, arguments.nproc, lambda: _train(arguments.model, task, machine, paths))


def _train(model: str, task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    layers = task.models.small.from_large
    if model == "small" and layers is not None:
        if distributed.is_main():
            _leave_to_alignment(layers, paths)
        return
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
        if model == "large" and layers is not None:
            check_layers(context.model, layers)
        return TrainingSpec(DatasetSource(context.examples, context.job.training))

    train_stage(job, make_spec)


def _leave_to_alignment(layers: LayersSettings, paths: TaskPaths) -> None:
    """Write where the drafters of this task begin: a training of the small model here would wait for the large one's."""
    named = ", ".join(map(str, layers.layers))
    note = (
        f"# {paths.task}: small\n\nNo model is trained here. Stages control and align make the drafters of layers {named} of "
        f"{paths.model('large').as_posix()} (models.small.from_large).\n"
    )
    with atomic_folder(paths.model("small")) as folder:
        (folder / "README.md").write_text(note, encoding="utf-8")
    log_file = paths.training_log("small")
    log_file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(log_file, "step,loss\n")
    log.info("%s/small: nothing to train, since drafters begin with layers %s of the large model", paths.task, named)


if __name__ == "__main__":
    with stage(), distributed.as_rank():
        main()
