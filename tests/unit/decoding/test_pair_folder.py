"""The folder of a pair, and what it certifies."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding import pair_folder
from tasks.decoding.registry import METHODS, configure_method
from tasks.errors import InputError
from tasks.files import SUMS
from tasks.models.settings import TextSettings

TEXT = TextSettings(max_source_tokens=9, max_target_tokens=7, chat_template=True, instruction="Say: {source}", system="Brief.")
POINT = configure_method("bild", {"fallback_threshold": 0.5, "rollback_threshold": math.inf, "max_draft": 4})


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "one", tmp_path / "other"
    for folder in found:
        folder.mkdir()
        (folder / "config.json").write_text(folder.name, encoding="utf-8")
    return found


def written(tmp_path: Path, models: tuple[Path, Path], manifest: pair_folder.PairManifest) -> Path:
    return pair_folder.write_pair_folder(tmp_path / "results/pair", manifest, *models, ["Grüße", "two"])


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path, models: tuple[Path, Path]) -> None:
    manifest = pair_folder.PairManifest(POINT, TEXT, "toy", "it is faster", {"test": {"quality": 1.5}}, {"git_commit": "abc"})
    folder = written(tmp_path, models, manifest)
    assert pair_folder.read_manifest(folder) == manifest
    assert pair_folder.read_examples(folder) == ["Grüße", "two"]
    assert (folder / "large/config.json").read_text(encoding="utf-8") == "one"
    assert (folder / "drafter/config.json").read_text(encoding="utf-8") == "other"


@pytest.mark.parametrize("method", METHODS)
def test_default_settings_of_every_method_survive(method: str, tmp_path: Path, models: tuple[Path, Path]) -> None:
    manifest = pair_folder.PairManifest(configure_method(method, {}), TEXT)
    assert pair_folder.read_manifest(written(tmp_path, models, manifest)).point == manifest.point


def test_a_second_pair_replaces_the_first(tmp_path: Path, models: tuple[Path, Path]) -> None:
    written(tmp_path, models, pair_folder.PairManifest(POINT, TEXT, task="first"))
    (tmp_path / "results/pair/left.txt").touch()
    folder = written(tmp_path, models, pair_folder.PairManifest(POINT, TEXT, task="second"))
    assert pair_folder.read_manifest(folder).task == "second"
    assert not (folder / "left.txt").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["pair"]


def change(values: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        values = values[parent]
    if value is None:
        del values[last]
    else:
        values[last] = value


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("format", "another", "is not a pair of Draftline"),
        ("version", 2, "is of version 2, but this code reads version 1"),
        ("operating_point", None, "lacks 'operating_point'"),
        ("operating_point.method", "bold", "method is bold; it must be one of vanilla_large, "),
        ("operating_point.settings.max_draft", 4.5, "bild: max_draft is 4.5; it must be of type int"),
        ("operating_point.settings.margin", 1, "bild: unknown setting margin; the settings are drafter, "),
        ("operating_point.settings.large_first", True, "bild: unknown setting large_first; the settings are drafter, "),
        ("operating_point.settings", 3, "pair.json: "),
        ("text.max_source_tokens", "9", "max_source_tokens is '9'; it must be of type int"),
        ("text.instruction", "nothing", "instruction has {source} 0 times"),
    ],
)
def test_a_damaged_manifest_is_one_line(path: str, value: object, line: str, tmp_path: Path, models: tuple[Path, Path]) -> None:
    file = written(tmp_path, models, pair_folder.PairManifest(POINT, TEXT)) / pair_folder.MANIFEST
    values = json.loads(file.read_text(encoding="utf-8"))
    change(values, path, value)
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(InputError, match=r"pair: pair.json is not as it was written; make the folder anew"):
        pair_folder.read_manifest(file.parent)
    (file.parent / SUMS).unlink()
    with pytest.raises(InputError) as error:
        pair_folder.read_manifest(file.parent)
    assert line in str(error.value) and str(file) in str(error.value)


def test_a_switch_that_a_method_no_longer_has_may_be_off(tmp_path: Path, models: tuple[Path, Path]) -> None:
    file = written(tmp_path, models, pair_folder.PairManifest(POINT, TEXT)) / pair_folder.MANIFEST
    values = json.loads(file.read_text(encoding="utf-8"))
    values["operating_point"]["settings"] |= {"large_first": False, "keep_agreed": False}
    file.write_text(json.dumps(values), encoding="utf-8")
    (file.parent / SUMS).unlink()
    assert pair_folder.read_manifest(file.parent).point == POINT


def test_what_is_no_manifest_is_one_line_and_examples_may_be_missing_but_not_damaged(
    tmp_path: Path, models: tuple[Path, Path]
) -> None:
    with pytest.raises(InputError, match=r"pair.json cannot be read \(No such file or directory\); name a folder"):
        pair_folder.read_manifest(tmp_path)
    assert pair_folder.read_examples(tmp_path) == []
    written(tmp_path, models, pair_folder.PairManifest(POINT, TEXT)).rename(tmp_path / "pair")
    with pytest.raises(InputError, match=rf"pair.json cannot be read \(.*\); name {tmp_path}/pair$"):
        pair_folder.read_manifest(tmp_path)
    for read, file, damages in (
        (pair_folder.read_manifest, pair_folder.MANIFEST, {"{": "is not JSON", "[]": "is not a pair of Draftline"}),
        (pair_folder.read_examples, pair_folder.EXAMPLES, {"{": "is not JSON", "[1]": "holds no list of texts"}),
        *(
            (pair_folder.read_calibration, pair_folder.CALIBRATION, {one: "holds no lists of tokens"})
            for one in ("{", "[1]", '[["a"]]')
        ),
    ):
        for content, line in damages.items():
            (tmp_path / file).write_text(content, encoding="utf-8")
            with pytest.raises(InputError, match=line):
                read(tmp_path)


def manifest(method: str, settings: dict[str, object], *records: dict[str, Any]) -> pair_folder.PairManifest:
    return pair_folder.PairManifest(configure_method(method, settings), TextSettings(), measured={"accepted": list(records)})


def record(length: int, method: str = "speculative", drafter: str = "small") -> dict[str, Any]:
    return {"method": method, "settings": {"draft_length": length, "drafter": drafter}}


@pytest.mark.parametrize(
    ("found", "length"),
    [
        (manifest("speculative", {"draft_length": 3}, record(5)), 3),
        (manifest("speculative_margin", {"draft_length": 4, "margin": 0.1}, record(5)), 4),
        (manifest("speculative", {"draft_length": 3, "drafter": "copy"}, record(7), record(2)), 7),
        (manifest("bild", {}, record(2), record(4), record(9)), 4),
        (manifest("bild", {}, record(4, method="speculative_confident"), record(6, drafter="copy"), record(8)), 8),
        (manifest("bild", {}), 5),
        (manifest("vanilla_large", {}, record(4), record(6)), 4),
    ],
)
def test_the_draft_length_is_the_points_or_a_certified_one(found: pair_folder.PairManifest, length: int) -> None:
    assert pair_folder.engine_draft_length(found) == length


def test_a_certificate_is_of_greedy_speculative_decoding_with_the_small_model() -> None:
    wanted = record(3)
    found = manifest("bild", {}, record(3, method="speculative_confident"), record(3, drafter="copy"), record(2), wanted)
    assert pair_folder.certified(found, 3) is wanted
    assert pair_folder.certified(found, 4) is None
    assert pair_folder.certified(pair_folder.PairManifest(found.point, found.text), 3) is None
