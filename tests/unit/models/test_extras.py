"""What is saved beside a model and loaded with it: draft heads, exit classifiers, draft vocabularies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import InputError
from tasks.evaluation.operations import sizes_of
from tasks.files import SUMS
from tasks.models.checkpoints import load_model, save_model
from tasks.models.extras import add_classifier, add_heads, classifier_of, heads_of
from tasks.models.pair import output_vocabulary
from tasks.models.pruned_head import FILE, PrunedHead, prune_head, pruned_head
from tests.architectures import WIDTH, llama
from tests.toys import VOCABULARY, toy_t5


def model_with_extras() -> Any:
    model = toy_t5(2, 1, 3)
    add_heads(model, 3, seed=5)
    add_classifier(model)
    torch.nn.init.normal_(model.exit_classifier.weight)
    return model


def test_heads_start_from_their_seed_and_are_added_once() -> None:
    starts: list[torch.Tensor] = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(starts))
        model = toy_t5(2, 1, 3)
        add_heads(model, 2, seed)
        starts.append(heads_of(model).first.detach())  # just added
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    first = heads_of(model)
    add_heads(model, 2, seed=9)
    assert heads_of(model) is first
    add_heads(model, 3, seed=9)
    assert heads_of(model).count == 3  # just added


def test_extras_come_back_and_leave_the_model_alone(tokenizer: Any, tmp_path: Path) -> None:
    model = model_with_extras()
    save_model(model, tokenizer, tmp_path / "saved")
    assert set(load_file(tmp_path / "saved/heads.safetensors")) == {"first", "second"}
    assert set(load_file(tmp_path / "saved/exit_classifier.safetensors")) == {"weight", "bias"}
    assert not any("head" in name and "lm_head" not in name for name in load_file(tmp_path / "saved/model.safetensors"))
    loaded, state = load_model(tmp_path / "saved"), model.state_dict()
    assert loaded.state_dict().keys() == state.keys()
    for name, tensor in loaded.state_dict().items():
        if name.startswith(("draft_heads", "exit_classifier", "decoder")):
            assert torch.equal(tensor, state[name])
    half = load_model(tmp_path / "saved", dtype=torch.bfloat16)
    assert half.draft_heads.first.dtype == half.exit_classifier.weight.dtype == torch.bfloat16
    assert not loaded.draft_heads.training


def test_a_model_without_extras_has_no_file_for_them(tokenizer: Any, tmp_path: Path) -> None:
    save_model(model_with_extras(), tokenizer, tmp_path / "saved")
    save_model(toy_t5(2, 1, 3), tokenizer, tmp_path / "saved")
    assert [file.name for file in (tmp_path / "saved").glob("*.safetensors")] == ["model.safetensors"]
    loaded = load_model(tmp_path / "saved")
    assert heads_of(loaded) is None
    assert classifier_of(loaded) is None


UNFIT = r" does not fit the model in that folder: .*; train it again"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-10]), UNFIT),
    "other width": (
        lambda path: save_file({"first": torch.zeros(3, 8, 4), "second": torch.zeros(3, 4, 8), "weight": torch.zeros(8)}, path),
        UNFIT,
    ),
    "other names": (lambda path: save_file({"third": torch.zeros(3, 32, 4)}, path), UNFIT),
    "not a number": (
        lambda path: save_file({name: torch.full_like(one, torch.nan) for name, one in load_file(path).items()}, path),
        "has weights that are NaN or infinite, for example in (draft_heads|exit_classifier)",
    ),
}


@pytest.mark.parametrize("file", ["heads.safetensors", "exit_classifier.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(file: str, damage: str, tokenizer: Any, tmp_path: Path) -> None:
    save_model(model_with_extras(), tokenizer, tmp_path / "saved")
    (tmp_path / "saved" / SUMS).unlink()
    spoil, words = DAMAGES[damage]
    spoil(tmp_path / "saved" / file)
    with pytest.raises(InputError, match=file + words if words == UNFIT else words):
        load_model(tmp_path / "saved")


TOKENS = [1, 4, 5, 9]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return llama(1, tie_word_embeddings=True).eval()


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
    assert found.coverage == head.coverage
    assert found.weight is loaded.model.embed_tokens.weight
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()(ids).logits, whole)


def test_a_file_of_another_model_is_one_line(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    save_model(model, tokenizer, tmp_path / "saved")
    for broken in ({"tokens": torch.tensor([VOCABULARY])}, {"other": torch.tensor([1])}):
        save_file(broken, tmp_path / "saved" / FILE)
        with pytest.raises(InputError, match=f"{FILE} does not fit the model in that folder"):
            load_model(tmp_path / "saved")


def test_capped_logits_cannot_leave_out_tokens(model: Any) -> None:
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(InputError, match=r"a logit of -infinity, which this .* would cap; leave out align.draft_vocabulary"):
        prune_head(model, TOKENS)


def test_a_cost_counts_the_rows_that_are_multiplied(model: Any) -> None:
    whole = sizes_of(model)
    prune_head(model, TOKENS)
    few = sizes_of(model)
    assert whole.head_parameters - few.head_parameters == (VOCABULARY - len(TOKENS)) * WIDTH
    assert whole.decoder_parameters - few.decoder_parameters == (VOCABULARY - len(TOKENS)) * WIDTH
    assert few.parameters == whole.parameters
