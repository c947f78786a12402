"""Opens a data set by `datasets`: of the hub at a commit, kept on this machine from then on, or of a folder with a copy.

Dataset scripts are never run; `datasets` has given up running them.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tasks.corpora.hub.data_sets import PARQUET, DataSet
from tasks.corpora.hub.lock import add_commit, locked_commit, newest_commit
from tasks.errors import InputError, disk_full
from tasks.files import atomic_folder
from tasks.hub import hub_answers, is_connection_error

if TYPE_CHECKING:
    from datasets import DatasetDict


def open_from_hub(data_set: DataSet, lock: Path) -> DatasetDict:
    """All splits of a data set at its locked commit, or at its newest one, which is then locked.

    The splits are kept in a folder of the cache of `datasets`, one for each commit, and need no network again.

    Raises:
        InputError: the data set, its configuration or its revision does not exist, or there is neither a network nor a copy.
    """
    import datasets

    commit = locked_commit(data_set, lock)
    kept = _kept(data_set, commit) if commit else None
    if kept is None or not kept.is_dir():
        if not hub_answers():
            raise InputError(_unreachable(data_set, commit))
        commit = commit or newest_commit(data_set)
        kept = _kept(data_set, commit)
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Tasks that are prepared side by side may read the same data set.
        with FileLock(kept.parent / f".{commit}.lock"):
            if not kept.is_dir():
                _fetch(data_set, commit, kept)
        if locked_commit(data_set, lock) is None:
            add_commit(data_set, commit, lock)
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
