"""A head over a draft vocabulary: its logits, its gradients, and that it is saved with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import InputError
from tasks.evaluation.operations import sizes_of
from tasks.models.checkpoints import load_model, save_model
from tasks.models.pair import output_vocabulary
from tasks.models.pruned_head import FILE, PrunedHead, prune_head, pruned_head
from tests.architectures import WIDTH, llama
from tests.toys import VOCABULARY

TOKENS = [1, 4, 5, 9]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return llama(1, tie_word_embeddings=True).eval()


@pytest.fixture
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))


def test_logits_and_gradients_are_those_of_the_chosen_rows() -> None:
    whole = torch.nn.Linear(3, 6)
    few, hidden = PrunedHead(whole, [4, 1]), torch.randn(2, 5, 3)
    expected = whole(hidden)
    assert few.tokens.tolist() == [1, 4]
    found = few(hidden)
    # A product of fewer rows may add up in another order, as it does on an Intel Xeon: equal but for rounding.
    torch.testing.assert_close(found[..., [1, 4]], expected[..., [1, 4]])
    assert torch.equal(found[..., [0, 2, 3, 5]], torch.full((2, 5, 4), -torch.inf))
    with few.compact():
        torch.testing.assert_close(few(hidden), expected[..., [1, 4]])
    found.softmax(-1)[..., 4].sum().backward()
    assert whole.weight.grad is not None
    assert whole.weight.grad.abs().sum(1).ne(0).tolist() == [False, True, False, False, True, False]
    assert whole.weight.grad.isfinite().all()


def test_ids_are_turned_into_rows() -> None:
    head = PrunedHead(torch.nn.Linear(3, 12), TOKENS)
    rows, inside = head.positions(torch.tensor([[1, 9], [-100, 11], [5, 2]]))
    assert rows.tolist() == [[0, 3], [0, 0], [2, 0]]
    assert inside.tolist() == [[True, True], [False, False], [True, False]]


@pytest.mark.parametrize("tokens", [[], [1, 1], [-1, 2], [3, 12]])
def test_a_draft_vocabulary_has_different_ids_that_exist(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="different ids from 0 to 11"):
        PrunedHead(torch.nn.Linear(3, 12), tokens)


def test_it_is_saved_beside_weights_that_transformers_loads(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[3, 8, 2]])
    whole = model(ids).logits
    head = prune_head(model, TOKENS)
    head.coverage = {"calibration": 0.9, "validation": 0.8, "targets": 0.7}
    assert head.weight is model.model.embed_tokens.weight
    assert output_vocabulary(model) == VOCABULARY
    save_model(model, tokenizer, tmp_path / "saved")
    assert load_file(tmp_path / "saved" / FILE)["tokens"].tolist() == TOKENS
    loaded = load_model(tmp_path / "saved")
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    found = pruned_head(loaded)
    assert found is not None
    assert found.coverage == head.coverage
    assert found.weight is loaded.model.embed_tokens.weight
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()(ids).logits, whole)


def test_a_file_of_another_model_is_one_line(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    save_model(model, tokenizer, tmp_path / "saved")
    for broken in ({"tokens": torch.tensor([VOCABULARY])}, {"other": torch.tensor([1])}):
        save_file(broken, tmp_path / "saved" / FILE)
        with pytest.raises(InputError, match=f"{FILE} does not fit the model in that folder"):
            load_model(tmp_path / "saved")


def test_a_cost_counts_the_rows_that_are_multiplied(model: Any) -> None:
    whole = sizes_of(model)
    prune_head(model, TOKENS)
    few = sizes_of(model)
    assert whole.head_parameters - few.head_parameters == (VOCABULARY - len(TOKENS)) * WIDTH
    assert whole.decoder_parameters - few.decoder_parameters == (VOCABULARY - len(TOKENS)) * WIDTH
    assert few.parameters == whole.parameters
