"""Bad input of every kind, made by hypothesis: each example has a right answer, or ends in one line and status 2.

`FUZZ_EXAMPLES=1000 python -m pytest tests/unit/test_fuzzed.py` tries 1000 random examples of each property.
"""

import contextlib
import copy
import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pyarrow as pa
import pytest
import yaml
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from pyarrow import parquet

from tasks import config
from tasks.corpora.example import SPLITS
from tasks.corpora.reading import read
from tasks.corpora.settings import FileSettings
from tasks.decoding import load_pair
from tasks.errors import InputError, one_line_errors
from tasks.evaluation.results.files import SweepRowFile, row_line
from tasks.evaluation.results.rows import read_rows
from tasks.files import sealed, unsealed
from tasks.serve.pacing import PairEngine
from tasks.serve.scheduler import ServerSettings
from tests.calibration import SOURCES
from tests.pair_folders import agreeing_pair, tiny_pair
from tests.unit.evaluation.results.test_rows import TIMED
from tests.unit.serve.conftest import app_of

# What all share: odd texts, damaged bytes and trees, and the promise: a right answer, or one line and status 2.

T = TypeVar("T")
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Random examples of each property; 0: a few, the same in every run."""


def fuzzed(few: int) -> hypothesis.settings:
    """The settings of a property that `make test` tries on so many examples."""
    return hypothesis.settings(
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        max_examples=EXAMPLES or few,
        suppress_health_check=[*HealthCheck],
    )


LONG = "long " * (1 << 18)
"""A line of more than a megabyte."""
ODD = (
    *("\ufeffa mark", "two\r\nlines", "two\rlines", "two\u2028lines", "two\x85lines", "", " \t\u3000"),
    *("half \ud83d", "\udc00\ud800", "שלום עולם", "\u202eright to left", "👩\u200d👩\u200d👧 🏳️\u200d🌈"),
    *("\x1b[31mred\x1b[0m\x07", "nul\0", "{source}", '"', "1e999", "null", "../..", "*", "n" * 300),
)
texts = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=()), max_size=20))
"""Any short string of Python, unpaired surrogates too."""
scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 2, 63, 2**31, 2**63, 10**30]), st.floats(), st.integers(), texts
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(texts, scalars, max_size=2))
"""What may stand in JSON and YAML in place of any value."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that were cut, flipped, repeated or replaced in a few places."""
    for _ in range(draw(st.integers(1, 3))):
        # Headers come first, and are short: half of the places are there.
        place = draw(st.one_of(st.integers(0, min(400, len(content))), st.integers(0, len(content))))
        length = draw(st.integers(0, 8))
        new = draw(st.one_of(st.binary(max_size=8), st.just(content[:place][-32:]), st.just(b"\xff" * 8)))
        content = content[:place] + new + content[place + draw(st.sampled_from([len(new), length, len(content)])) :]
    return content


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a tree with each of its keys or indices."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one value replaced, removed, or put under another name."""
    tree = copy.deepcopy(tree)
    holder, key = draw(st.sampled_from(list(_places(tree))))
    how = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
    old = holder.pop(key) if how != "replace" else None
    if how == "replace":
        holder[key] = draw(values)
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(texts)] = old
    return tree


def outcome(act: Callable[[], T]) -> T | None:
    """Return what `act` returns; None where it ended as a command does: one printable line, status 2."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), one_line_errors():
            return act()
    except SystemExit as end:
        assert end.code == 2
    *_, line = lines = said.getvalue().removesuffix("\n").split("\n")
    assert line.startswith("error: ") and line.isprintable() and len(line) < 2100, repr(line[:300])
    assert all(one.startswith("warning: ") for one in lines[:-1]), lines
    return None


ROOT = Path(__file__).parents[2]
PARAMS = (ROOT / "params.yaml").read_text(encoding="utf-8")
# C's loader reads the same values.
TREE = yaml.load(PARAMS, yaml.CSafeLoader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


# Settings, then the folders of models.


@fuzzed(8)
@given(changed(TREE))
@example(TREE | {"machine": {"\x1b[31m" + LONG: 1}})
@example(TREE | {"machine": {"device": "\ud800"}})
def test_a_changed_setting(tree: Any) -> None:
    outcome(lambda: config.check(json.dumps(tree), "params.yaml"))


TAGGED = ["!!bool maybe", "!!int ''", "!!float x", "!!timestamp x", "!!binary x", "&a [*a]", "? [a]\n: b", "0x_", "[" * 5000]


@fuzzed(8)
@given(
    st.one_of(
        damaged(PARAMS.encode()),
        st.sampled_from(TAGGED).map(str.encode),
        texts.map(lambda text: text.encode("utf-8", "ignore")),
    )
)
@example(b"machine: !!bool maybe")
@example(b"machine: !!timestamp x")
def test_a_damaged_parameter_file(folder: Path, content: bytes) -> None:
    file = folder / "params.yaml"
    file.write_bytes(content)
    outcome(lambda: config.load(file))


def test_a_folder_is_no_parameter_file(folder: Path) -> None:
    assert outcome(lambda: config.load(folder)) is None


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("tokenizer.json", "normalizer", 5),
        ("generation_config.json", "eos_token_id", 0.5),
        ("tokenizer_config.json", "extra_ids", 2**31),
        ("tokenizer_config.json", "unk_token", "no token"),
        ("config.json", "num_layers", 2**31),
        ("config.json", "relative_attention_max_distance", -1),
        ("config.json", "d_model", "wide"),
    ],
)
def test_a_value_of_another_kind_in_a_model_folder_is_one_line(file: str, name: str, value: object, tmp_path: Path) -> None:
    large = agreeing_pair(tmp_path) / "large"
    (large / "SHA256SUMS").unlink()
    config = json.loads((large / file).read_text(encoding="utf-8"))
    (large / file).write_text(json.dumps(config | {name: value}), encoding="utf-8")
    with pytest.raises(InputError):
        load_pair(large.parent)


# Data files.


def _files(kind: str, rows: list[list[str]]) -> list[bytes]:
    """The files of a format that hold these sources and references; halves of surrogate pairs as broken UTF-8."""
    if kind == "parallel":
        sides = ["".join(f"{row[side]}\n" for row in rows) for side in (0, 1)]
        return [side.encode("utf-8", "surrogatepass") for side in sides]
    if kind == "parquet":
        out = io.BytesIO()
        parquet.write_table(pa.table({"source": [row[0] for row in rows], "target": [row[1] for row in rows]}), out)
        return [out.getvalue()]
    if kind == "jsonl":
        return ["".join(json.dumps({"source": row[0], "target": row[1]}) + "\n" for row in rows).encode()]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter="\t" if kind == "tsv" else ",").writerows([["source", "target"], *rows])
    return [text.getvalue().encode("utf-8", "surrogatepass")]


def _read(folder: Path, kind: str, contents: list[bytes]) -> Any:
    """What is read of files that are all three splits; None where it is one line."""
    names = [f"file{number}.{kind}" for number in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    return outcome(lambda: read(FileSettings(format=kind, files=dict.fromkeys(SPLITS, names)), folder))


KINDS = ("parallel", "jsonl", "csv", "tsv", "parquet")
FILES = {kind: _files(kind, [["ab cd", "dc ba"], ["größer", "kleiner"]]) for kind in KINDS}


@fuzzed(25)
@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), damaged(FILES[kind][-1]))))
@example(("jsonl", b'{"source": "' + LONG.encode() + b'", "target": "a"'))
@example(("jsonl", b"[" * 100_000))
@example(("parquet", b"PAR1 no Parquet"))
def test_a_damaged_data_file(folder: Path, made: tuple[str, bytes]) -> None:
    kind, content = made
    _read(folder, kind, [*FILES[kind][:-1], content])


@fuzzed(25)
@given(st.sampled_from(("parallel", "jsonl", "csv", "tsv")), texts)
@example("jsonl", LONG + "end")
def test_an_odd_text_is_read_as_it_was_written_or_refused(folder: Path, kind: str, text: str) -> None:
    corpus = _read(folder, kind, _files(kind, [[f"a {text} z", "b"]]))
    if corpus is not None and kind == "jsonl":
        assert [one.source for one in corpus["train"]] == [f"a {text} z"]


# Rows, a pair's record, and requests.


@fuzzed(25)
@given(damaged(row_line(TIMED).encode()))
def test_no_damaged_row_counts(folder: Path, content: bytes) -> None:
    """A sweep measures it again, and a report names it."""
    file = folder / "rows.jsonl"
    file.write_bytes(content)
    reported = outcome(lambda: read_rows(file, "run it")) or []
    assert all(row == TIMED for row in [*reported, *SweepRowFile(file, TIMED.fingerprint).rows])


@fuzzed(10)
@given(st.data())
def test_a_changed_record_of_a_pair(folder: Path, data: st.DataObject) -> None:
    pair = folder / "pair"
    record = (pair if pair.is_dir() else agreeing_pair(folder)) / "pair.json"
    whole = (folder / "whole.json").read_text() if (folder / "whole.json").exists() else record.read_text(encoding="utf-8")
    (folder / "whole.json").write_text(whole)
    for sums in pair.glob("SHA256SUMS"):
        sums.unlink()
    record.write_text(sealed(json.dumps(data.draw(changed(json.loads(unsealed(whole)))))), encoding="utf-8")
    outcome(lambda: load_pair(pair).generate("ab cd"))


@fuzzed(10)
@given(st.data())
def test_a_changed_file_of_a_users_own_pair(folder: Path, data: st.DataObject) -> None:
    """Without checksums a folder is a user's own: whatever its files hold is checked when it is opened."""
    kept = folder / "kept"
    if not kept.is_dir():
        agreeing_pair(folder).rename(kept)
        for sums in kept.rglob("SHA256SUMS"):
            sums.unlink()
    name = data.draw(st.sampled_from(sorted(file.relative_to(kept) for file in kept.rglob("*") if file.is_file())))
    content = (kept / name).read_bytes()
    if name.suffix == ".json" and data.draw(st.booleans()):
        content = json.dumps(data.draw(changed(json.loads(unsealed(content.decode()))))).encode()
    else:
        content = data.draw(damaged(content))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        pair = Path(temporary) / "pair"
        shutil.copytree(kept, pair)
        (pair / name).write_bytes(content)
        outcome(lambda: load_pair(pair).generate("ab cd"))


REQUEST = {"prompt": SOURCES[0], "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "stream": False}


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    pair = load_pair(tiny_pair(folder / "served"))
    with TestClient(app_of(pair, PairEngine(pair), ServerSettings()), raise_server_exceptions=False) as found:
        yield found


CHAT = {"messages": [{"role": "user", "content": SOURCES[0]}], **{k: v for k, v in REQUEST.items() if k != "prompt"}}
ROUTES = {"/v1/completions": REQUEST, "/v1/chat/completions": CHAT}


@fuzzed(40)
@given(
    st.one_of(
        *(st.tuples(st.just(route), changed(body)) for route, body in ROUTES.items()),
        texts.map(lambda text: ("/v1/completions", REQUEST | {"prompt": text})),
        texts.map(lambda text: ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": text}]})),
    )
)
@example(("/v1/completions", REQUEST | {"prompt": ["\ud83d"]}))
@example(("/v1/completions", REQUEST | {"seed": 10**30}))
def test_a_request_is_answered_or_refused(client: TestClient, asked: tuple[str, Any]) -> None:
    route, body = asked
    answer = client.post(route, content=json.dumps(body))
    assert answer.status_code in (200, 400, 404, 413), answer.text
    assert body.get("stream") or answer.json()


@fuzzed(20)
@given(
    st.sampled_from(list(ROUTES)).flatmap(lambda route: st.tuples(st.just(route), damaged(json.dumps(ROUTES[route]).encode())))
)
@example(("/v1/completions", b"[" * 100_000))
@example(("/v1/chat/completions", b"\xff"))
def test_a_request_of_other_bytes_is_answered_or_refused(client: TestClient, asked: tuple[str, bytes]) -> None:
    route, content = asked
    answer = client.post(route, content=content)
    assert answer.status_code in (200, 400, 404, 413), answer.text
