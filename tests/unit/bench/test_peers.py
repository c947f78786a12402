"""The comparison with other programs: the same tokens from each, honest ratios, and a conversion that keeps every weight."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.bench.peers import llama_worker, worker
from tasks.bench.peers.command import FormatRun, differing, measure_format, ratios_of
from tasks.bench.peers.contenders import Checkpoint, Contender, all_processes, contenders_of
from tasks.errors import InputError

_END = 1
_PROMPTS = [[3, 5, 7, 3, 5], [9, 2]]
_HEADS, _GROUPS = 4, 2
_KINDS = ("here", "transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(2)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": _HEADS, "num_key_value_heads": _GROUPS, "initializer_range": 0.5}
    config = LlamaConfig(**shape, **heads, eos_token_id=_END, pad_token_id=0, tie_word_embeddings=True)
    path: Path = tmp_path_factory.mktemp("peers") / "model"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def served(folder: Path, kind: str, settings: list[dict[str, Any]], small: Path | None = None) -> list[list[list[int]]]:
    """The texts of a worker for each setting, in this process."""
    first: dict[str, Any] = {"kind": kind, "folder": str(folder), "format": "float32", "ends": [_END]}
    first["small"] = None if small is None else str(small)
    lines = [first, *({"setting": one, "prompts": _PROMPTS, "limit": 12} for one in settings)]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), answers)
    opened, *found = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert opened["seconds"] > 0
    return [one["texts"] for one in found]


def test_every_way_to_decode_gives_the_same_tokens(folder: Path) -> None:
    threads = torch.get_num_threads()
    try:
        contenders = contenders_of([1], {"fallback_threshold": 0.0, "rollback_threshold": 0.0, "keep_agreed": True})
        of = {kind: [one for each in contenders if each.kind == kind for one in each.settings.values()] for kind in _KINDS}
        ours = served(folder, "here", of["here"], folder)
        # Compiling takes minutes and is tried by the benchmark itself.
        theirs = served(folder, "transformers", [one for one in of["transformers"] if "compiled" not in one["cache"]], folder)
    finally:
        torch.set_num_threads(threads)
    assert len({json.dumps(texts) for texts in ours + theirs}) == 1
    assert all(0 < len(text) <= 12 for text in ours[0])
    assert len(ours) == 1 + 1 + 2 * 3
    assert len(theirs) == 2 + 2 + 4


def test_without_a_small_model_nothing_drafts_with_one(folder: Path) -> None:
    assert [one.name for one in contenders_of([1])] == [
        *("vanilla", "speculative", "generate", "prompt look-up", "ctranslate2", "llama.cpp")
    ]
    assert all("copying" in label for label in contenders_of([1])[1].settings)
    assert served(folder, "here", [{"threads": 1}]) == served(folder, "here", list(contenders_of([1])[1].settings.values())[:1])


def test_drafting_peers_are_compared_with_drafting() -> None:
    ms = {"vanilla": [2.0], "speculative": [1.0], "bild": [0.5], "generate": [4.0], "prompt look-up": [1.5]}
    found = ratios_of(ms, {"prompt look-up"})
    assert (found["best"], found["best_without_drafts"]) == ("prompt look-up", "generate")
    assert (found["vanilla_over_best"], found["speculative_over_best"], found["bild_over_best"]) == (2.0, 1.5, 3.0)


def test_ratios_are_to_the_fastest_peer() -> None:
    ms = {"vanilla": [2.0, 4.0, 2.0], "speculative": [1.0, 1.0, 1.0], "generate": [9.0, 9.0, 9.0], "llama.cpp": [3.0, 2.0, 4.0]}
    found = ratios_of(ms)
    assert found["best"] == "llama.cpp"
    assert found["vanilla_over_best"] == 1.5  # the median of 1.5, 0.5 and 2
    assert found["speculative_over_best"] == 3.0
    assert found["over"] == {"speculative": 0.5, "generate": 4.5, "llama.cpp": 1.5}
    # Logarithms of 1.5, 0.5 and 2: mean 0.1352, standard error 0.4224; Student's t of two degrees of freedom is 4.303.
    low, high = found["over_intervals"]["llama.cpp"]
    assert (low, high) == (pytest.approx(0.186, abs=0.001), pytest.approx(7.05, abs=0.01))


def test_without_a_peer_there_is_no_ratio() -> None:
    found = ratios_of({"vanilla": [1.0], "speculative": [1.0]})
    assert found.pop("best_without_drafts") is None
    none = {"best": None, "vanilla_over_best": None, "speculative_over_best": None}
    assert found == none | {"over": {"speculative": 1.0}, "over_intervals": {}}


def test_only_texts_that_both_made_are_compared() -> None:
    assert differing({0: [1], 1: [2], 2: [3]}, {0: [1], 1: [5], 7: [9]}) == "1 of 2"


class Answering:
    """A process whose time per token depends on its setting, and whose first token takes as long as ten."""

    def __init__(self, slow: float) -> None:
        self.slow = slow
        self.opened = {"seconds": 0.5}

    def ask(self, line: dict[str, Any]) -> dict[str, Any]:
        one = line["setting"]["factor"] * self.slow
        texts = [[4] * line["limit"] for _ in line["prompts"]]
        return {"seconds": sum(len(text) + 9 for text in texts) * one, "texts": texts}


def test_each_contender_is_timed_at_its_fastest_setting() -> None:
    settings = {"slow": {"factor": 3.0}, "fast": {"factor": 1.0}}
    names = (("vanilla", "here"), ("speculative", "here"), ("generate", "transformers"), ("llama.cpp", "llama.cpp"))
    contenders = [Contender(name, kind, settings) for name, kind in names]
    processes: Any = {"here": Answering(0.001), "transformers": Answering(0.002)}
    found = measure_format(processes, contenders, FormatRun([[1], [2], [3]], 11, 2), 3)
    assert list(found["contenders"]) == ["vanilla", "speculative", "generate"]
    one = found["contenders"]["generate"]
    assert one["setting"] == "fast"
    assert one["ms_per_token"] == pytest.approx(2 * 20 / 11, abs=1e-3)
    assert one["first_token_ms"] == pytest.approx(20.0)
    assert found["vanilla_over_best"] == pytest.approx(2.0)


def test_missing_peers_say_how_to_install_them(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.bench.peers import contenders

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(contenders, "_here", lambda kind: [sys.executable, "-c", "print('{}')"])
    said: list[str] = []
    with all_processes(Checkpoint(folder, [_END], tmp_path, None), "int8", said.append) as running:
        assert list(running) == ["here"]
    assert any("ctranslate2: left out: pip install ctranslate2" in line for line in said)
    assert any("pip install llama-cpp-python gguf" in line for line in said)
    assert any(line.startswith("  transformers: left out") for line in said)
    wrong = Checkpoint(folder, [_END], tmp_path, tmp_path / "python")
    with pytest.raises(InputError, match="--llama-cpp-python"), all_processes(wrong, "int8", said.append):
        pass


def test_settings_cover_threads() -> None:
    labels = {one.name: list(one.settings) for one in contenders_of([1, 2])}
    assert labels["vanilla"] == ["1 thread", "2 threads"]
    assert "static cache, compiled, 2 threads" in labels["generate"]
    assert len(labels["llama.cpp"]) == 4


def test_every_weight_has_a_name_in_gguf(folder: Path) -> None:
    weights = llama_worker.read_weights(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    for name, values in weights.items():
        assert torch.equal(torch.from_numpy(values), model.state_dict()[name])
    names = [llama_worker.named(name) for name in weights]
    assert None not in names and len(set(names)) == len(names) == 2 + 2 * 9
    assert llama_worker.named("model.layers.1.self_attn.q_proj.weight") == "blk.1.attn_q.weight"


def test_rotary_pairs_become_neighbours() -> None:
    rows = torch.arange(8.0)[:, None].numpy()  # one column; two heads of width 4: 0 1 2 3, 4 5 6 7
    assert llama_worker.rotated(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
