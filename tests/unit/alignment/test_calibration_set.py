"""The files of a calibration set: shards are complete or missing, and stored predictions are what is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.alignment.calibration_set import EXAMPLES, LOGITS, PREDICTIONS, Shards, StoredTopLogits, pack_top_logits
from tasks.alignment.labelling import Labeller
from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tests.calibration import DRAWN, INPUTS, TEXT, tiny

Rows = list[tuple[Tensor, Tensor]]


def predictions(lengths: list[int], seed: int, vocabulary: int = 50, scale: float = 3.0) -> Rows:
    rng = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        best, tokens = (scale * torch.randn(length, vocabulary, generator=rng)).log_softmax(-1).topk(4)
        found.append((tokens, best))
    return found


LENGTHS = ([3, 1, 7], [2], [5, 5])
"""Target positions of each example, by file."""
TARGETS = [[5] * length for lengths in LENGTHS for length in lengths]


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    (tmp_path / LOGITS).mkdir()
    for number, lengths in enumerate(LENGTHS):
        save_file(pack_top_logits(predictions(lengths, number)), tmp_path / LOGITS / f"calibration-{number:05d}.safetensors")
    save_file(pack_top_logits(predictions([4], 9)), tmp_path / LOGITS / "validation-00000.safetensors")
    return tmp_path


def test_every_example_comes_back_over_all_files(calibration: Path) -> None:
    stored = StoredTopLogits.open(calibration, "calibration", TARGETS)
    written = [row for number, lengths in enumerate(LENGTHS) for row in predictions(lengths, number)]
    assert len(stored) == len(written) == 6
    for example in (5, 0, 1, 2, 4, 3):
        tokens, numbers = stored.top_logits(example)
        assert (tokens.dtype, numbers.dtype) == (torch.int64, torch.float32)
        assert torch.equal(tokens, written[example][0])
        torch.testing.assert_close(numbers, written[example][1], rtol=1e-3, atol=1e-6)
    assert len(StoredTopLogits.open(calibration, "validation", [[5] * 4])) == 1


def test_probabilities_are_rounded_down_so_that_they_never_pass_one() -> None:
    for scale in (0.1, 3.0, 40.0):
        rows = predictions([400], 1, vocabulary=4, scale=scale)
        halves = pack_top_logits(rows)["log_probabilities"]
        assert halves.dtype == torch.float16
        assert bool((halves.float() <= rows[0][1]).all())
        assert bool((halves.float() - rows[0][1] >= -1e-3 * rows[0][1].abs() - 1e-7).all())


def test_masked_tokens_stay_finite() -> None:
    numbers = torch.tensor([[0.0, -torch.inf]])
    halves = pack_top_logits([(torch.tensor([[3, 4]]), numbers)])["log_probabilities"].float()
    assert bool(torch.isfinite(halves).all())
    assert halves.exp()[0, 1] == 0


@pytest.mark.parametrize(("largest", "dtype"), [(32767, torch.int16), (32768, torch.int32)])
def test_ids_take_as_few_bits_as_they_need(largest: int, dtype: torch.dtype) -> None:
    tokens = pack_top_logits([(torch.tensor([[largest]]), torch.tensor([[-1.0]]))])["tokens"]
    assert tokens.dtype == dtype
    assert int(tokens) == largest


def test_a_set_without_predictions_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no stored predictions.*set calibrate\.top_logits"):
        StoredTopLogits.open(tmp_path, "calibration", TARGETS)


def test_a_broken_file_is_named(calibration: Path) -> None:
    file = calibration / LOGITS / "calibration-00001.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match=r"calibration-00001\.safetensors cannot be read"):
        StoredTopLogits.open(calibration, "calibration", TARGETS)
    save_file({"tokens": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=r"calibration-00001\.safetensors holds tokens"):
        StoredTopLogits.open(calibration, "calibration", TARGETS)


def test_predictions_of_other_texts_are_refused(calibration: Path) -> None:
    for others in (TARGETS[:-1], [*TARGETS, [5]], [[5, *TARGETS[0]], *TARGETS[1:]]):
        with pytest.raises(InputError, match="belong to other texts; run the stage calibrate again"):
            StoredTopLogits.open(calibration, "calibration", others)


def _labeller() -> Labeller:
    model, tokenizer = tiny("t5")
    settings = CalibrateSettings(batch_size=32, sampling=DRAWN, seed=3)
    return Labeller(open_decoder(model, "large", 64, REFERENCE), tokenizer, TEXT, settings)


def test_a_shard_is_complete_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = _labeller().label(INPUTS[:5])
    (tmp_path / "stale" / "calibration-00000").mkdir(parents=True)
    (tmp_path / "stray").touch()
    shards = Shards(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    dumps = json.dumps

    def broken(value: Any) -> str:
        if value == labelled.counts:
            raise InterruptedError
        return dumps(value, ensure_ascii=False)

    with monkeypatch.context() as cut:
        cut.setattr("tasks.alignment.calibration_set.json.dumps", lambda value, **_: broken(value))
        with pytest.raises(InterruptedError):
            shards.write("calibration-00000", labelled)
    assert not shards.has("calibration-00000")
    shards.write("calibration-00000", labelled)
    assert Shards(tmp_path / "new").has("calibration-00000")
    assert shards.total_counts(["calibration-00000"])["kept"] == labelled.counts["kept"]
    assert read_jsonl(shards.file("calibration-00000", EXAMPLES)) == labelled.examples
    assert not shards.file("calibration-00000", PREDICTIONS).exists()
    shards.file("calibration-00000", EXAMPLES).write_text("{}")
    assert not shards.has("calibration-00000"), "what is damaged is labelled again"
    shards.write("calibration-00000", labelled)
    assert shards.has("calibration-00000")
