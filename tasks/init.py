"""Add a task for your own text to `params.yaml`: `python -m tasks.init NAME FILE…`, or `draftline init NAME FILE…`.

A file is a table (CSV, TSV, Parquet, JSON Lines) with a column of sources and one of targets; two plain files are parallel.
Files whose names hold `valid`, `dev` or `test` are those splits; without them, examples of the others are held out. The command
trains a tokenizer to learn the lengths, times two training steps, proposes columns, metric, sizes and as many steps as take a
few minutes here, and prints what it has written and the next command. What it guesses wrong is a line to edit, or an option.
"""

from __future__ import annotations

import math
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet
import yaml

from tasks import config
from tasks.console import add_json, answer, command_parser
from tasks.corpora.checks import count_texts, text_errors
from tasks.corpora.example import Corpus
from tasks.corpora.files import open_records
from tasks.corpora.reading import read
from tasks.corpora.settings import PARALLEL, PARQUET, FileSettings
from tasks.errors import InputError, stage
from tasks.evaluation.scoring.metrics import metric_of
from tasks.files import atomic_write
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer

_SOURCES = ("source", "src", "input", "question", "prompt", "dialogue", "document", "article", "text")
_TARGETS = ("references", "reference", "target", "tgt", "output", "answer", "response", "reply", "summary", "highlights")
_SPLITS = {"validation": re.compile(r"val|dev", re.IGNORECASE), "test": re.compile("test", re.IGNORECASE)}
_LOOKED_AT = 50
"""Records by which columns are told apart."""
_MEASURED = 20_000
"""Training examples that the tokenizer and the lengths are taken of."""
_ROOM = 1.5
_ENOUGH = 10
"""Times through the texts, below which models from scratch have seldom learned what the texts can teach."""
_FEWEST, _MINUTES = 300, 8.0
"""Steps of a training at least, and minutes that all trainings take at most, if they have more steps than that."""
_FRESH = {"optimizer": "adafactor", "relative_rate": True, "warmup_steps": 50, "decay": "linear"}


def guess_columns(files: Sequence[Path], kind: str, source: str | None, target: str | None) -> tuple[str, str]:
    """The columns of sources and of targets: those that are named, or the usual names, or the only two with text.

    Raises:
        InputError: they cannot be told; names the columns that there are.
    """
    if source is not None and source == target:
        raise InputError(f"--source and --target are both {source}; name two columns")
    if kind == PARQUET:
        schema = pyarrow.parquet.read_schema(files[0])
        found, names = schema.names, [column.name for column in schema if "string" in str(column.type)]
    else:
        table = open_records(files[0], kind, ())
        records = [record.values for record in islice(table.records, _LOOKED_AT)]
        if not records:
            raise InputError(f"{files[0]} has no row; give a file with examples")
        found = table.columns or list(dict.fromkeys(name for record in records for name in record))
        names = [name for name in found if any(_is_text(record.get(name)) for record in records)]
    for option, given in (("--source", source), ("--target", target)):
        if given is not None and not {given, given.partition(".")[0]} & {*found}:  # a.b is b inside of a
            raise InputError(f"{files[0]}: {option} is {given}, but its columns are {', '.join(found)}; name one of them")
    left = [name for name in names if name not in (source, target)]
    source = source or next((name for name in left if name.lower() in _SOURCES), None)
    target = target or next((name for name in left if name.lower() in _TARGETS and name != source), None)
    if source is None or target is None:
        rest = [name for name in left if name not in (source, target)]
        if len(rest) != (source is None) + (target is None):
            raise InputError(f"{files[0]} has the columns {', '.join(found)}; say which by --source NAME and --target NAME")
        source, target = source or rest.pop(0), target or rest.pop(0)
    return source, target


def _is_text(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and not text.strip().replace(".", "").isdigit() for text in texts)


def file_settings(files: Sequence[Path], source: str | None, target: str | None) -> dict[str, Any]:
    """`corpus.files` of a task: the files of each split, and the columns.

    Raises:
        InputError: a file is missing, two formats are mixed, or the columns cannot be told.
    """
    for file in files:
        if not file.is_file():
            raise InputError(f"{file} is {'a folder' if file.is_dir() else 'not there'}; name files of texts")
    splits: dict[str, list[str]] = {}
    for file in files:
        name = next((split for split, words in _SPLITS.items() if words.search(file.name)), "train")
        splits.setdefault(name, []).append(file.name)
    if "train" not in splits:
        raise InputError(f"{files[0]} is taken for a {next(iter(splits))} file by its name; name a file to train on too")
    settings: dict[str, Any] = {"files": {split: names[0] if len(names) == 1 else names for split, names in splits.items()}}
    try:
        kind = FileSettings(files=settings["files"]).format_of(file.name for file in files)
    except ValueError as error:
        raise InputError(str(error)) from None
    if kind == PARALLEL and (source or target):
        raise InputError(f"--source and --target name columns, which {files[0]} has not; leave them out")
    if kind != PARALLEL:
        settings["source_field"], reference = guess_columns(files, kind, source, target)
        settings["reference_fields"] = [reference]
    return settings


@dataclass
class Look:
    """What the texts are like."""

    examples: int
    vocabulary: int
    longest: tuple[int, int]
    """Of sources and of targets, in tokens: that of 99.5 % of them and half as much again, a multiple of 8."""
    tokens: int
    """Of all targets."""
    metric: str
    timed: int
    """Examples of the smaller held-out split, at most 200."""


def look_at(corpus: Corpus, metric: str | None) -> Look:
    """Train a tokenizer on a corpus, and measure the texts in its tokens.

    Raises:
        InputError: there is too little text for any tokenizer, or there is no such metric.
    """
    sample = corpus["train"][:: -(-len(corpus["train"]) // _MEASURED)]
    sources, targets = [one.source for one in sample], [one.references[0] for one in sample]
    words = {word for text in (*sources, *targets) for word in text.split()}
    pieces = max(128, min(8000, 2 ** round(math.log2(len(words) / 2 + 1))))
    while True:
        try:
            tokenizer = train_tokenizer([*sources, *targets], TokenizerSettings(vocabulary=pieces))
            break
        except InputError:
            if pieces <= TokenizerSettings(vocabulary=64).vocabulary:
                raise InputError("the texts have too few different words to train a tokenizer on; give more text") from None
            pieces = max(64, int(0.8 * pieces))
    lengths = [sorted(len(row) for row in tokenizer(texts)["input_ids"]) for texts in (sources, targets)]
    # What comes later may be longer than what is here.
    source, target = (8 * math.ceil(_ROOM * (one[int(0.995 * (len(one) - 1))] + 1) / 8) for one in lengths)
    guessed = metric or _metric([len(text.split()) for text in sources], targets)
    try:
        metric_of(guessed)
    except ValueError as error:
        raise InputError(f"--metric: {error}") from None
    tokens = sum(lengths[1]) * len(corpus["train"]) // len(sample)
    timed = min(200, len(corpus["validation"]), len(corpus["test"]))
    return Look(len(corpus["train"]), pieces, (source, target), tokens, guessed, timed)


def _metric(source_words: Sequence[int], targets: Sequence[str]) -> str:
    """Classes are matched, summaries have ROUGE, and everything else BLEU."""
    target_words = statistics.fmean(len(text.split()) for text in targets)
    if target_words <= 3 and len(set(targets)) <= 0.2 * len(targets):
        return "exact_match"
    return "rougeL" if target_words < 0.35 * statistics.fmean(source_words) and statistics.fmean(source_words) > 40 else "bleu"


@dataclass
class Proposal:
    """The sections of a task."""

    files: dict[str, Any]
    look: Look
    batch: int = 32
    steps: int = 0
    large: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Choose sizes and steps: little text trains a smaller model, for fewer steps, with dropout."""
        width, layers, steps = (128, 4, 800) if self.look.tokens < 100_000 else (128, 6, 1600)
        if self.look.tokens > 3_000_000:
            width, layers, steps = 160, 8, 4000
        if max(self.look.longest) > 160:
            self.batch = 16
        epochs = steps * self.batch / self.look.examples
        self.steps = max(_FEWEST, int(steps * min(1.0, 60 / epochs)))
        dropout = 0.1 if epochs > 5 else 0.0
        shape = {"d_kv": 32, "encoder_layers": 2, "dropout": dropout}
        self.large = {"d_model": width, "d_ff": 3 * width, "heads": width // 32, **shape, "decoder_layers": layers, "seed": 1}
        self.small = {"d_model": 64, "d_ff": 192, "heads": 2, **shape, "decoder_layers": 1, "seed": 2}

    def sections(self) -> dict[str, Any]:
        """The task as `params.yaml` holds it."""
        look = self.look

        def training(rate: float, steps: int, **more: Any) -> dict[str, Any]:
            often = {"evaluate_every": max(1, steps // 2), "checkpoint_every": max(1, steps // 8)}
            return {**more, **_FRESH, "learning_rate": rate, "steps": steps, "batch_size": self.batch, **often}

        return {
            "seeds": [1],
            "metric": look.metric,
            "corpus": {"source": "files", "files": self.files},
            "text": {"max_source_tokens": look.longest[0], "max_target_tokens": look.longest[1]},
            "tokenizer": {"vocabulary": look.vocabulary},
            "models": {"large": self.large, "small": self.small},
            "finetune": {"large": training(0.02, self.steps, seed=1), "small": training(0.03, self.steps, seed=2)},
            "calibrate": {"batch_size": 128},
            "align": training(0.01, self.steps // 2, start="fine_tuned"),
            "sweep": {"latency_threads": 1, "latency_examples": look.timed},
        }

    def lines(self, name: str) -> list[str]:
        """The task as lines of YAML, one a section, but two of training."""
        found = [f"  {_flow(name)}:"]
        for section, values in self.sections().items():
            if section == "finetune":
                found += ["    finetune:", *(f"      {model}: {_flow(one)}" for model, one in values.items())]
            else:
                found.append(f"    {section}: {_flow(values)}")
        return found

    def fit(self) -> float:
        """Take fewer steps where all trainings would take longer than `_MINUTES` here; the minutes that they take."""
        # The small model's training, then that of both arms, half as long each.
        seconds = self.step_seconds(self.large) + 2 * self.step_seconds(self.small)
        self.steps = max(_FEWEST, min(self.steps, int(60 * _MINUTES / seconds)))
        return self.steps * seconds / 60

    def step_seconds(self, shape: dict[str, Any]) -> float:
        """Processor time of a step on one thread: what else the machine does now costs the training no steps."""
        import torch

        from tasks.models.checkpoints import initial_model

        torch.set_num_threads(1)
        # The second of two steps.
        model = initial_model(ModelSettings(**shape), self.look.vocabulary, 0, 1).train()
        source, target = (torch.full((self.batch, length // 2), 3) for length in self.look.longest)
        for _ in range(2):
            begun = time.process_time()
            model(input_ids=source, labels=target).loss.backward()
        return time.process_time() - begun


def _advice(passes: float, steps: int, minutes: float) -> list[str]:
    """What makes a good pair of a trial."""
    if passes >= _ENOUGH:
        return []
    more = math.ceil(_ENOUGH / passes)
    said = f"For a pair to use raise all steps alike: {more} times as many ({more * steps:,} of the large model)"
    return ["So few show every stage, and seldom make a good pair.", f"{said} take some {more * minutes} minutes."]


def _flow(values: object) -> str:
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000).strip().removesuffix("\n...")


def added(text: str, name: str, folder: str, lines: Sequence[str], path: str) -> str:
    """The text of a parameter file with a task behind the others, active, and every comment where it was.

    Raises:
        InputError: the task does not fit, or the file has no place for it.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    assert root is not None  # noqa: S101 (the text was checked when it was loaded)
    sections = {key.value: value for key, value in root.value}
    whole = text.splitlines()
    if sections["active"].flow_style or sections["tasks"].flow_style:
        raise InputError(f"{path}: write active and tasks with an entry a line, not within braces")
    for section, new in (("tasks", lines), ("active", [f"  {_flow(name)}: {_flow(folder)}"])):  # the later lines first
        begin, end = sections[section].start_mark.index, sections[section].end_mark.index
        # Comments are no tokens: those behind a section belong to what follows.
        last = max(token.end_mark.line + 1 for token in yaml.scan(text) if begin <= token.start_mark.index < end)
        whole[last:last] = new
    found = "\n".join(whole) + "\n"
    config.check(found, path, lines=False)
    return found


def placed(files: Sequence[Path], name: str) -> Path:
    """A folder with these files alone, for DVC hashes all of it: theirs, or `data/NAME-text` with copies of them.

    Raises:
        InputError: two files have one name.
    """
    folders = {file.resolve().parent for file in files}
    if len({file.name for file in files}) < len(files):
        raise InputError(f"two files are named {files[0].name}; give them different names")
    if len(folders) == 1 and {one.name for one in folders.copy().pop().iterdir()} == {file.name for file in files}:
        return files[0].parent
    folder = Path("data", f"{name}-text")
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy2(file, folder / file.name)
    return folder


def main() -> None:
    """Look at the files, propose a task, and write it."""
    parser = command_parser(__doc__)
    parser.add_argument("name", help="of the task: letters, digits, - and _")
    parser.add_argument("files", nargs="+", type=Path, metavar="file", help="of two plain ones the first has the sources")
    parser.add_argument("--source", help="column of the sources")
    parser.add_argument("--target", help="column of the targets")
    parser.add_argument("--metric", help="bleu, rougeL, exact_match or another of docs/evaluation.md")
    parser.add_argument("--params", type=Path, default=config.DEFAULT, help="parameter file (default: %(default)s)")
    add_json(parser)
    given = parser.parse_args()
    if given.name in config.load(given.params).tasks:
        raise InputError(f"{given.params} has a task {given.name} already; choose another name, or remove that one")
    text = given.params.read_text(encoding="utf-8")
    settings = file_settings(given.files, given.source, given.target)
    # One file in a folder of its own, or copies: read from where they are now.
    folder, known = placed(given.files, given.name), {file.parent.resolve() for file in given.files}
    try:
        corpus = read(FileSettings(**settings), folder)
        for name in (one for one in corpus if len(corpus[one]) == 1):
            fix = "at least 2" if name in settings["files"] else "at least 20, or name a file for it"
            raise InputError(f"{folder}: {name} has a single example; give {fix}")
        for error in text_errors(count_texts(corpus)):
            raise InputError(f"{folder}: {error}")
        proposal = Proposal(settings, look_at(corpus, given.metric))
        look, minutes = proposal.look, max(1, round(proposal.fit()))
        lines = proposal.lines(given.name)
        written = added(text, given.name, str(folder), lines, str(given.params))
    except InputError as error:
        if folder.resolve() not in known:
            shutil.rmtree(folder)
        # Name the user's own files, not the copies.
        why = str(error).replace(f"{folder}: ", f"{', '.join(map(str, given.files))}: ")
        for file in given.files:
            why = why.replace(str(folder / file.name), str(file))
        raise InputError(why) from None
    atomic_write(given.params, written)
    named = [settings.get("source_field", ""), *settings.get("reference_fields", [])]
    columns = " → ".join(named if named[0] else settings["files"]["train"])
    passes = proposal.steps * proposal.batch / look.examples
    said = [
        *lines,
        f"\n{look.examples} examples to train on ({columns}), text in {folder}.",
        f"Training takes about {minutes} minutes here, {passes:.1f} times through the texts; sweep and report take some more.",
        *_advice(passes, proposal.steps, minutes),
        f"Written to {given.params}. Next: draftline run {given.name}   (dvc repro report@{given.name})",
    ]
    values = {"task": given.name, "folder": str(folder), "settings": proposal.sections(), "training_minutes": minutes}
    answer(given, "\n".join(said), **values, next=f"draftline run {given.name}")


if __name__ == "__main__":
    with stage():
        main()
