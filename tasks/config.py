"""`params.yaml` as one typed schema: it collects the settings of all packages, and says in one line what is wrong in a file.

`python -m tasks.config` checks a file and counts the points of each grid. `--table` prints every setting with its description,
`--presets` the ranges from the papers that a grid may name, `--methods` the decoding methods and the drafters.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from tasks.alignment.settings import AlignSettings, CalibrateSettings
from tasks.consistency import check_task
from tasks.console import add_json, answer, command_parser, markdown_table, without_secrets
from tasks.corpora.settings import CorpusSettings
from tasks.decoding.method import DRAFTERS, MethodSpec
from tasks.decoding.registry import METHODS
from tasks.errors import InputError, stage
from tasks.evaluation.scoring.metrics import MetricSettings, metric_of
from tasks.evaluation.settings import Experiment, GridSettings, SweepSettings
from tasks.evaluation.sweep.grid import expand, expand_entry
from tasks.machine import MachineSettings
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.settings import SEEDS, bounds_text, first_error
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPair(_Strict):
    """The small and the large model of a task."""

    small: ModelSettings = Field(default_factory=lambda: ModelSettings(d_model=64, d_ff=192, heads=2, decoder_layers=1))
    large: ModelSettings = Field(default_factory=ModelSettings)


class FinetunePair(_Strict):
    """How each of the two models is trained on the corpus."""

    small: TrainingSettings = Field(default_factory=TrainingSettings)
    large: TrainingSettings = Field(default_factory=TrainingSettings)


class Task(_Strict):
    """One corpus, one pair of models, one sweep."""

    seeds: tuple[int, ...] = Field(
        default=(1,),
        description="Drafters of both arms are trained once for each seed, which orders their batches and draws dropout. The "
        "first one is swept over the whole grid.",
        min_length=1,
    )
    metric: str = Field(description="Quality metric by which operating points are chosen: a name, or the settings below.")
    run_generated_code: bool = Field(
        default=False,
        description="Allows the metric pass_at_1 to run outputs as programs on this machine, see `docs/operations.md`.",
    )
    corpus: CorpusSettings = Field(default_factory=CorpusSettings)
    text: TextSettings = Field(default_factory=TextSettings)
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    models: ModelPair = Field(default_factory=ModelPair)
    finetune: FinetunePair = Field(default_factory=FinetunePair)
    calibrate: CalibrateSettings = Field(default_factory=CalibrateSettings)
    align: AlignSettings = Field(default_factory=AlignSettings)
    sweep: SweepSettings = Field(default_factory=SweepSettings)

    @field_validator("metric", mode="before")
    @classmethod
    def _full_name(cls, value: object) -> str:
        """The full name of the metric, which sections and stages take (`tasks.evaluation.scoring.metrics`)."""
        if isinstance(value, str):
            return str(metric_of(value))
        try:
            return str(TypeAdapter(MetricSettings).validate_json(json.dumps(value), strict=True))
        except ValidationError as error:
            raise ValueError(first_error(error, MetricSettings.__annotations__)) from None


class Params(_Strict):
    """The whole file."""

    active: dict[str, Path] = Field(description="Tasks that dvc repro runs, each with the source of its text.", min_length=1)
    inactive: dict[str, Path] = Field(default_factory=dict, description="Tasks that it does not run, in the same form.")
    machine: MachineSettings = Field(default_factory=MachineSettings)
    tasks: dict[str, Task] = Field(description="Named tasks.", min_length=1)

    def task(self, name: str) -> Task:
        """Return the task of that name.

        Raises:
            InputError: there is no such task.
        """
        if name not in self.tasks:
            raise InputError(f"params.yaml has no task {name!r}; it has {', '.join(self.tasks)}")
        return self.tasks[name]

    def corpus_source(self, name: str) -> Path:
        """The folder of the user's files or of the code of an embedded corpus, or the lock file of the hub."""
        return {**self.inactive, **self.active}[name]

    def experiment(self, name: str) -> Experiment:
        """What decides which numbers of the papers compare with those of a task."""
        corpus, models = self.task(name).corpus, self.task(name).models
        # A folder may hold anything: there, only the setting says what it is.
        dataset = corpus.dataset if self.corpus_source(name).is_dir() else corpus.published
        small, large = models.small.pretrained or "", models.large.pretrained or ""
        return Experiment(dataset=dataset, paper=corpus.paper, small=small, large=large)


DEFAULT = Path("params.yaml")
_NAME = re.compile("[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}")
"""Of a task."""


def load(path: Path = DEFAULT) -> Params:
    """Read and check a parameter file.

    Raises:
        InputError: the file is missing or wrong; names the file, the field and the fix.
    """
    try:
        return check(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise InputError(f"no {path} here; run from the repository root or give --params") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a file with --params") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not YAML: {error}") from None


def check_for_dvc(path: Path = DEFAULT) -> None:
    """Check a parameter file before DVC reads it, which would print a secret, and miss a setting after its stage has run.

    Raises:
        InputError: a URL holds a secret, or `machine` lacks a setting that `dvc.yaml` beside it lists.
    """
    if not path.is_file():
        return
    text, graph = path.read_text(encoding="utf-8", errors="replace"), path.with_name("dvc.yaml")
    _refuse_secrets(text, path.name)
    listed = re.findall(r"\bmachine\.(\w+)", graph.read_text(encoding="utf-8")) if graph.is_file() else []
    with contextlib.suppress(yaml.YAMLError, AttributeError):  # a file of another form is refused when it is loaded
        machine = yaml.safe_load(text).get("machine") or {}
        for name in listed:
            if name not in machine:
                fix = f"add {name}: {getattr(MachineSettings(), name)}"
                raise InputError(f"{path.name}: machine has no {name}, which dvc.yaml lists; {fix}")


def _refuse_secrets(text: str, path: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        if without_secrets(line) != line:
            fix = "remove it, as git keeps this file; give it by an environment variable or by a credential helper"
            raise InputError(f"{path}, line {number}: a URL holds a user, a password or a token; {fix}")


def check(text: str, path: str, *, lines: bool = True) -> Params:
    """Check the text of a parameter file.

    Args:
        text: What the file holds.
        path: Its name in messages.
        lines: Whether messages name the line; not where the text was changed since it was read.

    Raises:
        InputError: the text is wrong; names the file, the field and the fix.
    """
    _refuse_secrets(text, path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if twice := _named_twice(node):
            fix = "rename one"
            raise InputError(f"{path}, line {twice[1]}: {twice[0]} is there a second time, and would replace the first; {fix}")
        plain = json.dumps(None if node is None else loader.construct_document(node), default=str)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:  # a tag that its value does not fit
        raise InputError(f"{path} holds more than names, values and lists of them: {error}; write those alone") from None
    try:
        # Strict: neither true nor "3" is a number. As JSON, where a list is a tuple and a text a path all the same.
        params = Params.model_validate_json(plain, strict=True)
    except ValidationError as error:
        location = error.errors()[0]["loc"]
        line = f", line {line_of(text, location)}" if lines else ""
        raise InputError(f"{path}{line}: {first_error(error, _names())}") from None
    listed = {*params.active, *params.inactive}
    for wrong, said in (
        (listed - params.tasks.keys(), "under active or inactive, but not under tasks; add it there, or correct its name"),
        (params.tasks.keys() - listed, "under tasks, but neither under active nor inactive; add it to one"),
        (params.active.keys() & params.inactive, "both under active and inactive; remove one"),
    ):
        for name in sorted(wrong):
            raise InputError(f"{path}: {name!r:.60} is {said}")
    for name, task in params.tasks.items():
        # It stands in commands of a shell, in paths and in DVC's names.
        if not _NAME.fullmatch(name):
            rule = "a letter or digit, then at most 63 of a to z, A to Z, 0 to 9, _ and -"
            raise InputError(f"{path}: tasks: {name!r:.60} is no name of a task; write {rule}")
        _check_seeds(task, f"{path}: tasks.{name}")
        for index, grid in enumerate(task.sweep.grid):
            try:
                list(expand_entry(grid))
            except InputError as error:
                raise InputError(f"{path}: tasks.{name}.sweep.grid.{index}: {error}") from None
        try:
            check_task(task, params.machine)
        except InputError as error:
            raise InputError(f"{path}: tasks.{name}.{error}") from None
    return params


def _check_seeds(task: Task, location: str) -> None:
    if len(set(task.seeds)) < len(task.seeds) or min(task.seeds) < 0 or max(task.seeds) > SEEDS:
        raise InputError(f"{location}.seeds: {list(task.seeds)} must be different numbers from 0 to {SEEDS}")
    if task.align.seed:
        raise InputError(f"{location}.align.seed: drafters are trained once for each of seeds; remove it and set seeds instead")


Location = Sequence[int | str]
"""The keys and indices on the way to a setting."""


def line_of(text: str, location: Location) -> int:
    """The line of a YAML text, counted from 1, where a setting stands, or else the innermost one around it that is there."""
    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for part in location:
        found = next((pair for pair in reversed(_children(node)) if pair[0] == part), None)
        if found is None:
            break
        _, line, node = found
    return line


def _named_twice(node: yaml.Node | None) -> tuple[str, int] | None:
    """A key that a mapping holds twice, and the line of the second one."""
    seen = set()
    for name, line, value in _children(node):
        if isinstance(node, yaml.MappingNode) and name in seen:
            return str(name), line
        seen.add(name)
        if found := _named_twice(value):
            return found
    return None


def _children(node: yaml.Node | None) -> list[tuple[int | str, int, yaml.Node]]:
    """Key or index, line and value of what a node holds."""
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, value.start_mark.line + 1, value) for index, value in enumerate(node.value)]
    return []


def _names() -> set[str]:
    """The names of all settings, in whichever section."""
    whole = Params.model_json_schema()
    return {name for section in (whole, *whole["$defs"].values()) for name in section.get("properties", ())}


def table() -> str:
    """Return a Markdown table of all settings: name, default, unit, bounds, description."""
    lines = [*markdown_table(["setting", "default", "bounds", "meaning"], []), "| **tasks.*** | | | |"]
    described = {name: field for name, field in Task.model_fields.items() if field.description}
    for name, field in described.items():
        value = list(field.default) if isinstance(field.default, tuple) else field.default
        default = "required" if field.is_required() else f"`{value}`"
        lines.append(f"| `{name}` | {default} | | {field.description} |")
    sections: dict[str, type[DataclassInstance]] = {
        "machine": MachineSettings,
        "tasks.*.metric": MetricSettings,
        "tasks.*.corpus": CorpusSettings,
        "tasks.*.text": TextSettings,
        "tasks.*.tokenizer": TokenizerSettings,
        "tasks.*.models.{small,large}": ModelSettings,
        "tasks.*.{finetune.small,finetune.large,align}": TrainingSettings,
        "tasks.*.align": AlignSettings,
        "tasks.*.calibrate": CalibrateSettings,
        "tasks.*.sweep": SweepSettings,
        "tasks.*.sweep.grid.*": GridSettings,
        **{f"grid values of {name}": spec.settings for name, spec in METHODS.items() if dataclasses.fields(spec.settings)},
    }
    for section, kind in sections.items():
        lines.append(f"| **{section}** | | | |")
        inherited = dataclasses.fields(TrainingSettings) if kind is AlignSettings else ()
        lines.extend(row for row in _rows(kind, "") if not any(row.startswith(f"| `{field.name}` ") for field in inherited))
    return "\n".join(lines)


def _rows(kind: type[DataclassInstance], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        parts = (hints[field.name], *typing.get_args(hints[field.name]))
        inner = next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)
        if inner is not None and typing.get_origin(hints[field.name]) is not list:
            yield from _rows(inner, f"{prefix}{field.name}.")
            continue
        yield f"| `{prefix}{field.name}` | {_default(field)} | {_bounds(field)} | {field.metadata['description']} |"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default}`"
    if field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory()
    if isinstance(value, list) and value and isinstance(value[0], GridSettings):
        return ", ".join(f"`{entry.method}` by `{entry.preset}`" for entry in value)
    return f"`{value}`"


def _bounds(field: dataclasses.Field[object]) -> str:
    bounds = bounds_text(field.metadata["bounds"])
    choices = ", ".join(map(str, field.metadata["choices"]))
    return " ".join(part for part in (bounds, choices, field.metadata["unit"]) if part)


def presets_table() -> str:
    """All presets of grids as a Markdown table."""
    rows = []
    for method, spec in METHODS.items():
        for name, preset in spec.presets.items():
            values = "; ".join(f"`{key}` {', '.join(map(_short, given))}" for key, given in preset.values.items())
            points = math.prod(len(given) for given in preset.values.values())
            rows.append([f"`{method}`", f"`{name}`", str(points), values, preset.source])
    return "\n".join(markdown_table(["method", "preset", "points", "values", "source"], rows))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def methods_table() -> str:
    """All methods as a Markdown table; the choices of a setting are too long for a cell, and stand in the table of settings."""

    def settings(method: MethodSpec) -> str:
        bounds = {field.name: bounds_text(field.metadata["bounds"]) for field in dataclasses.fields(method.settings)}
        return ", ".join(f"`{name}` ({bound})" if bound else f"`{name}`" for name, bound in bounds.items())

    headings = ["method", "paper", "settings", "output is the large model's own", "models"]
    rows = (
        [f"`{one.name}`", one.paper, settings(one), "yes" if one.lossless else "no", ", ".join(one.architectures)]
        for one in METHODS.values()
    )
    return "\n".join(markdown_table(headings, rows))


def drafters_table() -> str:
    """All drafters as a Markdown table."""
    return "\n".join(markdown_table(["drafter", "what it proposes"], [[f"`{name}`", what] for name, what in DRAFTERS.items()]))


def task_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all stages share."""
    parser = command_parser(description)
    parser.add_argument("--task", required=True, help="name of a task in params.yaml")
    parser.add_argument("--params", type=Path, default=DEFAULT, help="parameter file (default: %(default)s)")
    return parser


def main() -> None:
    """Check a parameter file, or print the tables of settings, of presets, or of methods and drafters."""
    parser = command_parser(__doc__)
    parser.add_argument("--params", type=Path, default=DEFAULT, help="parameter file (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print every setting as Markdown")
    parser.add_argument("--presets", action="store_true", help="print the presets of sweep.grid as Markdown")
    parser.add_argument("--methods", action="store_true", help="print the methods and the drafters as Markdown")
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
    elif arguments.presets:
        print(presets_table())
    elif arguments.methods:
        print(f"{methods_table()}\n\n{drafters_table()}")
    else:
        params = load(arguments.params)
        for name, source in params.active.items():
            if not source.exists():
                fix = f"correct the path, or move {name} to inactive"
                raise InputError(f"{arguments.params}: active.{name}: there is no {source}; {fix}")
        points = {name: len(expand(task.sweep.grid)) for name, task in params.tasks.items()}
        said = [f"{arguments.params}: {len(params.tasks)} tasks, active: {', '.join(params.active)}"]
        said += (f"  {name}: {count} points in its grid" for name, count in points.items())
        answer(arguments, "\n".join(said), active=list(params.active), grid_points=points)


if __name__ == "__main__":
    with stage():
        main()
