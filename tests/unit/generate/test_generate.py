"""The command generate: which point decodes, texts from everywhere, how they are written, and refusals."""

import copy
import io
import json
import math
import re
import sys
from pathlib import Path

import pytest

from tasks.decoding.generation import Counts, Generation
from tasks.decoding.registry import METHODS
from tasks.decoding.turn import RowState
from tasks.errors import InputError
from tasks.generate import __main__ as command
from tasks.generate.__main__ import BRACKETS, COLOURS, Marks, TextWriter, Times, statistics_line, swept_speedup, total_line
from tasks.generate.pair import Chosen, MethodChoice, choose, drafter_folder, own_point
from tasks.models import tokenizers
from tasks.models.checkpoints import save_model
from tasks.paths import TaskPaths
from tests.calibration import SOURCES, tiny
from tests.commands import Run, runner
from tests.finished import finished, write


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a large model for which a copy of itself drafts, without its padding of the vocabulary."""
    folder = tmp_path_factory.mktemp("pair")
    model, tokenizer = copy.deepcopy(tiny("t5"))
    save_model(model, tokenizer, folder / "small")
    model.resize_token_embeddings(len(tokenizer) + 8)
    save_model(model, tokenizer, folder / "large")
    return ["--large", str(folder / "large"), "--small", str(folder / "small"), "--max-tokens", "12"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(command.main, monkeypatch, capsys)


def test_json_says_all_of_a_text(run: Run, pair: list[str]) -> None:
    words = ["--json", "--method", "speculative", "--set", "draft_length=4", *SOURCES[:2]]
    status, printed, said = run(*pair, *words)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert status == 0
    assert [line["source"] for line in lines] == SOURCES[:2]
    for line in lines:
        assert line["counts"]["tokens"] == len(line["tokens"]) == len(line["proposers"])
        assert line["settings"]["draft_length"] == 4
        counts = line["counts"]
        assert (line["acceptance_rate"], counts["rejected"]) == (1, 0)
        assert counts["drafted"] == counts["accepted"] + counts["unverified"]
        assert line["same_as_vanilla"] is True
        # The ratio of a text of milliseconds is mostly chance; on a busy machine one may take longer.
        method, vanilla = line["latency_ms"], line["vanilla_latency_ms"]
        assert line["speedup"] == (None if vanilla < 100 else pytest.approx(vanilla / method))
    assert "speculative drafter=small draft_length=4 (as given); native" in said


@pytest.mark.parametrize("method", ["vanilla_small", "speculative", "sequence_cascade", "beam_large"])
def test_a_text_is_the_same_streamed_or_whole(run: Run, method: str, pair: list[str]) -> None:
    """A method of several passes is written whole."""
    assert method in METHODS
    words = [*pair, "--method", method, "--rounds", "0", SOURCES[0]]
    _, streamed, said = run(*words)
    _, whole, _ = run(*words, "--json")
    line = json.loads(whole)
    assert "latency_ms" not in line
    text, statistics = streamed.splitlines()
    assert text.translate(str.maketrans("", "", "[]{}")) == line["text"]
    assert statistics.strip().startswith(f"{line['counts']['tokens']} tokens")
    assert "[drafted] and kept" in said


def test_texts_come_from_a_file_or_stdin(run: Run, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(SOURCES[:3]) + "\n", encoding="utf-8")
    _, from_file, _ = run(*pair, "--json", "--rounds", "0", "--file", str(file))
    monkeypatch.setattr(sys, "stdin", io.StringIO(file.read_text(encoding="utf-8")))
    _, from_stdin, _ = run(*pair, "--json", "--rounds", "0")
    assert from_file == from_stdin
    assert [json.loads(line)["source"] for line in from_file.splitlines()] == SOURCES[:3]


def test_a_text_that_is_read_in_part_or_has_unknown_characters_has_a_warning(run: Run, pair: list[str]) -> None:
    words = [*pair, "--json", "--rounds", "0"]
    assert "warning" not in run(*words, SOURCES[0]).said
    assert re.search(r"^warning: [1-3] of the text's \d tokens are unknown to the models$", run(*words, "日本語").said, re.M)
    _, output, said = run(*words, " ".join(SOURCES * 20))
    assert re.search(
        r"^warning: the text has \d{3,} tokens; the models read the first \d+ \(text.max_source_tokens\)$", said, re.M
    )
    assert json.loads(output)["text"] is not None


def test_vanillas_text_is_shown_where_it_differs(run: Run, pair: list[str]) -> None:
    cut = ["--method", "vanilla_large", "--max-tokens", "12", "--rounds", "1"]
    lossy = ["--method", "beam_large", "--rounds", "1"]
    assert "  vanilla: " not in run(*pair, *cut, SOURCES[0])[1]
    line = json.loads(run(*pair, *lossy, "--json", SOURCES[0])[1])
    shown = run(*pair, *lossy, SOURCES[0])[1]
    assert line["same_as_vanilla"] is (line["vanilla_text"] == line["text"]) is False
    assert shown.splitlines()[-1] == f"  vanilla: {line['vanilla_text']}"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rounds", "-1", "a"], "error: --rounds is -1; it must be at least 0"),
        (["a", "--file", "b"], "error: texts stand on the command line and in --file; give one of the two"),
        (["--file", "nowhere.txt"], "error: nowhere.txt cannot be read (No such file or directory); name a text file"),
        (["--task", "translation", "a"], "error: --task is translation, but --large names a pair of your own"),
        (["--tune", "ms=2", "a"], "error: --tune is of a task, but --large names a pair of your own"),
        (["--tune", "ms=2", "--method", "bild", "a"], "error: --tune ms=2 chooses the method, but --method is bild"),
        (["--method", "speculative", "--set", "drafter=bigram", "a"], "error: drafter is bigram, which reads"),
        (["--method", "bild", "--set", "drafter=heads", "a"], "error: the heads drafter needs heads, and the large"),
        (
            ["--method", "bild", "--set", "drafter=copy", "--set", "drafter=heads", "a"],
            "error: --set names drafter twice; leave",
        ),
        (["--chat-template", "a"], "has no chat template"),
        (["--large", "hub/none", "a"], "error: no tokenizer at hub/none: there is no such folder, the hub does not answer"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: list[str], line: str, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "hub_answers", lambda: False)
    status, _, said = run(*pair, *words)
    assert status == 2
    [error] = said.splitlines()
    assert error.startswith("error: ") and line in error


def test_a_small_model_that_is_not_smaller_may_not_draft(run: Run, pair: list[str]) -> None:
    same = ["--large", pair[3], "--small", pair[3], "--rounds", "0", "a"]
    said = f"error: --small {pair[3]} has 0.0188 M parameters and --large {pair[3]} 0.0188 M, so that drafts could save nothing"
    assert run(*same).status == 2 and run(*same).said.startswith(said)
    assert run(*same, "--method", "speculative", "--set", "drafter=copy").status == 0


def test_a_pair_needs_both_models_and_input_some_text(run: Run, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error: --small is missing" in run(*pair[:2], "a")[2]
    assert "error: --large is missing" in run(*pair[2:], "a")[2]
    assert "error: the command line, line 2: it is empty" in run("--pair", "nowhere", "a", " ").said, "before a model is opened"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(*pair).said == "error: standard input holds no text; write one a line\n"
    assert "error: --chat-template is for a pair of your own" in run("--chat-template", "a")[2]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task whose aligned points have 0.5 more quality; at its best, 60.5 points in 25 ms and 58.5 in 15."""
    monkeypatch.chdir(tmp_path)
    summary, rows = finished(better=0.5)
    summary["verdict"] = {"text": "", "changes": [], "point": 4}
    write(Path("results/toy"), summary, rows)
    return "toy"


def threshold(chosen: Chosen) -> tuple[str, float]:
    return chosen.arm, chosen.point.settings.fallback_threshold


def test_the_recommended_point_by_default(task: str) -> None:
    chosen = choose(task, MethodChoice())
    assert threshold(chosen) == ("aligned", 0.7)
    assert chosen.point.method == "bild"
    assert math.isinf(chosen.point.settings.rollback_threshold)
    assert "recommended" in chosen.why


@pytest.mark.parametrize(
    ("bound", "drafter", "expected"),
    [
        ("ms=100", None, ("aligned", 0.9)),
        ("ms=100", "unaligned", ("unaligned", 0.9)),
        ("ms=20", None, ("aligned", 0.7)),
        ("quality=60", None, ("aligned", 0.7)),
        ("quality=0", "unaligned", ("unaligned", 0.5)),
    ],
)
def test_the_best_timed_point_within_a_bound(task: str, bound: str, drafter: str | None, expected: tuple[str, float]) -> None:
    chosen = choose(task, MethodChoice(tune=bound, arm=drafter))
    assert threshold(chosen) == expected
    assert f"tuned to {bound}" in chosen.why


def test_the_sweeps_own_speed_up_stands_beside_that_of_a_text(task: str) -> None:
    for asked in (MethodChoice(), MethodChoice(tune="ms=20")):
        measured = choose(task, asked).measured
        assert swept_speedup(measured) == f"the sweep measured {measured['test']['speedup']:.2f}× over 40 texts of test"
        assert swept_speedup({**measured, "test": None}).endswith("× over 40 texts of validation")
    assert swept_speedup(choose(task, MethodChoice(method="speculative")).measured) == ""
    line = statistics_line(Generation([], "", Counts(tokens=1)), Times([200.0], [500.0]), same=None, swept="SWEPT")
    assert "2.50× as fast; SWEPT; 1 token, 0 runs" in line


def test_vanilla_where_nothing_is_recommended(task: str) -> None:
    summary, rows = finished()
    write(Path("results/bare"), summary, rows)
    assert choose("bare", MethodChoice()).point.method == "vanilla_large"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (MethodChoice(tune="ms=1"), r"no timed point meets --tune ms=1: the nearest has 1\d.* ms a text .* on validation"),
        (MethodChoice(tune="quality=99"), r"the nearest has .* ms a text and 60\.50 points on validation; loosen the bound"),
        (MethodChoice(tune="speed=3"), r"--tune is 'speed=3'; write ms=… .* or quality=…"),
        (MethodChoice(arm="unaligned"), r"the recommended point is of the aligned arm"),
        (MethodChoice(settings=["a=1"]), r"--set a=1 needs --method"),
    ],
)
def test_what_cannot_be_chosen(task: str, asked: MethodChoice, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(task, asked)


def test_a_changed_digit_of_a_result_is_noticed(task: str) -> None:
    path = Path("results") / task / "summary.json"
    text = path.read_text(encoding="utf-8")
    assert text.count('"changes": [], "point": 4') == 1
    path.write_text(text.replace('"changes": [], "point": 4', '"changes": [], "point": 3'), encoding="utf-8")
    with pytest.raises(InputError, match=r"summary\.json is damaged \(ValueError it is not as it was written\); make it anew"):
        choose(task, MethodChoice())


def test_without_a_result_it_says_what_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"results/toy/summary\.json is missing, .* dvc repro report@toy .* name a --method"):
        choose("toy", MethodChoice())
    assert choose("toy", MethodChoice(method="speculative")).point.method == "speculative"
    with pytest.raises(InputError, match=r"models/toy/unaligned/3 is missing; train it with dvc repro control@toy"):
        drafter_folder(TaskPaths("toy"), "unaligned", 3)


def test_settings_are_read_as_in_the_grid() -> None:
    point = own_point("bild", ["fallback_threshold=0.25", "rollback_threshold=inf", "drafter=copy"])
    assert (point.settings.fallback_threshold, point.settings.drafter) == (0.25, "copy")
    assert math.isinf(point.settings.rollback_threshold)
    assert own_point("speculative_lossy", ["tuned=true"]).settings.tuned is True


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("bilt", [], r"--method is bilt; it must be one of "),
        ("bild", ["fallback_threshold"], r"--set is 'fallback_threshold'; write name=value"),
        ("bild", ["threshold=1"], r"--method bild: unknown setting threshold"),
        ("bild", ["fallback_threshold=2"], r"--method bild: fallback_threshold is 2\.0; it must be at most 1"),
        ("speculative", ["draft_length=[1, 2]"], r"--method speculative: draft_length"),
    ],
)
def test_wrong_methods_and_settings(method: str, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        own_point(method, settings)


WORDS = [" a", " man", " rides", "", " \N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"]
END = 3


def text(tokens: tuple[int, ...]) -> str:
    """Words without the first space; 4 and 5 together are one character."""
    return (
        "".join(WORDS[token] for token in tokens)
        .removeprefix(" ")
        .replace(" \N{REPLACEMENT CHARACTER}" * 2, " ü")
        .replace("\N{REPLACEMENT CHARACTER}" * 2, "ü")
    )


def grown(tokens: list[int], proposers: str, *, marks: Marks = BRACKETS) -> list[str]:
    """What stands there after each token, and at the end."""
    out = io.StringIO()
    writer, shown = TextWriter(text, marks, out), []
    for count in range(1, len(tokens) + 1):
        writer.watch(RowState(0, [9, *tokens[:count]], 1, proposers[:count]))
        shown.append(out.getvalue())
    writer.finish(Generation(tokens, proposers, Counts()))
    return [*shown, out.getvalue()]


def test_pieces_are_marked_as_they_come() -> None:
    assert grown([0, 1, 2, END], "ssls") == ["[a", "[a man", "[a man] rides", "[a man] rides", "[a man] rides\n"]
    assert grown([0, 1, END], "lcs")[-1] == "a{ man}\n"


def test_colours_end_with_their_piece() -> None:
    assert grown([0, 1, 2], "slc", marks=COLOURS)[-1] == "\033[32ma\033[0m man\033[31m rides\033[0m\n"


def test_half_a_character_waits_for_its_other_half() -> None:
    assert grown([0, 4, 5, 1], "ssss") == ["[a", "[a", "[a ü", "[a ü man", "[a ü man]\n"]
    assert grown([0, 4], "ss")[-1] == "[a \N{REPLACEMENT CHARACTER}]\n"


@pytest.mark.parametrize(
    ("counts", "times", "same", "line"),
    [
        (Counts(tokens=5, large_calls=5), None, None, "5 tokens, 5 runs of the large model"),
        (
            Counts(tokens=8, large_calls=2, drafted=8, accepted=6, kept={(4, 3): 2}),
            Times([200.0, 250.0, 190.0], [500.0, 520.0, 400.0]),
            True,
            "200.0 ms (190.0 to 250.0), vanilla 500.0 ms (400.0 to 520.0): 2.50× as fast; 8 tokens, 2 runs of the large model; "
            "8 drafted: 6 accepted, 2 rejected; the same text as vanilla's",
        ),
        (
            Counts(tokens=8, large_calls=1, drafted=9, accepted=3, kept={(4, 3): 1}),
            Times([2.0], [5.0]),
            False,
            "2.0 ms, vanilla 5.0 ms; 8 tokens, 1 run of the large model; 9 drafted: 3 accepted, 1 rejected, 5 ended "
            "unverified; not vanilla's text",
        ),
    ],
)
def test_the_line_of_statistics(counts: Counts, times: Times | None, same: bool | None, line: str) -> None:
    """The ratio of a text that takes milliseconds is chance, and is not shown."""
    assert statistics_line(Generation([], "", counts), times, same=same) == line


def test_several_texts_have_one_ratio_with_its_interval() -> None:
    line = total_line([Times([20.0, 30.0, 90.0], [60.0]), Times([30.0], [60.0, 60.0, 90.0])])
    assert line == "2 texts: 2.00× [2.00, 2.00] as fast as vanilla"
    assert total_line([Times([2.0], [6.0])] * 2) == "2 texts: 4.0 ms, vanilla 12.0 ms: too short for a ratio"
