"""The parts of a training spec, pairs that cannot be aligned, acceptance that drafters are measured by, draft vocabularies."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.alignment import spec as spec_module
from tasks.alignment.calibration_set import LOGITS, pack_top_logits
from tasks.alignment.losses import DivergenceLoss
from tasks.alignment.settings import LOSSES, AlignSettings
from tasks.alignment.spec import HeldOutAcceptance, alignment_spec, describe_method, most_written, prune_drafter, start_model
from tasks.corpora.example import write_jsonl
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.pruned_head import pruned_head
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.data import TokenDataset
from tasks.training.stage import TrainingContext, open_context
from tests.calibration import INPUTS, tiny
from tests.distillation import CAUSAL, by_single_steps, pair, whole
from tests.training import job_of

CPU = torch.device("cpu")
PATHS = TaskPaths("toy")
SHAPE = ModelSettings(d_model=16, d_ff=16, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1)
DECODER_ONLY = dataclasses.replace(SHAPE, architecture="llama")


def tokenizer_of(words: str) -> Any:
    text = [f"{words} {one}{other}{third}" for one in words for other in words for third in words]
    return train_tokenizer(text, TokenizerSettings(vocabulary=64))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_of("abcdefghijklm")


def saved(folder: Path, tokenizer: Any, shape: ModelSettings = SHAPE) -> Path:
    save_model(initial_model(shape, 64, 0, 1), tokenizer, folder)
    return folder


def opened(tokenizer: Any) -> TrainingContext:
    """Of a job whose files are relative to where the test runs."""
    job = job_of(PATHS, SHAPE, AlignSettings(), name="aligned", stage="align", text=TextSettings(max_target_tokens=6))
    examples, held_out = (TokenDataset([[5, 6, 1], [7, 1]], [[8, 1], [9, 4, 1]], 0) for _ in range(2))
    drafter = initial_model(dataclasses.replace(SHAPE, seed=9), 64, 0, 1)
    return TrainingContext(job, drafter, tokenizer, examples, held_out, CPU, Path("resume"))


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_alignment_begins_as_the_small_model_or_with_what_became_of_it(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    assert start_model(AlignSettings(), SHAPE, tmp_path / "small") is SHAPE
    begun = start_model(AlignSettings(start="fine_tuned"), SHAPE, tmp_path / "small")
    assert begun == dataclasses.replace(SHAPE, pretrained=str(tmp_path / "small"))
    with pytest.raises(InputError, match=r"align\.start is fine_tuned, but there is no model at .*nothing; run stage fine"):
        start_model(AlignSettings(start="fine_tuned"), SHAPE, tmp_path / "nothing")


def test_the_card_names_the_loss_with_its_papers() -> None:
    assert all("(" in describe_method(AlignSettings(loss=loss)) for loss in LOSSES)
    assert "divergence of weight 0.1 at each position" in describe_method(AlignSettings(loss="jensen_shannon", beta=0.1))


def test_incompatible_models_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is encoder-decoder .* but the large one is decoder-only"):
        alignment_spec(opened(tokenizer), AlignSettings(), saved(tmp_path / "causal", tokenizer, DECODER_ONLY))
    foreign = saved(tmp_path / "foreign", tokenizer_of("nopqrstuvwxyz"))
    with pytest.raises(InputError, match="a pair needs one tokenizer: take two models that have it, or train both with it"):
        alignment_spec(opened(tokenizer), AlignSettings(), foreign)


def test_acceptance_is_measured_for_every_loss_and_text(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    for settings in (AlignSettings(), AlignSettings(loss="total_variation")):
        learned = alignment_spec(small, settings, large)
        assert learned.measure is not None
        assert learned.measure(small.model).keys() == {"acceptance_rate", "acceptance_greedy"}
        assert isinstance(learned.loss, DivergenceLoss) == (settings.loss != "sequence")


def test_the_large_model_teaches_in_its_own_number_format(tokenizer: Any, tmp_path: Path) -> None:
    small, text = opened(tokenizer), AlignSettings(loss="forward_kl")
    exact = initial_model(SHAPE, 64, 0, 1)
    with torch.no_grad():
        for weight in exact.parameters():
            weight.copy_(weight.bfloat16())
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        save_model(exact.to(dtype), tokenizer, tmp_path / str(dtype))
        learned = alignment_spec(small, text, tmp_path / str(dtype))
        assert learned.loss is not None and learned.measure is not None
        [loss] = learned.loss.sums(small.model.eval(), small.held_out.batch([0, 1]))
        found[dtype] = [loss.item(), *learned.measure(small.model).values()]
        assert loss.dtype == torch.float32
    assert found[torch.bfloat16] != found[torch.float32]
    assert found[torch.bfloat16] == pytest.approx(found[torch.float32], rel=0.01)


def test_the_loss_reads_beta_from_the_settings(tokenizer: Any, tmp_path: Path) -> None:
    large, small = saved(tmp_path / "large", tokenizer), opened(tokenizer)
    small.model.eval()
    found = []
    for beta in (0.1, 0.9):
        loss = alignment_spec(small, AlignSettings(loss="jensen_shannon", beta=beta), large).loss
        found.append(loss.sums(small.model, small.held_out.batch([0, 1]))[0].item())
    assert abs(found[0] - found[1]) > 1e-4


def test_stored_predictions_are_read_or_missed_in_one_line(tokenizer: Any, tmp_path: Path) -> None:
    large, settings = saved(tmp_path / "large", tokenizer), AlignSettings(loss="forward_kl", reference="stored")
    with pytest.raises(InputError, match=r"no stored predictions of the large model; set calibrate\.top_logits"):
        alignment_spec(opened(tokenizer), settings, large)
    folder = PATHS.calibration / LOGITS
    folder.mkdir(parents=True)
    top = [torch.randn(length, 64).log_softmax(-1).topk(3) for length in (2, 3)]
    for which in ("calibration", "validation"):
        save_file(pack_top_logits([(one.indices, one.values) for one in top]), folder / f"{which}-00000.safetensors")
    ready = opened(tokenizer)
    learned = alignment_spec(ready, settings, large)
    [part] = learned.source.microbatches(0)
    assert part.top.tokens.shape == (2, 3, 3)
    for batch in (part, ready.held_out.batch([0, 1])):
        assert all(term.isfinite() for term in learned.loss.sums(ready.model, batch))


class Says(torch.nn.Module):
    """A model that predicts the same distribution everywhere."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(probabilities).log()
        self.config = SimpleNamespace(is_encoder_decoder=True)
        self.runs = 0

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return labels

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, use_cache: bool) -> Any:
        self.runs += 1
        return SimpleNamespace(logits=self.logits.expand(*decoder_input_ids.shape, -1))


def measured(large: Any, drafter: Any, targets: list[list[int]]) -> dict[str, float]:
    texts = TokenDataset([[5, 6, 1][: 1 + index % 3] for index in range(len(targets))], targets, 0)
    return HeldOutAcceptance(large, texts, 3, CPU)(drafter)


def test_acceptance_is_the_mean_over_positions_not_over_texts() -> None:
    texts = [[3, 1], [3, 4, 5, 1], [1]]
    found = measured(Says([0.5, 0.3, 0.2]), Says([0.2, 0.5, 0.3]), texts)
    assert found == {"acceptance_rate": pytest.approx(0.2 + 0.3 + 0.2), "acceptance_greedy": 0.0}
    found = measured(Says([0.5, 0.3, 0.2]), Says([0.4, 0.3, 0.3]), texts)
    assert found == {"acceptance_rate": pytest.approx(0.9), "acceptance_greedy": 1.0}


def test_each_text_has_its_own_sums_the_shortest_first() -> None:
    measure = HeldOutAcceptance(Says([0.5, 0.3, 0.2]), TokenDataset([[5, 1]] * 3, [[3, 1], [3, 4, 5, 1], [1]], 0), 3, CPU)
    found = measure.by_text(Says([0.4, 0.3, 0.3]))
    assert found["positions"] == found["acceptance_greedy"] == [1, 2, 4]
    assert found["acceptance_rate"] == pytest.approx([0.9, 1.8, 3.6])


def test_predictions_past_the_vocabulary_are_cut_before_the_softmax() -> None:
    padded = Says([0.25, 0.15, 0.1, 0.5])
    assert measured(padded, Says([0.5, 0.3, 0.2]), [[1]])["acceptance_rate"] == pytest.approx(1.0)


@pytest.mark.parametrize("kept", [True, False])
def test_the_large_model_runs_once_where_its_distributions_fit(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_module, "_MOST_KEPT", 4 * 3 * 300 if kept else 4 * 3 * 300 - 1)
    large, drafter = Says([0.5, 0.3, 0.2]), Says([0.2, 0.5, 0.3])
    measure = HeldOutAcceptance(large, TokenDataset([[5, 1]] * 100, [[3, 4, 1]] * 100, 0), 3, CPU)
    found = [measure(drafter) for _ in range(3)]
    assert found[0] == found[2] == {"acceptance_rate": pytest.approx(0.7), "acceptance_greedy": 0.0}
    assert (large.runs, drafter.runs) == (2 if kept else 6, 6)


@CAUSAL
def test_batches_give_what_whole_forward_passes_give_token_by_token(causal: bool) -> None:
    drafter, large = pair(causal)
    shared, agreed = [], []
    for p, q in zip(by_single_steps(large, causal), by_single_steps(drafter, causal), strict=True):
        shared += torch.minimum(p.exp(), q.exp()).sum(-1).tolist()
        agreed += (p.argmax(-1) == q.argmax(-1)).tolist()
    measure = HeldOutAcceptance(large, whole(causal), 24, CPU)
    found = measure(drafter)
    assert found["acceptance_rate"] == pytest.approx(sum(shared) / 11, abs=1e-5)
    assert found["acceptance_greedy"] == pytest.approx(sum(agreed) / 11)
    assert measure(large)["acceptance_rate"] == pytest.approx(1.0, abs=1e-5)


def test_the_most_written_tokens_come_after_the_special_ones() -> None:
    texts = [[7, 7, 7, 1], [5, 9, 9, 1], [4, 5, 1]]
    assert most_written(texts, 3, 12, {0, 1, 99}) == [0, 1, 7]
    assert most_written(texts, 5, 12, {0, 1}) == [0, 1, 5, 7, 9]
    # Of equally frequent tokens the lower one, also of those that never occur.
    assert most_written(texts, 8, 12, {0, 1}) == [0, 1, 2, 3, 4, 5, 7, 9]
    assert most_written(texts, 12, 12, {0, 1}) == list(range(12))


@pytest.mark.parametrize(
    ("size", "message"),
    [(13, "draft_vocabulary is 13, but the tokenizer has 12 tokens; lower it"), (2, "has 2 special tokens, which come first")],
)
def test_a_size_that_does_not_fit_is_one_line(size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        most_written([[7]], size, 12, {0, 1})


def arm_of(name: str) -> TrainingContext:
    """The drafter of an arm."""
    stage, file = ("align", PATHS.calibration_set) if name == "aligned" else ("control", PATHS.control_set)
    files = {"train_file": file, "held_out_file": PATHS.held_out_calibration}
    return open_context(job_of(PATHS, SHAPE, AlignSettings(), name=name, stage=stage, **files))


def test_both_arms_predict_what_the_large_model_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """It writes other text than the references hold."""
    tiny("t5")[1].save_pretrained(PATHS.tokenizer)
    PATHS.calibration.mkdir(parents=True)
    large_writes = [dataclasses.replace(one, references=("red blue red",)) for one in INPUTS[:8]]
    write_jsonl(large_writes, PATHS.calibration_set)
    write_jsonl([*large_writes[:2], INPUTS[8]], PATHS.held_out_calibration)
    write_jsonl(INPUTS[:8], PATHS.control_set)
    heads = {}
    written = arm_of("aligned")
    needed = {*written.tokenizer.all_special_ids, *written.examples.targets[0]}
    for arm in ("aligned", "unaligned"):
        context = arm_of(arm)
        prune_drafter(context, len(needed), 64)
        heads[arm] = pruned_head(context.model)
    aligned, control = heads["aligned"], heads["unaligned"]
    assert aligned.tokens.tolist() == control.tokens.tolist()
    kept = set(aligned.tokens.tolist())
    assert kept == needed
    assert aligned.coverage["calibration"] == aligned.coverage["targets"] == control.coverage["calibration"] == 1.0
    assert aligned.coverage["validation"] == control.coverage["validation"] < 1.0
    references = [token for text in arm_of("unaligned").examples.targets for token in text]
    assert control.coverage["targets"] == sum(token in kept for token in references) / len(references) < 0.9
    printed = capsys.readouterr().err
    assert f"toy: control unaligned: draft vocabulary of {len(kept)} tokens, with 100.00% of the large model's" in printed
