"""Stages `align` and `control`: train the drafters of one arm, one for each seed.

Both arms take the same steps from the same start, with the same optimiser, on the same inputs in the same batches; only the
targets differ. The aligned drafters learn from the large model (BiLD, section 3.5.1; DistillSpec). The unaligned ones are their
control and learn from the references of the corpus.

`python -m tasks.align --task translation --arm aligned`
"""

from __future__ import annotations

import dataclasses
from functools import partial

from tasks.alignment.calibration_set import LOGITS
from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import CONTROL, alignment_spec, describe_method, start_model
from tasks.config import Task, load, task_parser
from tasks.errors import stage
from tasks.files import remove
from tasks.machine import MachineSettings
from tasks.paths import ARMS, TaskPaths
from tasks.training import distributed
from tasks.training.stage import TrainingJob, train_stage


def main() -> None:
    """Read `params.yaml` and the calibration set; write the drafters of an arm."""
    parser = task_parser(__doc__)
    parser.add_argument("--arm", default="aligned", choices=ARMS, help="which arm to train (default: %(default)s)")
    distributed.add_arguments(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, machine = params.task(arguments.task), params.machine
    distributed.run(machine, arguments.nproc, lambda: _train(arguments.arm, task, machine, paths))


def _train(arm: str, task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    """Train the drafter of each seed; those that an interrupted run has finished are kept, those of other seeds removed."""
    if distributed.is_main():
        kept = {str(seed) for seed in task.seeds}
        for folder in (paths.model(arm), paths.training_log(arm, task.seeds[0]).parent):
            for other in folder.iterdir() if folder.is_dir() else ():
                if kept.isdisjoint(other.name.split(".")):  # another process may be writing `.partial.1`
                    remove(other)
    for seed in task.seeds:
        settings = dataclasses.replace(task.align if arm == "aligned" else task.align.control, seed=seed)
        job = alignment_job(arm, settings, task, machine, paths)
        train_stage(job, partial(alignment_spec, settings=settings, large_folder=paths.model("large")))


def alignment_job(arm: str, settings: AlignSettings, task: Task, machine: MachineSettings, paths: TaskPaths) -> TrainingJob:
    """Return the training of one drafter of an arm."""
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
        files=(paths.calibration / LOGITS,) if settings.reads_stored else (),
        code=("alignment", "training", "decoding", "models"),
        batched_like=None if aligned else paths.calibration_set,
        seed=settings.seed,
    )


if __name__ == "__main__":
    with stage(), distributed.as_rank():
        main()
