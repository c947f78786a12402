"""Bad input of every kind, made by hypothesis: each example has a right answer, or ends in one line and status 2.

`FUZZ_EXAMPLES=1000 python -m pytest tests/unit/test_fuzzed.py` tries 1000 random examples of each property.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tasks import config
from tasks.decoding import load_pair
from tasks.errors import InputError
from tests.fuzz import LONG, changed, damaged, fuzzed, outcome, texts
from tests.pair_folders import agreeing_pair

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
        ("config.json", "num_layers", 2**31),
        ("config.json", "d_model", "wide"),
    ],
)
def test_a_value_of_another_kind_in_a_model_folder_is_one_line(file: str, name: str, value: object, tmp_path: Path) -> None:
    large = agreeing_pair(tmp_path) / "large"
    (large / "SHA256SUMS").unlink()
    config = json.loads((large / file).read_text(encoding="utf-8"))
    (large / file).write_text(json.dumps(config | {name: value}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_pair(large.parent)
    assert "\n" not in str(caught.value)
