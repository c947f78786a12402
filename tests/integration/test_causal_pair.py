"""A decoder-only pair from training to the sweep: trained, saved, loaded, labelled with, aligned and measured."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from tasks.alignment.labelling import Labeller
from tasks.alignment.settings import CalibrateSettings
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoders
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import MeasuredRow, TimedRow
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.clock import PointTimer
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import PointEvaluator, RowWriter
from tasks.evaluation.sweep.run import SweepRunner, TaskSweep, measured_costs
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.pair import check_architectures, check_pair, vocabulary_size
from tasks.models.prompting import encode
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import load_tokenizer, train_tokenizer
from tasks.training.data import JsonlDataset
from tasks.training.settings import TrainingSettings
from tests.ticking import ALIGNED, here
from tests.training import train_on

TEXT = TextSettings(max_source_tokens=24, max_target_tokens=16)
SHAPE: dict[str, Any] = {"architecture": "llama", "d_kv": 16, "heads": 2, "dropout": 0.0}
LARGE = ModelSettings(**SHAPE, d_model=48, d_ff=96, decoder_layers=3, seed=1)
SMALL = ModelSettings(**SHAPE, d_model=32, d_ff=64, decoder_layers=1, seed=2)
REQUEST = Request(TEXT.max_target_tokens)


def trained(settings: ModelSettings, file: Path, tokenizer: Any, folder: Path, steps: int) -> Any:
    model = initial_model(settings, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    examples = JsonlDataset(file, tokenizer, TEXT, decoder_only=True)
    losses: list[float] = []
    recipe = TrainingSettings(optimizer="adamw", learning_rate=5e-3, steps=steps, batch_size=32, evaluate_every=steps)

    def log(metrics: dict[str, float], _: int) -> None:
        losses.extend(value for name, value in metrics.items() if name == "loss")

    outcome = train_on(model, examples, recipe, folder / "resume", log)
    assert outcome.measured["validation_loss"] < losses[0] - 0.5
    save_model(model, tokenizer, folder / "model")
    return load_model(folder / "model")


@dataclasses.dataclass(frozen=True)
class Trained:
    pair: Pair
    tokenizer: Any
    examples: list[Example]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trained to copy the first two words of three; the small model is then aligned to the outputs of the large one."""
    folder, rng = tmp_path_factory.mktemp("causal"), random.Random(0)
    words = ["red", "blue", "green", "black", "white", "brown"]
    sources = [rng.choices(words, k=3) for _ in range(160)]
    examples = [Example(" ".join(three), (" ".join(three[:2]),)) for three in sources]
    write_jsonl(examples, folder / "train.jsonl")
    # Sixty-four pieces need more text than six words.
    text = [f"{example.source} {place * 37}" for place, example in enumerate(examples)]
    tokenizer = train_tokenizer(text, TokenizerSettings(vocabulary=64))
    large = trained(LARGE, folder / "train.jsonl", tokenizer, folder / "large", steps=80)
    kept = load_tokenizer(folder / "large" / "model")
    assert kept.get_vocab() == tokenizer.get_vocab()
    vocabulary = vocabulary_size(kept, large)
    labeller = Labeller(open_decoders(large, large, vocabulary).large, kept, TEXT, CalibrateSettings(batch_size=32))
    labelled = labeller.label(examples).examples
    assert len(labelled) > 100
    write_jsonl(labelled, folder / "calibration.jsonl")
    small = trained(SMALL, folder / "calibration.jsonl", kept, folder / "aligned", steps=60)
    check_pair(load_tokenizer(folder / "aligned" / "model"), kept, "aligned", "large")
    check_architectures(small, large)
    calibration = encode(kept, [example.references[0] for example in labelled], TEXT.max_target_tokens)
    return Trained(open_decoders(small, large, vocabulary, calibration), kept, examples)


def test_the_pair_has_learned_to_copy(ready: Trained) -> None:
    sources = encode(ready.tokenizer, [example.source for example in ready.examples[:60]], TEXT.max_source_tokens)
    outputs = decode("vanilla_large", VanillaSettings(), ready.pair, sources, REQUEST)
    ended = sum(one.tokens[-1] == ready.tokenizer.eos_token_id for one in outputs)
    texts = ready.tokenizer.batch_decode([one.tokens for one in outputs], skip_special_tokens=True)
    first = sum(text.split()[:1] == example.source.split()[:1] for text, example in zip(texts, ready.examples, strict=False))
    assert ended > 50
    assert first > 40


LOOKED_UP = ("bigram", "suffix")


def test_a_sweep_is_planned_and_timed(ready: Trained, tmp_path: Path) -> None:
    sweep = SweepSettings(quality_batch=16, latency_examples=2, warmup_examples=0, bootstrap_samples=100, sample=1)
    split = Split("validation", ready.examples[:24], ready.tokenizer, TEXT, sweep)
    evaluator = PointEvaluator(lambda: ready.pair, ready.tokenizer, "bleu", REQUEST, sweep)
    writer = RowWriter(evaluator, SweepRowFile(tmp_path / "rows.jsonl", "f"), "toy", "aligned")
    timer = PointTimer({ALIGNED: ready.pair}, sweep, "cpu")
    costs = measured_costs(tmp_path / "costs.json", split, REQUEST, lambda: timer)
    assert costs is not None
    runner = SweepRunner(ALIGNED, writer, tmp_path / "predictions", costs=costs)
    grid = [
        SweepPoint("speculative", SpeculativeSettings(draft_length=3)),
        SweepPoint("bild", BildSettings()),
        *(SweepPoint("speculative", SpeculativeSettings(drafter=drafter)) for drafter in LOOKED_UP),
    ]
    whole = TaskSweep({ALIGNED: runner}, {ALIGNED: grid}, here(timer))
    vanilla, _, *rows = [row for row in whole.validate(split)[ALIGNED] if isinstance(row, MeasuredRow)]
    assert len(rows) == len(grid)
    drafted, loose, *tables = (next(row for row in rows if row.settings == point.plain_settings) for point in grid)
    assert {row.how for row in rows} == {"replayed"}
    assert all(row.quality == vanilla.quality for row in (drafted, *tables))
    assert all(row.counts.accepted > 0 == row.counts.small_steps for row in tables)
    assert drafted.counts.large_calls < vanilla.counts.large_calls
    assert isinstance(loose, TimedRow)
    assert loose.speedup > 0
