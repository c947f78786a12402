"""A folder that holds a pair ready to decode: two models, their tokenizer, the operating point and what was measured of it.

    pair.json          the operating point, lengths, measurements and origin (`PairManifest`)
    large/  drafter/   models as `from_pretrained` of transformers reads them, each with the tokenizer
    examples.json      a few sources of the corpus, with which a server warms up
    calibration.json   only where the drafter of the operating point reads it

The report stage writes it, `tasks.decoding.load_pair` opens it. Nothing in it is executed, and no file is a pickle.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.corpora.example import read_jsonl
from tasks.decoding.method import CALIBRATED
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import ConfiguredMethod, configure_method
from tasks.errors import InputError, require_whole
from tasks.files import atomic_folder
from tasks.models.prompting import encode
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.settings import read_settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Rows

MANIFEST = "pair.json"
LARGE, DRAFTER, EXAMPLES, CALIBRATION = "large", "drafter", "examples.json", "calibration.json"
_FORMAT, _VERSION = "draftline-pair", 1
_REST = ("task", "chosen", "measured", "origin")
"""Fields of a manifest that JSON holds as they are."""


@dataclass(frozen=True)
class PairManifest:
    """What `pair.json` says of a pair."""

    point: ConfiguredMethod
    text: TextSettings
    """Lengths at which the point was measured, and how a source is put to a chat model."""
    task: str = ""
    chosen: str = ""
    """Why this point: one line for the reader."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Plain values: what the point was measured to give, by split, with intervals; see docs/operations.md."""
    origin: dict[str, Any] = field(default_factory=dict)
    """Plain values: commit, hashes of the inputs, versions and hardware of the measurement."""


def write_pair_folder(
    folder: Path, manifest: PairManifest, large: Path, drafter: Path, examples: Sequence[str], calibration: Rows | None = None
) -> Path:
    """Copy two models and what belongs to them into a folder, which appears whole or not at all.

    Args:
        folder: The folder to write; an older one of that name is replaced.
        manifest: The content of `pair.json`.
        large: The folder of the large model.
        drafter: The folder of the small model.
        examples: A few sources of the corpus.
        calibration: Target tokens of the calibration set, where the drafter of the operating point reads it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name and renamed: the folder appears whole or not at all.
    with atomic_folder(folder) as partial:
        shutil.copytree(large, partial / LARGE)
        shutil.copytree(drafter, partial / DRAFTER)
        (partial / EXAMPLES).write_text(json.dumps(list(examples), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        if calibration:
            (partial / CALIBRATION).write_text(json.dumps(calibration), encoding="utf-8")
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "operating_point": {"method": manifest.point.method, "settings": manifest.point.plain_settings},
            "text": dataclasses.asdict(manifest.text),
            **{name: getattr(manifest, name) for name in _REST},
        }
        text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return folder


def read_manifest(folder: Path) -> PairManifest:
    """Read `pair.json` of a folder.

    Raises:
        InputError: there is no such folder or file, it is damaged, or of another version.
    """
    path = folder / MANIFEST
    fix = "make the folder anew with python -m tasks.report --task TASK"
    require_whole(folder, f"{fix}, or copy it anew")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = (
            f"name {folder / 'pair'}" if (folder / "pair" / MANIFEST).is_file() else "name a folder that the report stage wrote"
        )
        raise InputError(f"{path} cannot be read ({error.strerror}); {fix}") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); {fix}") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise InputError(f"{path} is not a pair of Draftline: its format is not {_FORMAT}; {fix}")
    if found.get("version") != _VERSION:
        raise InputError(f"{path} is of version {found.get('version')!r}, but this code reads version {_VERSION}; {fix}")
    try:
        point = configure_method(found["operating_point"]["method"], found["operating_point"]["settings"])
        text = read_settings(TextSettings, found["text"])
        rest = {name: found[name] for name in _REST}
    except KeyError as error:
        raise InputError(f"{path} lacks {error}; {fix}") from None
    except (InputError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {error}; {fix}") from None
    return PairManifest(point, text, **rest)


def read_examples(folder: Path) -> list[str]:
    """Return the sources of `examples.json`; none where there is no such file.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / EXAMPLES
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); write a list of texts, or remove the file") from None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise InputError(f"{path} holds no list of texts; write one, or remove the file")
    return found


def read_calibration(folder: Path) -> Rows:
    """Return the target tokens of the calibration set, which some drafters read; none where the folder has no such file.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / CALIBRATION
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        if not all(type(token) is int and token >= 0 for row in found for token in row):
            raise ValueError("a token is no number")
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} holds no lists of tokens ({error}); make the folder anew, or copy it anew") from None
    rows: Rows = found
    return rows


def calibration_targets(points: Sequence[ConfiguredMethod], file: Path, large: Path, limit: int) -> Rows:
    """Return the targets of a calibration set in the large model's tokens; none if no point drafts from them.

    Args:
        points: Methods that decode with the pair.
        file: The calibration set.
        large: The folder of the large model.
        limit: Most tokens of a target.

    Raises:
        InputError: the calibration set is missing or empty.
    """
    if not any(getattr(point.settings, "drafter", None) in CALIBRATED for point in points):
        return []
    examples = read_jsonl(file)
    if not examples:
        raise InputError(f"{file} is empty; run the stage calibrate again (dvc repro)")
    return encode(load_tokenizer(large), [example.references[0] for example in examples], limit)


# What the large model accepts: the folder's certificate, and the draft length at which another engine should draft. Other
# engines draft a fixed number of tokens and verify them losslessly, so only the records of `speculative` with the small model
# count. The report stage writes them; see `measured.accepted` in docs/operations.md.

_CERTIFIED, _DRAFTED_BY = "speculative", "small"


def engine_draft_length(manifest: PairManifest) -> int:
    """Return how many tokens an engine should draft at a time.

    That is the operating point's number where the small model drafts a fixed number. Otherwise it is the certified number
    next to the default, or the default where nothing is certified.
    """
    settings = manifest.point.settings
    # 1. The operating point's own number, 2. the certified one next to the default, 3. the default.
    own = getattr(settings, "draft_length", None)
    if own is not None and getattr(settings, "drafter", _DRAFTED_BY) == _DRAFTED_BY:
        return int(own)
    default = SpeculativeSettings().draft_length
    certified = [int(record["settings"]["draft_length"]) for record in _speculative(manifest)]
    return min(certified, key=lambda length: (abs(length - default), length), default=default)


def certified(manifest: PairManifest, draft_length: int) -> dict[str, Any] | None:
    """Return the record of greedy speculative decoding at a draft length; None where the folder has none."""
    return next((record for record in _speculative(manifest) if record["settings"]["draft_length"] == draft_length), None)


def _speculative(manifest: PairManifest) -> Iterator[dict[str, Any]]:
    for record in manifest.measured.get("accepted", ()):
        if record["method"] == _CERTIFIED and record["settings"].get("drafter", _DRAFTED_BY) == _DRAFTED_BY:
            yield record
