"""Stage `align`: the small model, from the same start, trained on the large model's outputs (BiLD, section 3.5.1).

`python -m tasks.align --task translation`
"""

from __future__ import annotations

from tasks.errors import stage
from tasks.paths import TaskPaths
from tasks.training.stage import train_stage


def main() -> None:
    """Reads `params.yaml` and the calibration set, writes the aligned drafter."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    train_stage(
        name="aligned",
        stage="align",
        paths=paths,
        model=task.models.small,
        training=task.align,
        text=task.text,
        machine=params.machine,
        train_file=paths.calibration_set,
        held_out_file=paths.held_out_calibration,
        large=paths.model("large"),
    )


if __name__ == "__main__":
    with stage():
        main()
