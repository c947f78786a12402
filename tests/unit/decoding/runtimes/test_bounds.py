"""A padding token that a model lacks, and entries of the prediction cache that are damaged."""

import json
from pathlib import Path

import pytest

from tasks.decoding.decoder import Runtime
from tasks.decoding.predictions import load_trie
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tests.toys import VOCABULARY, toy_t5


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_padding_token_without_an_embedding_is_one_line(token: int) -> None:
    model = toy_t5(1, 1, 1)
    model.config.pad_token_id = token
    with pytest.raises(InputError, match=r"pads with .* set pad_token_id in its config.json to one of its"):
        open_decoder(model, "large", VOCABULARY, Runtime("native", False))


WHOLE = {"source": [3], "format": 3, "nodes": [[-1, -1, None, None], [0, 5, None, None]]}


@pytest.mark.parametrize(
    "found", [[], {}, None, WHOLE | {"nodes": [[9, 1]]}, WHOLE | {"nodes": [[-1, -1, 7]]}, "[" * 9000], ids=repr
)
def test_a_damaged_entry_of_the_cache_is_computed_anew(found: object, tmp_path: Path) -> None:
    file = tmp_path / "entry.json"
    file.write_text(json.dumps(WHOLE), encoding="utf-8")
    assert len(list(load_trie(file, [3], lambda *_: (0.0, 0.0)).nodes())) == 2
    file.write_text(found if isinstance(found, str) else json.dumps(found), encoding="utf-8")
    assert len(list(load_trie(file, [3], lambda *_: (0.0, 0.0)).nodes())) == 1
