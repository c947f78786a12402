"""Rehearses a paper's experiment on a CPU: `python -m tests.rehearse xsum-bild`, or `make rehearse TASK=xsum-bild`.

Every stage runs as it would, through DVC, Prefect and MLflow, in a copy of this working tree: on models of the paper's class
that are shrunk in width and depth alone, with a tokenizer of the paper's kind, on texts of this project in the data set's own
columns. Its numbers mean nothing.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GemmaTokenizer,
    GPT2Tokenizer,
    PreTrainedTokenizerBase,
    T5Tokenizer,
)

from tasks.corpora import translation
from tasks.corpora.data_sets import DATA_SETS, PARQUET
from tasks.corpora.example import SPLITS, Example
from tasks.corpora.settings import columns_of
from tasks.errors import one_line_errors
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.presets import FIRST_LAYER, MODELS, Section, Variant, variant_of
from tests.mutants.__main__ import copy_tree
from tests.served import spare_tables

ROOT, FOLDER = Path(__file__).parents[1], Path("build/rehearsal")
SIZES = {"train": 200, "validation": 16, "test": 16}
PRE_TRAINING, LONGEST, WRITTEN, KNOWN = 60, 192, 12, 4
"""Steps that pre-train a stand-in, most tokens of a source and of a text that it learns, and the number of these texts."""
NOTE = "This is a rehearsal of {}: tiny models on texts of this project. Its numbers mean nothing."
UNKNOWN = "<unk>"
TURNS = ["<start_of_turn>", "<end_of_turn>"]
CHAT = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""As Gemma's, which knows no system message."""
SHRUNK: dict[str, dict[str, int]] = {
    "t5": {"d_model": 48, "d_ff": 96, "d_kv": 16, "num_heads": 3, "num_layers": 2},
    "gpt2": {"n_embd": 48, "n_head": 3, "n_layer": 3},
    "gemma2": {"hidden_size": 48, "intermediate_size": 96, "head_dim": 16, "query_pre_attn_scalar": 16}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3},
}
SHRUNK["mt5"] = SHRUNK["t5"]
MACHINE = {"device": "cpu", "runtime": "auto", "dtype": "float32", "drafter_dtype": "same", "threads": 1}
DEPTHS = ("num_layers", "n_layer", "num_hidden_layers")


def texts(count: dict[str, int]) -> dict[str, list[Example]]:
    """German sentences with English translations."""
    return translation.generate(count, seed=5)


def row_of(data_set: str, columns: dict[str, str], example: Example, number: int) -> dict[str, Any]:
    """A row with the columns of a data set: a short text where a reference belongs, a longer one elsewhere."""
    english, german = example.references[0], example.source
    found: dict[str, Any] = {}
    for column, role in columns.items():
        value: Any = english if role == "reference_fields" else f"{german} {english}"
        if column.endswith((".de", ".en")) or column in ("de", "en"):
            value = german if column.endswith("de") else english
        elif column == "answer" and data_set == "gsm8k":
            value = f"{english}\n#### {number % 10}"
        elif column in ("answers.text", "answer.aliases", "answers", "answer"):
            value = [english, english.upper()]
        elif column == "code":
            value = f"def f(x):\n    return x + {number % 3}"
        elif column == "test_list":
            value = [f"assert f(1) == {1 + number % 3}"]
        elif column == "test_setup_code":
            value = ""
        inner = found
        *outer, name = column.split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return found


def write_data_set(variant: Variant, folder: Path) -> list[str]:
    """Write a stand-in of the data set, with its columns and splits; return its texts."""
    data_set = DATA_SETS[variant.data_set]
    columns = columns_of(data_set, labelled=not data_set.passage_words)
    examples, all_texts = texts({**SIZES, "train": SIZES["train"] + 8}), []
    place = folder / data_set.configuration if data_set.revision == PARQUET else folder
    place.mkdir(parents=True)
    for split in SPLITS:
        rows = [row_of(variant.data_set, columns, one, number) for number, one in enumerate(examples[split])]
        if data_set.passage_words:  # passages are made of joined rows
            rows *= 8
        name = data_set.splits[split].partition("[")[0]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with (place / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(lines)
        all_texts += [text for one in examples[split] for text in (one.source, *one.references)]
    return all_texts


def names_of(variant: Variant) -> dict[str, str]:
    """The published models of the first pair."""
    return dict(zip(("small", "large"), variant.pairs[0].split(":"), strict=True))


def tokenizer_of(kind: str, lines: list[str]) -> PreTrainedTokenizerBase:
    """A tokenizer of the paper's kind, trained on a few texts: Unigram (T5 has 100 spare tokens), or BPE (GPT-2, Gemma)."""
    if kind in ("t5", "mt5"):
        model = _model_of(train_tokenizer(lines, TokenizerSettings(vocabulary=400)).backend_tokenizer)
        return T5Tokenizer(vocab=[(piece, score) for piece, score in model["vocab"]], extra_ids=100 if kind == "t5" else 0)
    if kind == "gpt2":
        trained, bytes_first = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.pre_tokenizer = bytes_first
        trainer = BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=bytes_first.alphabet())
        trained.train_from_iterator(lines, trainer)
        model = _model_of(trained)
        return GPT2Tokenizer(vocab=model["vocab"], merges=list(map(tuple, model["merges"])))
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token=UNKNOWN))
    trained.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    trainer = BpeTrainer(vocab_size=700, special_tokens=["<pad>", "<eos>", "<bos>", UNKNOWN, "<mask>", *TURNS])
    trained.train_from_iterator([line.replace(" ", "▁") for line in lines], trainer)
    model = _model_of(trained)
    made = GemmaTokenizer(vocab=model["vocab"], merges=list(map(tuple, model["merges"])))
    made.add_tokens([AddedToken(name, special=True) for name in TURNS], special_tokens=True)
    made.chat_template = CHAT
    return made


def _model_of(trained: Tokenizer) -> dict[str, Any]:
    """Vocabulary and merges of a trained tokenizer."""
    found: dict[str, Any] = json.loads(trained.to_str())["model"]
    return found


def write_model(variant: Variant, model: str, folder: Path, tokenizer: PreTrainedTokenizerBase, lines: list[str]) -> None:
    """Write a model of a published one's class, with its vocabulary and its tokenizer's ids, which writes short texts.

    Args:
        variant: Whose first pair is taken.
        model: `small` or `large`.
        folder: Where it is written.
        tokenizer: Of the pair.
        lines: Texts to learn from.
    """
    shape = {key: value for key, value in MODELS[names_of(variant)[model]].items() if key not in ("tokenizer", "dtype")}
    kind, vocabulary = shape.pop("model_type"), shape.pop("vocab_size")
    shape |= SHRUNK[kind]
    shape |= {depth: 1 for depth in DEPTHS if depth in shape and model == "small"}
    shape |= {f"{one}_token_id": getattr(tokenizer, f"{one}_token_id") for one in ("pad", "eos", "bos")}
    if kind in ("t5", "mt5"):
        shape["decoder_start_token_id"] = tokenizer.pad_token_id
    config = AutoConfig.for_model(kind, **shape, vocab_size=len(tokenizer))
    made = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    pre_train(made, variant, tokenizer, lines)
    # The published number of rows, of which those behind the tokenizer's are padding.
    made.resize_token_embeddings(vocabulary, mean_resizing=False)
    with torch.no_grad():
        made.get_output_embeddings().weight[len(tokenizer) :] = 0
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def pre_train(model: Any, variant: Variant, tokenizer: PreTrainedTokenizerBase, lines: list[str]) -> None:
    """Teach a model the beginnings of a few texts, each with its end, whatever the source."""

    def ids(line: str) -> list[int]:
        return list(tokenizer(line, add_special_tokens=False)["input_ids"])

    # A decoder-only model writes behind the words with which an answer begins in a chat, or behind an end token.
    before = ids(f"{TURNS[1]}\n{TURNS[0]}model\n") if variant.text.get("chat_template") else [tokenizer.eos_token_id]
    encoder_decoder, longest = model.config.is_encoder_decoder, min(WRITTEN, variant.lengths[1] - 2)
    known = [[*ids(line)[:longest], tokenizer.eos_token_id] for line in lines[:KNOWN]]
    torch.manual_seed(1)
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-2), random.Random(1)
    # Behind long prompts it takes more steps.
    for _ in range(PRE_TRAINING if encoder_decoder else 3 * PRE_TRAINING):
        targets = [rng.choice(known) for _ in range(8)]
        sources = [
            ids(" ".join(rng.sample(lines, 8)))[: rng.randrange(8, 24 if encoder_decoder else LONGEST - WRITTEN)]
            for _ in targets
        ]
        if not encoder_decoder:
            sources = [[*source, *before, *target] for source, target in zip(sources, targets, strict=True)]
            targets = [[-100] * (len(source) - len(target)) + target for source, target in zip(sources, targets, strict=True)]
        read, wanted = (
            pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=padding)
            for rows, padding in ((sources, tokenizer.eos_token_id), (targets, -100))
        )
        model.train()(input_ids=read, labels=wanted).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def section_of(variant: Variant, small: str, large: str) -> Section:
    """The variant's task at the scale of an hour, with stand-ins in place of its models, and still fewer steps and texts."""
    task = variant.section(scale="hour")
    task["tokenizer"]["pretrained"] = task["models"]["large"]["pretrained"] = large
    if "pretrained" in task["models"]["small"]:
        task["models"]["small"]["pretrained"] = small
    task["text"] |= {"max_source_tokens": min(variant.lengths[0], LONGEST), "max_target_tokens": min(variant.lengths[1], 24)}
    for training in (task["finetune"]["large"], task["align"]):
        if training["steps"]:
            training |= {"steps": 4, "batch_size": 8, "evaluate_every": 4, "checkpoint_every": 4}
            training.pop("warmup_steps", None)
    task["calibrate"] |= {"fraction": 0.3, "max_repeats": 0}
    task["corpus"]["hub"]["splits"] = _splits(DATA_SETS[variant.data_set].splits)
    task["corpus"]["note"] = NOTE.format(variant.printed)
    task["sweep"]["grid"] = [_first_values(entry) for entry in task["sweep"]["grid"]]
    task["sweep"] |= {
        "latency_examples": 2,
        "latency_rounds": 1,
        "warmup_examples": 1,
        "bootstrap_samples": 100,
        "batch_sizes": [],
    }
    if "temperatures" in task["sweep"]:
        task["sweep"]["temperatures"] = task["sweep"]["temperatures"][:1]
    if "run_generated_code" in task:
        task["run_generated_code"] = True
    return task


def _splits(splits: Any) -> dict[str, str]:
    """The splits of the data set with slices that fit the stand-in."""
    held = SIZES["validation"]
    return {
        name: f"train[:-{held}]" if "[:-" in spec else f"train[-{held}:]" if "[-" in spec else spec
        for name, spec in splits.items()
    }


def _first_values(entry: Section) -> Section:
    """One value of each setting, but all drafters."""
    kept = {name: values if name == "drafter" else values[:1] for name, values in entry["values"].items()}
    return {"method": entry["method"], "values": kept}


def make_project(variant: Variant, folder: Path, device: str = "cpu") -> None:
    """Copy this working tree to a repository of its own, whose one task is the variant on stand-ins."""
    copy_tree(ROOT, folder, without=("tests/", "docs/"))
    (folder / "dvc.lock").unlink(missing_ok=True)
    place = Path("stand-ins") / variant.name
    lines = write_data_set(variant, folder / place / "data")
    tokenizer = tokenizer_of(MODELS[names_of(variant)["large"]]["tokenizer"], lines)
    for model in [one for one, name in names_of(variant).items() if name != FIRST_LAYER]:
        write_model(variant, model, folder / place / model, tokenizer, lines)
    section = section_of(variant, f"{place}/small", f"{place}/large")
    machine = MACHINE | {"device": device}
    params: Section = {"active": {variant.name: f"{place}/data"}, "machine": machine, "tasks": {variant.name: section}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    identity = ["-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "rehearsal"]):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)


def rehearse(variant: Variant, folder: Path, device: str = "cpu") -> int:
    """Run the pipeline of a variant in a new folder; return its exit status."""
    make_project(variant, folder, device)
    (folder / ".cache").mkdir()
    spare_tables(folder / ".cache")
    command = [sys.executable, "-m", "flows.pipeline"]
    return subprocess.run(command, cwd=folder, env=dict(_environment(folder)), check=False).returncode


def _environment(folder: Path) -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if not name.startswith(("MLFLOW_", "PREFECT_", "DRAFTLINE_")):
            yield name, value
    locks = folder / ".cache" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    # Locks of its own, and no hub: everything is here.
    yield from {"TMPDIR": str(locks), "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items()
    yield "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def main() -> int:
    """Rehearse the variant that is named; return the exit status of the pipeline."""
    parser = argparse.ArgumentParser(prog="python -m tests.rehearse", description=__doc__.split("\n")[0])
    parser.add_argument("variant", help="as draftline presets lists it, such as xsum-bild")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    variant = variant_of(given.variant)
    folder = (FOLDER / variant.name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    # Tiny models: a second thread waits more than it works, and on a busy machine makes a step 18 times as long.
    torch.set_num_threads(1)
    begun = time.monotonic()
    status = rehearse(variant, folder, given.device)
    if status == 0:
        report = folder / "results" / variant.name / "report.html"
        took = f"{time.monotonic() - begun:.0f} s"
        print(f"rehearsal: every stage of {variant.name} ran in {took}; its numbers mean nothing: {report}")
    return status


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
