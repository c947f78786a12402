"""Training through DeepSpeed at every stage of ZeRO and in every number format: plain torch, whole weights, exact resumes."""

import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.spec import HeldOutAcceptance
from tasks.errors import InputError
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.layers import model_from_layers
from tasks.models.settings import LayersSettings, ModelSettings
from tasks.training import engine, loop
from tasks.training.data import Batch, DatasetSource, TokenDataset
from tasks.training.loop import DivergedError
from tasks.training.objective import CrossEntropyLoss
from tasks.training.settings import DEEPSPEED, TrainingSettings
from tests.toys import VOCABULARY, toy_sources
from tests.training import CPU, InterruptedRun, NoTokenizer, interrupt_at, train_on

LINEAR = torch.nn.functional.linear
TEXTS = TokenDataset(toy_sources(40), toy_sources(40, seed=1), 0)
RECIPE: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-2,
    "steps": 6,
    "batch_size": 8,
    "warmup_steps": 2,
    "decay": "linear",
    "weight_decay": 0.1,
    "gradient_clipping": 0.3,
    "evaluate_every": 2,
    "checkpoint_every": 4,
}
SPLIT: list[dict[str, Any]] = [
    {"zero_stage": 1},
    {"zero_stage": 2},
    {"zero_stage": 2, "offload": "optimizer"},
    {"zero_stage": 3},
    {"zero_stage": 3, "offload": "parameters"},
    {"zero_stage": 3, "activation_checkpointing": True},
]


FACTORED: list[dict[str, Any]] = [
    {"optimizer": "adafactor", "zero_stage": 1, "relative_rate": True},
    {"optimizer": "adafactor", "zero_stage": 2},
    {"optimizer": "adafactor", "zero_stage": 2, "offload": "optimizer"},
]


@pytest.fixture(autouse=True)
def _as_for_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log every step, and let stage 3 partition every weight, even ones as small as these."""
    ours = engine.deepspeed_config

    def deepspeed_config(settings: TrainingSettings) -> dict[str, object]:
        found = ours(settings)
        zero = found["zero_optimization"]
        assert isinstance(zero, dict)
        if settings.zero_stage == 3:
            zero["stage3_param_persistence_threshold"] = 0
        return found

    monkeypatch.setattr(engine, "deepspeed_config", deepspeed_config)
    monkeypatch.setattr(loop, "_LOG_EVERY", 1)


made_once = functools.cache(initial_model)


def fresh_model(dropout: float = 0.0) -> Any:
    shape = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=2, dropout=dropout, seed=3)
    return copy.deepcopy(made_once(shape, VOCABULARY, pad=0, end=1))


def trained(folder: Path, **changes: Any) -> tuple[Any, list[float]]:
    """The model, and the mean loss of each step."""
    losses: list[float] = []
    model = fresh_model()
    train_on(
        model,
        TEXTS,
        TrainingSettings(**{**RECIPE, **changes}),
        folder,
        lambda metrics, _: losses.append(metrics["loss"]) if "loss" in metrics else None,
    )
    return model, losses


def by_plain_torch(**changes: Any) -> tuple[Any, list[float]]:
    """The same recipe in plain torch, without micro-batches."""
    settings = TrainingSettings(**{**RECIPE, **changes})
    model, source, losses = fresh_model().train(), DatasetSource(TEXTS, settings), []
    if settings.optimizer == "adamw":
        optimizer: Any = torch.optim.AdamW(model.parameters(), weight_decay=settings.weight_decay)
    else:
        optimizer = engine.make_optimizer(model, dataclasses.replace(settings, zero_stage=0, offload="none"))
    for step in range(settings.steps):
        (batch,) = source.microbatches(step)
        optimizer.param_groups[0]["lr"] = settings.learning_rate * [0.5, 1, 1, 0.75, 0.5, 0.25][step]
        loss = model(input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels).loss
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clipping) > settings.gradient_clipping
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def assert_same(model: Any, other: Any, tolerance: float = 0.0) -> None:
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=tolerance, msg=name)


def test_an_own_configuration_of_deepspeed_is_used_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = DEEPSPEED / "own.json"
    file.parent.mkdir(parents=True)
    expected, curve = trained(tmp_path / "without", zero_stage=2)
    own = {"train_batch_size": 7, "gradient_clipping": "auto", "zero_optimization": {"reduce_bucket_size": 1000}}
    file.write_text(json.dumps(own), encoding="utf-8")
    model, losses = trained(tmp_path / "with", zero_stage=2, deepspeed=str(file))
    assert losses == curve
    assert_same(model, expected)
    own["zero_optimization"] = {"reduce_bucket_size": "many"}
    file.write_text(json.dumps(own), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"DeepSpeed refuses its configuration with data/deepspeed/own\.json: .*reduce_bucket_size"
    ):
        trained(tmp_path / "broken", zero_stage=2, deepspeed=str(file))


class _Noting(CrossEntropyLoss):
    """A loss that notes how float32 matrices are multiplied where it is computed."""

    def __init__(self) -> None:
        self.seen = set[tuple[bool, str]]()

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        self.seen.add((torch.is_grad_enabled(), torch.backends.cuda.matmul.fp32_precision))
        return super().sums(model, batch)


def test_steps_alone_are_in_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, which this pretends to be: evaluations are in full float32, as decoding is."""
    noting, measured = _Noting(), set[str]()
    monkeypatch.setattr(loop, "tf32", lambda settings, _: engine.tf32(settings, torch.device("cuda")))

    def measure(_: Any) -> dict[str, float]:
        measured.add(torch.backends.cuda.matmul.fp32_precision)
        return {}

    train_on(fresh_model(), TEXTS, TrainingSettings(**RECIPE), tmp_path, loss=noting, measure=measure)
    assert (noting.seen, measured) == ({(True, "tf32"), (False, "none")}, {"none"})


def slow_unless(fast: list[int], cases: list[Any]) -> list[Any]:
    """The cases, with only those at the indices of `fast` run every time."""
    return [case if index in fast else pytest.param(case, marks=pytest.mark.slow) for index, case in enumerate(cases)]


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("split", slow_unless([1, 4, 7, 8], [{}, {"optimizer": "adafactor"}, *SPLIT, *FACTORED]), ids=str)
def test_every_zero_stage_equals_plain_torch(split: dict[str, Any], accumulation: int, tmp_path: Path) -> None:
    expected, curve = by_plain_torch(**split)
    model, losses = trained(tmp_path, accumulation=accumulation, **split)
    assert losses == pytest.approx(curve, abs=2e-5)
    assert_same(model, expected, tolerance=2e-4)
    assert curve[-1] < curve[0] - 0.1


@pytest.mark.parametrize("split", slow_unless([1], [{}, {"optimizer": "adafactor"}, *SPLIT]), ids=str)
def test_bfloat16_is_close_to_float32_and_keeps_float32_weights(split: dict[str, Any], tmp_path: Path) -> None:
    # In float32 every way of splitting gives this curve.
    _, curve = trained(tmp_path / "float32", optimizer=split.get("optimizer", "adamw"))
    model, losses = trained(tmp_path / "bfloat16", precision="bfloat16", **split)
    assert losses == pytest.approx(curve, abs=0.03)
    assert losses != curve
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("split", slow_unless([1, 4], [{"optimizer": "adafactor", "weight_decay": 0.0}, *SPLIT]), ids=str)
def test_a_shared_encoder_stays_the_large_model_s_to_the_bit(split: dict[str, Any], tmp_path: Path) -> None:
    large = fresh_model(dropout=0.1)
    changes = {**RECIPE, "precision": "bfloat16", **split}
    small = model_from_layers(large, LayersSettings(layers=(1,), share_encoder=True))
    begun = {name: weight.clone() for name, weight in small.state_dict().items()}
    train_on(small, TEXTS, TrainingSettings(**changes), tmp_path)
    frozen = {"shared.weight", "decoder.embed_tokens.weight"}
    for name, weight in small.state_dict().items():
        assert torch.equal(weight, begun[name]) == (name in frozen or name.startswith("encoder.")), name
    assert all(torch.equal(weight, small.encoder.state_dict()[name]) for name, weight in large.encoder.state_dict().items())


def test_partitioned_weights_are_measured_and_saved_complete(tmp_path: Path) -> None:
    large, shapes = fresh_model(), [weight.shape for weight in fresh_model().parameters()]
    acceptance = HeldOutAcceptance(large, TEXTS, VOCABULARY, CPU)

    found = {}
    for name, changes in {"alone": {}, "split": {"zero_stage": 3, "precision": "bfloat16"}}.items():
        model = fresh_model()
        settings = TrainingSettings(**{**RECIPE, "steps": 4, **changes})
        found[name] = train_on(model, TEXTS, settings, tmp_path / name, measure=acceptance).measured
    assert found["split"] == pytest.approx(found["alone"], abs=0.02)
    assert torch.nn.functional.linear is LINEAR
    save_model(model.cpu(), NoTokenizer(), tmp_path / "saved")
    assert_same(load_model(tmp_path / "saved"), model)
    assert [weight.shape for weight in model.parameters()] == shapes


RESUMED: list[dict[str, Any]] = [
    {},
    {"precision": "bfloat16"},
    {"accumulation": 2},
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"zero_stage": 3, "offload": "parameters", "precision": "bfloat16"},
    {"optimizer": "adafactor", "precision": "bfloat16"},
    {"optimizer": "adafactor", "zero_stage": 2, "relative_rate": True},
]


@pytest.mark.parametrize("changes", slow_unless([5, 6, 7], RESUMED), ids=str)
def test_an_interrupted_run_ends_with_the_same_weights(changes: dict[str, Any], tmp_path: Path) -> None:
    # Seeds are any of 64 bits: a time of day.
    settings = TrainingSettings(**{**RECIPE, "checkpoint_every": 2, "seed": 20261124153400, **changes})
    whole, cut, resumed = (fresh_model(dropout=0.1) for _ in range(3))
    expected = train_on(whole, TEXTS, settings, tmp_path / "whole")
    with pytest.raises(InterruptedRun):
        train_on(cut, TEXTS, settings, tmp_path / "cut", interrupt_at(4))
    assert torch.nn.functional.linear is LINEAR
    outcome = train_on(resumed, TEXTS, settings, tmp_path / "cut")
    assert (expected.resumed_from, outcome.resumed_from) == (0, 2)
    assert outcome.measured == expected.measured
    assert_same(resumed, whole)
    # The log of the resumed run holds the steps before it too; every step is logged here.
    assert [*outcome.log] == [*range(1, 7)]
    for name in ("loss", "target_tokens", "validation_loss"):
        values = [[row.get(name) for row in run.log.values()] for run in (outcome, expected)]
        assert values[0] == values[1]


def test_measuring_acceptance_changes_no_weight_before_or_after_an_interruption(tmp_path: Path) -> None:
    plain, _ = trained(tmp_path / "plain")
    measure = HeldOutAcceptance(plain.eval(), TEXTS, VOCABULARY, CPU)
    with pytest.raises(InterruptedRun):
        train_on(fresh_model(), TEXTS, TrainingSettings(**RECIPE), tmp_path / "cut", interrupt_at(6), measure=measure)
    measured = fresh_model()
    outcome = train_on(measured, TEXTS, TrainingSettings(**RECIPE), tmp_path / "cut", measure=measure)
    assert_same(measured, plain)
    # The final weights are those of the model that it is compared with.
    assert outcome.measured["acceptance_rate"] == pytest.approx(1.0, abs=1e-5)
    assert outcome.measured["acceptance_greedy"] == 1.0


@pytest.mark.parametrize("zero_stage", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_the_best_weights_survive_an_interruption(zero_stage: int, tmp_path: Path) -> None:
    """A made-up quality that is best at step 4."""
    settings = TrainingSettings(
        **{**RECIPE, "steps": 8, "zero_stage": zero_stage, "choose_by": "quality", "checkpoint_every": 6}
    )

    def run(name: str, stop_at: int | None = None) -> Any:
        # After a resume at step 6 the first measurement is that of step 8.
        qualities = iter([3.0, 5.0, 4.0, 4.5, 9.0] if name == "whole" or stop_at else [4.5, 9.0])
        model = fresh_model()
        log = interrupt_at(stop_at)
        outcome = train_on(model, TEXTS, settings, tmp_path / name, log, measure=lambda _: {"quality": next(qualities)})
        return model, outcome

    whole, expected = run("whole")
    assert (expected.kept, expected.steps) == (4, 8)
    with pytest.raises(InterruptedRun):
        run("cut", stop_at=8)
    resumed, outcome = run("cut")
    assert (outcome.resumed_from, outcome.kept, outcome.steps) == (6, 4, 8)
    assert_same(resumed, whole)


class _Steep(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.inf


class _Breaking(CrossEntropyLoss):
    """A loss that breaks at the third step: in its gradient alone, or in its value."""

    def __init__(self, value: float | None = None) -> None:
        self.calls, self.value = 0, value

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        (loss,) = super().sums(model, batch)
        self.calls += torch.is_grad_enabled()
        if self.calls < 3 or not torch.is_grad_enabled():
            return [loss]
        return [_Steep.apply(loss) if self.value is None else loss * self.value]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("clipping", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("split", slow_unless([1, 5], [{}, {"optimizer": "adafactor"}, *SPLIT]), ids=str)
def test_nonfinite_weights_are_never_kept(split: dict[str, Any], clipping: float, tmp_path: Path) -> None:
    settings = TrainingSettings(
        **{**RECIPE, "gradient_clipping": clipping, "checkpoint_every": 1, "choose_by": "validation_loss", **split}
    )
    words = r"(weights are|gradient is) no longer finite at step 3; the last good checkpoint is \S+/step00000002; lower"
    with pytest.raises(DivergedError, match=words):
        train_on(fresh_model(), TEXTS, settings, tmp_path, loss=_Breaking())
    assert sorted(path.name for path in tmp_path.glob("[bs]*")) == ["best.safetensors", "step00000001", "step00000002"]


@pytest.mark.parametrize(
    ("value", "every", "good"),
    [("nan", 2, "the last good checkpoint is .*/step00000002"), ("inf", 4, "there is no checkpoint yet")],
)
def test_a_nonfinite_loss_names_the_last_good_checkpoint(value: str, every: int, good: str, tmp_path: Path) -> None:
    settings = TrainingSettings(**{**RECIPE, "checkpoint_every": every})
    with pytest.raises(DivergedError, match=f"loss is {value} at step 3; {good}; lower"):
        train_on(fresh_model(), TEXTS, settings, tmp_path, loss=_Breaking(float(value)))
