"""The published calibration set opens as a data set of `datasets`."""

from pathlib import Path

import datasets
import pytest

from tasks.alignment.calibration_set import Provenance, Shards, publish
from tasks.alignment.labelling import Labeller
from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import read_jsonl
from tasks.decoding.runtimes.choose import open_decoder
from tests.calibration import DRAWN, INPUTS, TEXT, tiny


def test_the_published_set_is_a_dataset_of_two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    model, tokenizer = tiny("t5")
    settings = CalibrateSettings(batch_size=16, sampling=DRAWN)
    labeller, shards = Labeller(open_decoder(model, "large"), tokenizer, TEXT, settings), Shards(tmp_path / "shards" / "work")
    sets = {"validation": ["validation-00000"], "calibration": ["calibration-00000", "calibration-00001"]}
    for number, name in enumerate([*sets["validation"], *sets["calibration"]]):
        shards.write(name, labeller.label(INPUTS[number * 13 : number * 13 + 13], first=number * 13))
    folder = tmp_path / "calibration"
    publish(folder, shards, sets, Provenance(task="words", model={}, settings=settings, text=TEXT, inputs={}, versions={}))
    opened = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert {*opened} == {"train", "validation"}
    for split, name in (("train", "calibration"), ("validation", "validation")):
        written = read_jsonl(folder / f"{name}.jsonl")
        assert opened[split]["source"][:] == [example.source for example in written]
        assert opened[split]["references"][:] == [list(example.references) for example in written]
    assert len(opened["train"]) > 0
