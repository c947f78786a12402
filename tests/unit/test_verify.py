"""Certificates in `transformers`: the same drafts as here, counts from its calls, verdicts, and what the command refuses."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks import verify
from tasks.decoding import load_pair
from tasks.decoding.decoder import Mismatch
from tasks.decoding.generation import Counts, Generation, total
from tasks.files import SUMS
from tasks.models.checkpoints import load_model
from tasks.verify import Change, Comparison, TransformersEngine, as_json, count_drafts, decode_here, described, verdict
from tests.calibration import tiny
from tests.commands import Run, runner
from tests.pair_folders import LETTERS, agreeing_pair


@pytest.fixture(scope="module", params=["t5", "bart", "llama", "gpt2"])
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agreeing_pair(tmp_path_factory.mktemp("pair"), request.param)


@pytest.mark.parametrize("draft_length", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_texts_and_counts_are_this_projects_own(any_pair: Path, draft_length: int) -> None:
    pair = load_pair(any_pair)
    limit, sources = pair.manifest.text.max_target_tokens, pair.encode(LETTERS[:5])
    expected = decode_here(pair, draft_length, sources, limit)
    engine = TransformersEngine(any_pair, draft_length)
    found = [engine.decode(source, limit) for source in sources]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for one, other in zip(found, expected, strict=True):
        for name in ("tokens", "large_calls", "drafted", "accepted", "rollbacks", "verified", "kept"):
            assert getattr(one.counts, name) == getattr(other.counts, name), name
    # Without both kinds of drafts, equal counts would show little.
    assert any(one.counts.rollbacks for one in found)
    assert any(one.counts.accepted for one in found)


END = 1
PROMPT = [7, 8]


@pytest.mark.parametrize(
    ("calls", "tokens", "kept"),
    [
        pytest.param([[7, 8, 3, 4], [5, 6, 9]], [3, 4, 5, 6, 9, 10], {(2, 2): 2}, id="all kept, a token of the target follows"),
        pytest.param([[7, 8, 3, 4], [5, 6, 9]], [3, 5, 2], {(2, 1): 1, (2, 0): 1}, id="the second is replaced, then the first"),
        pytest.param([[7, 8, 3, END]], [3, END], {(2, 2): 1}, id="an end token inside of the draft is kept"),
        pytest.param([[7, 8, 3, 4]], [3, END], {(2, 1): 1}, id="the target ends the text in place of a drafted token"),
        pytest.param([[7, 8, 3, END]], [4], {(2, 0): 1}, id="a drafted end token is replaced, and the text reaches its limit"),
        pytest.param([[7, 8, 3], [4]], [3, 4, END], {(1, 1): 1}, id="nothing is drafted before the last token"),
        pytest.param([[7, 8], [5, 3]], [5, 3, 4], {(1, 1): 1}, id="nothing is drafted at first"),
    ],
)
def test_drafts_are_counted_by_what_stayed(calls: list[list[int]], tokens: list[int], kept: dict[tuple[int, int], int]) -> None:
    counts = count_drafts(calls, len(PROMPT), tokens)
    assert dict(counts.kept) == kept
    assert counts.drafted == sum(drafted * number for (drafted, _), number in kept.items())
    assert counts.accepted == sum(accepted * number for (_, accepted), number in kept.items())
    assert counts.rollbacks == sum(number for (drafted, accepted), number in kept.items() if accepted < drafted)
    assert counts.large_calls == len(calls)
    assert counts.tokens == len(tokens)


@pytest.mark.parametrize(
    ("calls", "tokens"),
    [
        pytest.param([[7, 8, 3, 4], [6, 9]], [3, 4, 5, 9], id="a call begins with another token than the last final one"),
        pytest.param([[7, 8, 3, 4]], [3, 4, 5, 6], id="the calls end before the text"),
        pytest.param([[7, 8, 3, END], [END, 4]], [3, END], id="a call follows the end of the text"),
        pytest.param([], [3], id="there is no call"),
    ],
)
def test_calls_of_another_text_are_refused(calls: list[list[int]], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="call"):
        count_drafts(calls, len(PROMPT), tokens)


OURS = Counts(tokens=150, large_calls=50, drafted=100, accepted=70)
RECORD = {"method": "speculative", "split": "validation", "examples": 5, "tokens": 150, "large_calls": 50, "drafted": 100}
SAME = Comparison(2, 5, OURS, OURS, [], None)


def theirs(accepted: int) -> Comparison:
    return dataclasses.replace(SAME, theirs=Counts(tokens=150, large_calls=50, drafted=1000, accepted=accepted))


def record(**changed: Any) -> Comparison:
    return dataclasses.replace(SAME, certificate={**RECORD, "accepted": 70, **changed})


@pytest.mark.parametrize(("accepted", "holds"), [(700, True), (681, True), (719, True), (679, False), (721, False)])
def test_it_holds_within_the_tolerance_on_either_side(accepted: int, holds: bool) -> None:
    assert theirs(accepted).holds is holds
    assert verdict(theirs(accepted)).startswith("holds: " if holds else "does not hold: the accepted share differs by 0.0")


@pytest.mark.parametrize(("margin", "holds"), [(0.99e-4, True), (1.01e-4, False)])
def test_texts_may_differ_by_rounding_alone(margin: float, holds: bool) -> None:
    found = dataclasses.replace(SAME, mismatches=[Mismatch(2, 4, margin)])
    assert found.holds is holds
    assert "tokens: 1 of 5 texts differ" in described(found)
    assert ("1 of them where the large model's two highest logits are within 0.0001" in described(found)) is holds
    if not holds:
        assert verdict(found) == "does not hold: 1 texts differ by more than rounding, the first of them text 3"


def test_nothing_drafted_is_a_share_of_nought() -> None:
    empty = Counts(tokens=5, large_calls=5)
    assert dataclasses.replace(SAME, ours=empty, theirs=empty).holds
    assert not dataclasses.replace(SAME, theirs=empty).holds


def test_the_certificate_is_compared_where_it_may_be_of_these_texts() -> None:
    assert SAME.reproduced is None
    assert record(examples=2000).reproduced is None
    assert record().reproduced is True
    assert record(accepted=69).reproduced is False
    assert "Draftline's counts on these texts equal it" in described(record())
    assert "Draftline's counts on these texts differ from it" in described(record(accepted=69))
    assert "of 2000 texts of validation, so its counts are not those of these 5 texts" in described(record(examples=2000))


def test_json_has_the_ratios_of_both() -> None:
    found = as_json(theirs(690))
    assert found["draftline"]["accepted_share"] == 0.7
    assert found["draftline"]["mean_accepted_length"] == 1.4
    assert found["transformers"]["accepted_share"] == 0.69
    assert found["difference"] == pytest.approx(0.01)
    assert (found["holds"], found["engine"]) == (True, "transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agreeing_pair(tmp_path_factory.mktemp("pair"), "t5")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    command = runner(verify.main, monkeypatch, capsys)
    return lambda *words: command(*words, "--engine", "transformers")


def test_the_folders_examples_hold(run: Run, folder: Path) -> None:
    status, printed, _ = run(folder)
    assert status == 0
    assert f"{len(LETTERS)} texts, greedy, float32, 3 tokens drafted at a time" in printed
    assert "certificate: the pair has none for 3 drafted tokens" in printed
    assert "tokens: equal in every text" in printed
    assert printed.splitlines()[-1] == "holds: the accepted share differs by 0.0000 (at most 0.02)"


def test_a_certificate_of_these_texts_is_reproduced(run: Run, tmp_path: Path) -> None:
    pair = load_pair(agreeing_pair(tmp_path / "first"))
    texts = LETTERS[:4]
    counts = total(decode_here(pair, 2, pair.encode(texts), 24))
    numbers = {name: getattr(counts, name) for name in ("drafted", "accepted", "large_calls", "tokens")}
    settings = {"draft_length": 2, "drafter": "small"}
    record = {"method": "speculative", "settings": settings, "split": "validation", "examples": len(texts), **numbers}
    folder = agreeing_pair(tmp_path / "second", measured={"accepted": [record]})
    (tmp_path / "texts").write_text("\n".join(texts) + "\n", encoding="utf-8")
    status, printed, _ = run(folder, "--draft-length", 2, "--file", tmp_path / "texts", "--json")
    found = json.loads(printed)
    assert (status, found["holds"], found["reproduced"], found["certificate"]) == (0, True, True, record)
    assert found["draftline"] == found["transformers"]
    assert found["draftline"]["drafted"] == counts.drafted


class OtherDrafter(TransformersEngine):
    """Drafts one token more than asked."""

    def __init__(self, folder: Path, draft_length: int) -> None:
        super().__init__(folder, draft_length + 1)


class OtherText(TransformersEngine):
    """Writes another third token."""

    def decode(self, source: list[int], limit: int) -> Generation:
        found = super().decode(source, limit)
        found.tokens[2] = 3 if found.tokens[2] != 3 else 4
        return found


@pytest.mark.parametrize(
    ("engine", "reason"),
    [(OtherDrafter, "the accepted share differs by 0."), (OtherText, "3 texts differ by more than rounding")],
)
def test_an_engine_that_accepts_or_writes_otherwise_fails(
    run: Run, engine: type, reason: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "TransformersEngine", engine)
    (tmp_path / "texts").write_text("\n".join(LETTERS[:3]) + "\n", encoding="utf-8")
    status, printed, _ = run(folder, "--file", tmp_path / "texts")
    assert status == 1
    assert printed.splitlines()[-1].startswith(f"does not hold: {reason}")


@pytest.mark.parametrize(
    ("words", "text", "line"),
    [
        (["PAIR", "--file", "texts"], b"", "texts holds no text; write one a line"),
        (["PAIR", "--file", "texts"], b"ab\n\ncd\n", "texts, line 2: it is empty; write one text a line"),
        (["PAIR", "--file", "texts"], b"\xff\n", "texts is not UTF-8 (byte 1); save it as UTF-8"),
        (["PAIR", "--file", "none"], b"ab\n", "none cannot be read (No such file or directory); name a text file"),
        (["nowhere"], b"", "nowhere/pair.json cannot be read"),
        (["PAIR", "--draft-length", "65"], b"", "speculative: draft_length is 65; it must be at most 64"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, words: list[str], text: bytes, line: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").write_bytes(text)
    status, _, said = run(*(folder if word == "PAIR" else word for word in words))
    assert status == 2
    assert line in said.splitlines()[-1]


def test_a_folder_without_examples_needs_a_file(run: Run, tmp_path: Path) -> None:
    folder = agreeing_pair(tmp_path)
    for name in ("examples.json", SUMS):
        (folder / name).unlink()
    status, _, said = run(folder)
    assert status == 2
    assert "has no examples; name a file of texts with --file" in said.splitlines()[-1]


def changed(folder: Path, new: Path) -> Path:
    """The large model of a pair with its head turned around: it prefers what it disliked."""
    shutil.copytree(folder / "large", new)
    model = load_model(new)
    with torch.no_grad():
        model.lm_head.weight.neg_()
    model.save_pretrained(new)
    (new / SUMS).unlink()
    return new


def test_a_drafter_is_held_to_another_large_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(verify.main, monkeypatch, capsys)
    same = run(folder, "--large", folder / "large")
    assert (
        same.status == 0 and f"{len(LETTERS)} texts, greedy, 3 tokens drafted at a time; 0 of the texts differ" in same.printed
    )
    assert "a fall of 0.0000 [0.0000, 0.0000], at most 0.02" in same.printed
    assert "1.00 [1.00, 1.00] times as many calls" in same.printed and "nothing to win back" in same.printed
    other = run(folder, "--large", changed(folder, tmp_path / "new"), "--json")
    found = json.loads(other.printed)
    assert (other.status, found["holds"], found["differing"]) == (1, False, len(LETTERS))
    assert found["fall_interval"][0] > 0.02 and found["calls_ratio_interval"][0] > 1
    assert run(folder, "--large", tmp_path / "new", "--bound", 1).status == 0
    tiny("t5")[1].save_pretrained(tmp_path / "odd")
    for words, said in (
        (("--large", folder / "large", "--bound", 2), "--bound is 2; it must be between 0 and 1"),
        (("--large", tmp_path / "odd"), f"{folder / 'drafter'} has 24 tokens but {tmp_path / 'odd'} has 64; a pair needs one"),
        (("--engine", "transformers", "--bound", 0.1), "--bound is of --large, but --engine is transformers; leave it out"),
        (("--engine", "transformers", "--dtype", "int8"), "--dtype is of --large, but --engine is transformers; leave it out"),
        (("--large", folder / "drafter"), f"the drafter of {folder} has 0.0"),
        (("--large", tmp_path / "nothing"), f"no tokenizer at {tmp_path / 'nothing'}"),
    ):
        refused = run(folder, *words)
        assert refused.status == 2 and refused.said.startswith(f"error: {said}")


def test_intervals_of_a_change_are_over_texts() -> None:
    """Two texts: at most one token more or less is accepted of four."""
    texts = [Generation([2] * 4, "", Counts(tokens=4, large_calls=calls, drafted=4, accepted=4 - calls)) for calls in (1, 2, 3)]
    found = Change(2, old=texts[:2], new=[texts[1], texts[1]], bound=0.1)
    assert found.fall == (0.125, (0.0, 0.25)) and not found.holds
    ratio, interval = found.calls
    assert ratio == pytest.approx(4 / 3) and interval == (1.0, 2.0)
