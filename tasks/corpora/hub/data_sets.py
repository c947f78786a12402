"""The data sets of the papers on the hub: where they are, and the columns that examples are made of.

The papers name data sets, not repositories; these are the repositories of their authors or of the hub's staff, none of which is
a script. Where a paper prints no prompt, the template is this project's, and the recipe of the preset says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PARQUET = "refs/convert/parquet"
"""The branch on which the hub keeps every data set as Parquet files, in a folder for each configuration; read where the data
set itself is a script."""
_SPLITS = {"train": "train", "validation": "validation", "test": "test"}
_DE_EN = "translate German to English: {source}"
_EN_DE = "translate English to German: {source}"
_SUMMARIZE = "summarize: {source}"
_QUESTION = "Answer the question in a few words.\nQuestion: {source}\nAnswer:"


@dataclass(frozen=True)
class DataSet:
    """A data set, and how its rows become examples; `HubSettings` describes the fields."""

    name: str
    source_field: str
    reference_fields: tuple[str, ...]
    template: str = ""
    configuration: str = ""
    revision: str = "main"
    splits: Mapping[str, str] = field(default_factory=lambda: dict(_SPLITS))
    no_reference: str = ""
    passage_words: int = 0
    published: str = "none"
    """As `corpus.dataset` names it, where the report shows published numbers."""


DATA_SETS: dict[str, DataSet] = {
    "iwslt17-de-en": DataSet(
        "IWSLT/iwslt2017",
        "translation.de",
        ("translation.en",),
        _DE_EN,
        configuration="iwslt2017-de-en",
        revision=PARQUET,
        published="iwslt17-de-en",
    ),
    "wmt14-de-en": DataSet(
        "wmt/wmt14", "translation.de", ("translation.en",), _DE_EN, configuration="de-en", published="wmt14-de-en"
    ),
    "wmt14-en-de": DataSet(
        "wmt/wmt14", "translation.en", ("translation.de",), _EN_DE, configuration="de-en", published="wmt14-en-de"
    ),
    "multi30k-en-de": DataSet("bentrevett/multi30k", "en", ("de",), _EN_DE),
    "xsum": DataSet(
        "EdinburghNLP/xsum", "document", ("summary",), _SUMMARIZE, configuration="default", revision=PARQUET, published="xsum"
    ),
    "cnn_dailymail": DataSet(
        "abisee/cnn_dailymail", "article", ("highlights",), _SUMMARIZE, configuration="3.0.0", published="cnn_dailymail"
    ),
    "wikitext-2": DataSet("Salesforce/wikitext", "text", (), configuration="wikitext-2-raw-v1", passage_words=384),
    "gsm8k": DataSet(
        "openai/gsm8k",
        "question",
        ("answer",),
        "Solve the problem step by step, then write #### and the number.\nProblem: {source}\nSolution:",
        configuration="main",
        splits={"train": "train[:-1000]", "validation": "train[-1000:]", "test": "test[:1000]"},
    ),
    "mbpp": DataSet(
        "google-research-datasets/mbpp",
        "text",
        ("code", "test_setup_code", "test_list"),  # a program, then its tests: see the metric pass_at_1
        "{source} Write a Python program that passes these tests:\n{test_list}\nProgram:",
        configuration="full",
    ),
    "squad_v2": DataSet(
        "rajpurkar/squad_v2",
        "question",
        ("answers.text",),
        "Answer the question in words of the context, or write unanswerable.\nContext: {context}\nQuestion: {source}\nAnswer:",
        splits={"train": "train[:-1000]", "validation": "train[-1000:]", "test": "validation[:1000]"},
        no_reference="unanswerable",
    ),
    "natural_questions": DataSet(
        "google-research-datasets/nq_open",
        "question",
        ("answer",),
        _QUESTION,
        configuration="nq_open",
        splits={"train": "train[:-1000]", "validation": "train[-1000:]", "test": "validation[:1000]"},
    ),
    "trivia_qa": DataSet(
        "mandarjoshi/trivia_qa",
        "question",
        ("answer.value", "answer.aliases"),
        _QUESTION,
        configuration="rc.nocontext",
        splits={"train": "train[:-1000]", "validation": "train[-1000:]", "test": "validation[:1000]"},
    ),
    "web_questions": DataSet(
        "stanfordnlp/web_questions",
        "question",
        ("answers",),
        _QUESTION,
        splits={"train": "train[:-500]", "validation": "train[-500:]", "test": "test[:1000]"},
    ),
}
"""By short name. SQuAD and TriviaQA publish no answers of their test split, so their validation split is tested on."""
