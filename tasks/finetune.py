"""Stage `finetune`: the small or the large model, trained on the corpus.

`python -m tasks.finetune --task translation --model large`
"""

from __future__ import annotations

from tasks.errors import stage
from tasks.paths import TaskPaths
from tasks.training.stage import train_stage


def main() -> None:
    """Reads `params.yaml` and the corpus, writes the trained model."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--model", required=True, choices=("small", "large"))
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    train_stage(
        name=arguments.model,
        stage="finetune",
        paths=paths,
        model=getattr(task.models, arguments.model),
        training=getattr(task.finetune, arguments.model),
        text=task.text,
        machine=params.machine,
        train_file=paths.split("train"),
        held_out_file=paths.split("validation"),
    )


if __name__ == "__main__":
    with stage():
        main()
