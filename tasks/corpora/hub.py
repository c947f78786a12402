"""A data set of the Hugging Face Hub at a locked commit, or a local copy of it: opened by `datasets`, one example a row."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from filelock import FileLock

from tasks.console import log
from tasks.corpora.data_sets import PARQUET, DataSet
from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example
from tasks.corpora.reading import passages
from tasks.corpora.settings import SOURCE, HubSettings, Template, columns_of, parse_template
from tasks.errors import InputError, disk_full, hub_answers, is_connection_error
from tasks.files import append_line, atomic_folder, damage, is_sealed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


_BATCH = 1000
"""Rows that are converted at once."""
_LOCK_ENDINGS = (".yaml", ".yml")
_ARCHIVE = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|7z|rar)(\.\w+)?$", re.IGNORECASE)
"""Files that `datasets` would unpack."""
_NUL = "hold a NUL character, which is no text,"


def read(settings: HubSettings, source: Path) -> Corpus:
    """Read the three splits, and the unlabelled sources if there are such.

    Rows without a source or a reference are left out, and so are rows with a NUL character in a text, which no tokenizer
    reads; their numbers go to standard error. White space around a text is removed, and equal references of one source are
    merged.

    Args:
        settings: The data set.
        source: The lock file, for the hub; or the folder of a local copy.

    Raises:
        InputError: the data set, a split or a column is missing, a column holds no text, or no row is left of a split.
    """
    data_set, source = settings.data_set, source.expanduser()
    if source.is_dir() and not (source / "__init__.py").exists():
        splits, place = open_folder(data_set, source), str(source)
    elif source.suffix in _LOCK_ENDINGS:
        splits, place = open_from_hub(data_set, source), data_set.name
    else:
        fix = "under active in params.yaml, name data/hub.lock.yaml for a data set of the hub, or the folder of a copy"
        raise InputError(f"{source} is neither a lock file nor a folder with data; {fix}")
    names = [name for name in (*SPLITS, UNLABELLED) if name in data_set.splits]
    return _with_shots({name: _split(splits, data_set, name, place) for name in names}, data_set.shots, place)


def _with_shots(corpus: Corpus, shots: int, place: str) -> Corpus:
    """Put the first examples of train before every source, and take them out of train."""
    if not shots:
        return corpus
    shown, left = corpus["train"][:shots], corpus["train"][shots:]
    if not left:
        raise InputError(f"{place}: corpus.hub.shots is {shots}, but train has {len(shown)} examples; set it to fewer")
    before = "".join(f"{one.source} {one.references[0]}\n\n" for one in shown)
    return {
        name: [replace(one, source=before + one.source) for one in (left if name == "train" else examples)]
        for name, examples in corpus.items()
    }


def _split(splits: DatasetDict, data_set: DataSet, name: str, place: str) -> list[Example]:
    location = f"{place}, {data_set.splits[name]}"
    rows = _sliced(splits, data_set.splits[name], f"{place}: corpus.hub.splits.{name}").flatten()
    labelled = name != UNLABELLED
    columns = columns_of(data_set, labelled=labelled and not data_set.passage_words)
    for column, setting in columns.items():
        if column not in rows.column_names:
            known = ", ".join(rows.column_names)
            raise InputError(f"{location}: no column {column}; set corpus.hub, {setting}, to some of {known}")
    maker = _ExampleMaker(data_set, location, labelled=labelled)
    taken = rows.select_columns(list(columns))
    if data_set.passage_words:
        texts = [text for row in _values(taken) for text in maker.texts(row, data_set.source_field)]
        whole = [text for text in texts if "\0" not in text]
        _report_left_out(location, len(rows), len(texts) - len(whole), _NUL)
        return passages("\n".join(whole), data_set.passage_words, location, "corpus.hub.passage_words")
    examples = [example for row in _values(taken) if (example := maker.example(row)) is not None]
    if not examples:
        raise InputError(f"{location}: no row has a source and a reference; set corpus.hub.splits.{name} to another split")
    _report_left_out(location, len(rows), maker.with_nul, _NUL)
    _report_left_out(location, len(rows), len(rows) - len(examples) - maker.with_nul, "have no source or no reference")
    return examples


def _report_left_out(location: str, rows: int, left_out: int, reason: str) -> None:
    if left_out:
        log.info("%s: %d of %d rows %s and are left out", location, left_out, rows, reason)


def _sliced(splits: DatasetDict, wanted: str, setting: str) -> Dataset:
    """The rows of a split or of a slice of it, in their order."""
    import datasets

    sizes = {str(name): len(rows) for name, rows in splits.items()}
    try:
        parts = datasets.ReadInstruction.from_spec(wanted).to_absolute(sizes)
    except (ValueError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"{setting} is {wanted!r} ({reason}); name one of {', '.join(sizes)}, or a slice of it") from None
    found = [splits[part.splitname].select(range(part.from_, part.to)) for part in parts if part.from_ < part.to]
    if not found:
        raise InputError(f"{setting} is {wanted!r}, which has no rows; name one of {', '.join(sizes)}, or a larger slice")
    return found[0] if len(found) == 1 else datasets.concatenate_datasets(found)


def _values(rows: Dataset) -> Iterator[dict[str, object]]:
    for batch in rows.with_format("arrow").iter(batch_size=_BATCH):
        yield from batch.to_pylist()


class _ExampleMaker:
    """Makes examples of rows."""

    def __init__(self, data_set: DataSet, location: str, *, labelled: bool) -> None:
        self._data_set, self._location, self._labelled = data_set, location, labelled
        self.with_nul = 0
        """Rows left out for a NUL character so far."""
        pieces: Template = parse_template(data_set.template)
        self._pieces = [(text, data_set.source_field if name == SOURCE else name) for text, name in pieces]

    def example(self, row: Mapping[str, object]) -> Example | None:
        """The example of a row; None without a source or a reference, or where a text of the row holds a NUL character."""
        texts = {name: self.texts(row, name) for _, name in self._pieces if name is not None}
        named = [text for name in self._data_set.reference_fields for text in self.texts(row, name)] if self._labelled else []
        if any("\0" in text for text in [*named, *itertools.chain(*texts.values())]):
            self.with_nul += 1
            return None
        if not any(texts.values()) or not texts.get(self._data_set.source_field, [""]):
            return None
        # A list, such as the tests of a program, has one line for each of its texts.
        source = "".join(text + ("" if name is None else "\n".join(texts[name])) for text, name in self._pieces).strip()
        if not self._labelled:
            return Example(source, ())
        references = named or [self._data_set.no_reference]
        return Example(source, tuple(dict.fromkeys(references))) if any(references) else None

    def texts(self, row: Mapping[str, object], name: str) -> list[str]:
        """The texts of a column, without empty ones."""
        value, texts = row[name], []
        for text in value if isinstance(value, list) else [value]:
            if text is not None and not isinstance(text, str):
                fix = "it must contain strings or lists of them"
                raise InputError(f"{self._location}: column {name} contains {type(text).__name__}; {fix}")
            if text is not None and text.strip():
                texts.append(text.strip())
        return texts


def open_from_hub(data_set: DataSet, lock: Path) -> DatasetDict:
    """All splits of a data set at its locked commit, or at its newest one, which is then locked.

    The splits are kept in a folder of the cache of `datasets`, one for each commit, and need no network again. A folder that is
    not as it was written is read anew.

    Raises:
        InputError: the data set, its configuration or its revision does not exist, or there is neither a network nor a copy.
    """
    import datasets

    commit = locked_commit(data_set, lock)
    kept = _kept(data_set, commit) if commit else None
    if kept is None or not is_sealed(kept):
        if not hub_answers():
            raise InputError(_unreachable(data_set, commit))
        commit = commit or newest_commit(data_set)
        kept = _kept(data_set, commit)
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Tasks that are prepared side by side may read the same data set.
        with FileLock(kept.parent / f".{commit}.lock"):
            if not kept.is_dir() or damage(kept):
                _fetch(data_set, commit, kept)
        if locked_commit(data_set, lock) is None:
            # A line is appended at once, so that stages which run side by side keep each other's.
            append_line(lock, f"{json.dumps(_key(data_set))}: {json.dumps(commit)}\n")
    found = datasets.load_from_disk(str(kept))
    assert isinstance(found, datasets.DatasetDict)  # noqa: S101 (narrows the type: `_fetch` saves nothing else)
    return found


def open_folder(data_set: DataSet, folder: Path) -> DatasetDict:
    """All splits of a folder with files that `datasets` reads, such as Parquet or JSON Lines, a copy of the data set.

    A configuration is the one that the folder's README.md declares, or the folder of its name inside; a folder without either
    holds that configuration alone.

    Raises:
        InputError: the folder holds no data set.
    """
    if archives := sorted(one.name for one in folder.rglob("*") if _ARCHIVE.search(one.name)):
        raise InputError(f"{folder} holds the archive {archives[0]}, which is not opened here; unpack it and remove it")
    name, inside = None, None
    if data_set.configuration and _declares_configurations(folder):
        name = data_set.configuration
    elif data_set.configuration and (folder / data_set.configuration).is_dir():
        inside = data_set.configuration
    return _load(str(folder), name, inside, f"in the folder {folder}", cache=str(Path(".cache") / "datasets"))


def _fetch(data_set: DataSet, commit: str, kept: Path) -> None:
    name, inside = data_set.configuration or None, None
    if data_set.revision == PARQUET:
        # That branch declares no configurations: each is a folder.
        name, inside = None, data_set.configuration or "default"
    with atomic_folder(kept) as partial:
        # An empty cache of its own: from another one, `datasets` would take an older commit if the network fails meanwhile.
        cache = partial / "cache"
        splits = _load(data_set.name, name, inside, f"on the hub at commit {commit}", cache=str(cache), revision=commit)
        with _quiet():
            splits.save_to_disk(str(partial))
        del splits
        shutil.rmtree(cache)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars and the messages of `datasets` out of the log of a stage; errors are raised all the same."""
    import datasets

    were_on, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if were_on:
            datasets.enable_progress_bars()


def _load(path: str, name: str | None, inside: str | None, where: str, cache: str, revision: str | None = None) -> DatasetDict:
    """`datasets.load_dataset` for all splits, with its errors in one line."""
    import datasets
    import pyarrow as pa
    from datasets.exceptions import DatasetGenerationError

    fix = "correct corpus.hub"
    try:
        with _quiet():
            return datasets.load_dataset(path, name, data_dir=inside, revision=revision, cache_dir=cache)
    except Exception as error:
        if disk_full(error, Path(cache)):
            raise
        reason = _first_line(error).rstrip(".")
        if "scripts are no longer supported" in reason:
            reason, fix = "it is a script, which is not run", f"set corpus.hub.revision to {PARQUET}"
        elif isinstance(error, DatasetGenerationError | pa.ArrowException):
            reason = f"its files are damaged or differ in their columns ({_first_line(error.__cause__ or error)})"
        elif is_connection_error(error):
            fix = "try again"
        elif not isinstance(error, OSError | ValueError | RuntimeError):
            raise
    what = f"{path} (configuration {name or inside})" if name or inside else path
    raise InputError(f"no data set {what} {where}: {reason}; {fix}, or name the folder of a copy under active")


def _kept(data_set: DataSet, commit: str) -> Path:
    from datasets import config

    branch = "parquet" if data_set.revision == PARQUET else "data"
    name = "___".join([*data_set.name.split("/"), data_set.configuration or "default", branch])
    return Path(config.HF_DATASETS_CACHE) / "draftline" / name / commit


def _unreachable(data_set: DataSet, commit: str | None) -> str:
    """Say what was looked for, where, and how to fetch it."""
    from datasets import config
    from huggingface_hub import constants

    revision = commit or data_set.revision
    fetch = f"hf download {data_set.name} --repo-type dataset --revision {shlex.quote(revision)} --local-dir DIR"
    what = f"{data_set.name} (configuration {data_set.configuration or 'default'}, revision {revision})"
    return (
        f"no data set {what}: {constants.ENDPOINT} does not answer (or HF_HUB_OFFLINE is set), and {config.HF_DATASETS_CACHE} "
        f"has no copy; run this once with a network, or there run `{fetch}`, bring DIR here and name it under active"
    )


def _declares_configurations(folder: Path) -> bool:
    from huggingface_hub import DatasetCard

    card = folder / "README.md"
    return card.is_file() and bool(DatasetCard.load(card, ignore_metadata_errors=True).data.to_dict().get("configs"))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    # The second line lists the configurations that there are.
    reason = " ".join(lines[: 2 if lines and lines[0].endswith("missing.") else 1]) or type(error).__name__
    return reason.replace("BuilderConfig", "configuration").replace("Config name", "the name of the configuration")


_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 30.0
"""How long the hub may take to name a commit."""


def locked_commit(data_set: DataSet, lock: Path) -> str | None:
    """The commit of a data set: its revision if that is one, otherwise that of its line in the lock file; None without a line.

    Raises:
        InputError: the lock file cannot be read, or holds something else.
    """
    if _COMMIT.fullmatch(data_set.revision):
        return data_set.revision
    try:
        lines = yaml.safe_load(lock.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{lock} is no lock file of data sets ({reason}); restore it from git, or remove it") from None
    commit = lines.get(_key(data_set)) if isinstance(lines, dict) else ""
    if commit is not None and not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise InputError(f"{lock}: {_key(data_set)} has no commit of 40 hexadecimal digits; restore it from git, or remove it")
    return commit


def newest_commit(data_set: DataSet) -> str:
    """Ask the hub for the commit of a data set's revision.

    Raises:
        InputError: there is no such data set or revision, or it needs a login.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        found = HfApi().dataset_info(data_set.name, revision=data_set.revision, timeout=_SECONDS).sha
    except GatedRepoError:
        reason = "its owner asks for consent; give it on the page of the data set and run hf auth login"
    except RevisionNotFoundError:
        reason = "there is no such revision; correct corpus.hub.revision"
    except RepositoryNotFoundError:
        reason = "there is none of that name, or it is private; correct corpus.hub.name, or run hf auth login"
    except Exception as error:
        if not (isinstance(error, HfHubHTTPError | ValueError) or is_connection_error(error)):
            raise
        reason = f"{' '.join(str(error).split()).rstrip('.')}; try again later"
    else:
        if found:
            return found
        reason = "the hub names no commit; try again later"
    raise InputError(f"no data set {data_set.name} at revision {data_set.revision} on {constants.ENDPOINT}: {reason}")


def _key(data_set: DataSet) -> str:
    return f"{data_set.name}@{data_set.revision}"
