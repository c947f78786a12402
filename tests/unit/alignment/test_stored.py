"""Predictions of the large model in files: what is stored is what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.alignment.stored import FOLDER, StoredTopLogits, pack_top_logits
from tasks.errors import InputError

Rows = list[tuple[Tensor, Tensor]]


def predictions(lengths: list[int], seed: int, vocabulary: int = 50, scale: float = 3.0) -> Rows:
    rng = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        best, tokens = (scale * torch.randn(length, vocabulary, generator=rng)).log_softmax(-1).topk(4)
        found.append((tokens, best))
    return found


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    for number, lengths in enumerate(([3, 1, 7], [2], [5, 5])):
        save_file(pack_top_logits(predictions(lengths, number)), tmp_path / FOLDER / f"calibration-{number:05d}.safetensors")
    save_file(pack_top_logits(predictions([4], 9)), tmp_path / FOLDER / "validation-00000.safetensors")
    return tmp_path


def test_every_example_comes_back_over_all_files(calibration: Path) -> None:
    stored = StoredTopLogits.open(calibration, "calibration")
    written = [row for number, lengths in enumerate(([3, 1, 7], [2], [5, 5])) for row in predictions(lengths, number)]
    assert len(stored) == len(written) == 6
    for example in (5, 0, 1, 2, 4, 3):
        tokens, numbers = stored.top_logits(example)
        assert (tokens.dtype, numbers.dtype) == (torch.int64, torch.float32)
        assert torch.equal(tokens, written[example][0])
        torch.testing.assert_close(numbers, written[example][1], rtol=1e-3, atol=1e-6)
    assert len(StoredTopLogits.open(calibration, "validation")) == 1


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
        StoredTopLogits.open(tmp_path, "calibration")


def test_a_broken_file_is_named(calibration: Path) -> None:
    file = calibration / FOLDER / "calibration-00001.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match=r"calibration-00001\.safetensors cannot be read"):
        StoredTopLogits.open(calibration, "calibration")
    save_file({"tokens": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=r"calibration-00001\.safetensors holds tokens"):
        StoredTopLogits.open(calibration, "calibration")


def test_predictions_of_other_texts_are_refused(calibration: Path) -> None:
    stored = StoredTopLogits.open(calibration, "calibration")
    targets = [[5] * len(stored.top_logits(example)[0]) for example in range(len(stored))]
    stored.require_matching(targets, calibration)
    for others in (targets[:-1], [*targets, [5]], [[5, *targets[0]], *targets[1:]]):
        with pytest.raises(InputError, match="belong to other texts; run the stage calibrate again"):
            stored.require_matching(others, calibration)
