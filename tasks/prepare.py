"""Stage `prepare`: writes the corpus as JSONL splits with the unlabelled sources beside them, and the shared tokenizer.

`python -m tasks.prepare --task translation`
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.console import log, progress
from tasks.corpora import translation
from tasks.corpora.checks import Counts, count_texts, measure_corpus, summary, text_errors, token_errors, warnings
from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example, write_jsonl
from tasks.corpora.hub import read as read_data_set
from tasks.corpora.reading import read
from tasks.corpora.settings import CorpusSettings
from tasks.errors import InputError, stage
from tasks.evaluation.scoring import metrics
from tasks.evaluation.scoring.metrics import metric_of
from tasks.evaluation.scoring.words import WITHOUT_SPACES
from tasks.files import atomic_folder, atomic_path
from tasks.locks import folder_lock, host_lock
from tasks.models.pair import check_sizes, check_vocabulary
from tasks.models.prompting import SourceEncoder, encode
from tasks.models.settings import LONGEST_TEXT, ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import is_gguf, load_from, load_tokenizer, train_tokenizer
from tasks.paths import TaskPaths

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_HUB_NAME = re.compile(r"(?!models/|\.)[\w.-]+(/[\w.-]+)?")
_MAIN = (*SPLITS, UNLABELLED)
_WHOLE = LONGEST_TEXT
"""More tokens than a text has."""


def load_corpus(settings: CorpusSettings, source: Path) -> Corpus:
    """Return the splits and the unlabelled sources, from the embedded generator, the folder `source`, or the hub.

    Unlabelled sources that also occur in a split are dropped, so that no drafter learns from inputs that it is evaluated on.
    """
    if settings.source == "files" and settings.files is not None:
        corpus = read(settings.files, source)
    elif settings.source == "hub" and settings.hub is not None:
        corpus = read_data_set(settings.hub, source)
    else:
        own = settings.embedded
        sizes = {split: getattr(own, split) for split in SPLITS}
        # Training examples are drawn last, so that drawing more of them leaves the other splits unchanged.
        sizes["train"] += own.unlabelled
        corpus = translation.generate(sizes, own.seed, own.variation)
        corpus = {**corpus, "train": corpus["train"][: own.train], UNLABELLED: corpus["train"][own.train :]}
    labelled = {example.source for split in corpus if split != UNLABELLED for example in corpus[split]}
    unlabelled = dict.fromkeys(example.source for example in corpus.get(UNLABELLED, []))
    return {**corpus, UNLABELLED: [Example(text, ()) for text in unlabelled if text not in labelled]}


def check_starts(large: ModelSettings, small: ModelSettings) -> None:
    """Check that checkpoints can be opened, that the large one is larger, and that it has the layers that the small one takes.

    Configurations alone are read, those of hub models too. Folders that do not exist are left to the stages that load them,
    since another task of params.yaml may be about to make them.

    Raises:
        InputError: names the setting, what is wrong with the checkpoint, and the fix.
    """
    found = {name: _configuration(name, model) for name, model in (("large", large), ("small", small))}
    if small.from_large is not None and found["large"] is not None:
        from tasks.models.layers import check_layers

        check_layers(_without_weights(found["large"]), small.from_large)
    opened = {name: _without_weights(config) for name, config in found.items() if config is not None}
    if len(opened) == len(found):
        check_sizes(opened["small"], opened["large"], f"models.small.pretrained: {small.pretrained}", str(large.pretrained))


def _configuration(name: str, model: ModelSettings) -> PreTrainedConfig | None:
    from transformers import AutoConfig

    source = model.pretrained
    # A path that is not there may be a folder that another task makes.
    if source is None or not (is_gguf(source) or Path(source).is_dir() or _HUB_NAME.fullmatch(source)):
        return None
    try:
        return load_from(AutoConfig.from_pretrained, source, "model")
    except InputError as error:
        raise InputError(f"models.{name}.pretrained: {error}") from None


def _without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config)
    return model


# References: whether the metric can read them.

_READ_BY = {"zh": ("han",), "ja-mecab": ("han", "kana"), **dict.fromkeys(("char", "flores200"), tuple(WITHOUT_SPACES))}
"""Which of them a tokenizer of BLEU splits."""
_OFF = 0.005
"""A share of letters above which a tokenizer does not fit."""
_FAR_OFF = 0.1
"""The same for a metric that is only reported with the task's."""


def check_references(corpus: Mapping[str, Sequence[Example]], metric: str) -> list[str]:
    """Check that references suit the metric and that it runs here; return warnings, a line each with number and fix.

    Raises:
        InputError: a program without tests, a split in which no reference has a number, a tokenizer that is not installed, or
            no sandbox for programs.
    """
    settings = metric_of(metric)
    if "bleu" in metrics.METRICS[settings.name]:
        metrics.require_bleu_tokenizer(settings.bleu_tokenizer)
    scored = [example for name, examples in corpus.items() if name not in ("train", UNLABELLED) for example in examples]
    unread = unsupported_script((text for example in scored for text in example.references), metric)
    found, labelled = [unread] if unread else [], {name: own for name, own in corpus.items() if name != UNLABELLED}
    if metric == metrics.PROGRAMS:
        for name, number, example in ((name, *one) for name, own in labelled.items() for one in enumerate(own, start=1)):
            if len(example.references) < 2:
                needed = "the metric pass_at_1 needs a program and then its tests as references"
                fix = "name the field of the tests in reference_fields, after that of the program"
                raise InputError(f"{name}, example {number}: {needed}; {fix}")
        metrics.require_sandbox()
    for name, own in labelled.items() if metric == "numeric_answer" else ():
        without = sum(all(metrics.last_number(text) is None for text in one.references) for one in own)
        if own and without == len(own):
            raise InputError(f"{name}: no reference has a number, which the metric numeric_answer needs; choose another metric")
        if without:
            found.append(f"{name}: {without} of {len(own)} examples have a reference without a number and can never be right")
    return found


def unsupported_script(texts: Iterable[str], metric: str) -> str:
    """What a metric's tokenizers cannot read of references, in a line with the fix; empty where they fit.

    Args:
        texts: The references.
        metric: Its full name. BLEU or ROUGE-L that only stands beside it counts as well, where it is far off.
    """
    settings, letters = metric_of(metric), _letters(texts)
    total, shown = max(1, sum(letters.values())), metrics.METRICS[settings.name]
    read = _READ_BY.get(settings.bleu_tokenizer, ())
    unsplit = sum(letters[name] for name in WITHOUT_SPACES if name not in read) / total
    dropped = (sum(letters.values()) - letters["ascii"]) / total
    found, changes = list[str](), dict[str, str]()
    if "bleu" in shown and unsplit >= (_OFF if settings.name == "bleu" else _FAR_OFF):
        share = f"{unsplit:.1%} of the references' letters, whose script has no spaces"
        found.append(f"BLEU's tokenizer {settings.bleu_tokenizer} does not split {share}")
        changes["bleu_tokenizer"] = _bleu_tokenizer_for(letters)
    by_default = "rougeL" in shown and settings.rouge_tokenizer == "default"
    if by_default and dropped >= (_OFF if settings.name in metrics.ROUGES else _FAR_OFF):
        found.append(f"ROUGE's default tokenizer drops {dropped:.1%} of the references' letters, all but a-z and 0-9")
        changes["rouge_tokenizer"] = "unicode"
    if not found:
        return ""
    block = {"name": settings.name, **dataclasses.replace(settings, **changes).changed}
    return f"{', and '.join(found)}; set metric: {{{', '.join(f'{name}: {value}' for name, value in block.items())}}}"


def _letters(texts: Iterable[str]) -> dict[str, int]:
    """Letters and digits of texts: `ascii`, of a script without spaces, or `spaced` for all others."""
    counts = dict.fromkeys(("ascii", "spaced", *WITHOUT_SPACES), 0)
    for character, count in Counter(itertools.chain.from_iterable(texts)).items():
        if character.isalnum():
            script = next((name for name, own in WITHOUT_SPACES.items() if own.match(character)), "spaced")
            counts["ascii" if character.isascii() else script] += count
    return counts


def _bleu_tokenizer_for(letters: dict[str, int]) -> str:
    if letters["kana"] > letters["han"] / 100:  # Japanese: kana is half of it; Chinese has none
        return "ja-mecab"
    return "zh" if letters["han"] > letters["other"] else "flores200"


# The files of the stage.


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write one JSONL file per split and one of the unlabelled sources; the folder appears whole or not at all."""
    with atomic_folder(folder) as partial:
        _write_splits(corpus, [split for split in corpus if split in _MAIN], partial)


def write_tests(corpus: Corpus, folder: Path) -> None:
    """Write the test sets beside the main one, which `write_corpus` writes, and `examples.json`, the sizes of all."""
    further = [split for split in corpus if split not in _MAIN]
    # The sizes are there for dvc too, which warns of a dependency that is empty.
    sizes = {split: len(corpus[split]) for split in ("test", *further)}
    with atomic_folder(folder) as partial:
        _write_splits(corpus, further, partial)
        (partial / "examples.json").write_text(json.dumps(sizes) + "\n", encoding="utf-8")


def _write_splits(corpus: Corpus, splits: Sequence[str], folder: Path) -> None:
    for split in splits:
        write_jsonl(corpus[split], folder / f"{split}.jsonl")


def write_tokenizer(settings: TokenizerSettings, corpus: Corpus, folder: Path) -> None:
    """Train the tokenizer on sources and references of the training split, or copy a published one."""
    if settings.pretrained is not None:
        tokenizer = load_tokenizer(settings.pretrained)
    else:
        sample = corpus["train"][: settings.sample]
        text = [example.source for example in sample] + [example.references[0] for example in sample]
        tokenizer = train_tokenizer(text, settings)
    # A new folder: a file that this tokenizer lacks, such as a chat template, must not stay from an earlier one.
    with atomic_folder(folder) as partial:
        tokenizer.save_pretrained(partial)


def report_corpus(
    task: str, corpus: Corpus, counts: Counts, tokenizer: PreTrainedTokenizerBase, text: TextSettings, also: Sequence[str]
) -> None:
    """Write the report of a corpus, and log its summary and warnings.

    Args:
        task: Name of the task.
        corpus: Its splits.
        counts: What `count_texts` found in them.
        tokenizer: Of both models.
        text: Length limits.
        also: Further warnings.

    Raises:
        InputError: the tokenizer does not know this corpus; the report is written first.
    """
    unknown = None if tokenizer.unk_token_id == tokenizer.eos_token_id else tokenizer.unk_token_id
    limits = text.max_source_tokens, text.max_target_tokens
    whole = SourceEncoder(tokenizer, dataclasses.replace(text, max_source_tokens=_WHOLE))
    tokenise = (whole, lambda texts: encode(tokenizer, texts, _WHOLE))
    report = measure_corpus(task, corpus, counts, tokenise, unknown, limits)
    found = [*warnings(report), *also]
    with atomic_path(TaskPaths(task).corpus_report) as partial:
        partial.write_text(json.dumps({**dataclasses.asdict(report), "warnings": found}, indent=2) + "\n", encoding="utf-8")
    log.info("%s", "\n".join([f"{task}:", *summary(report)]))
    for warning in found:
        log.warning("%s: %s", task, warning)
    for error in token_errors(report):
        raise InputError(f"task {task}: {error}; see {TaskPaths(task).corpus_report}")


def main() -> None:
    """Read `params.yaml` and write the corpus and the tokenizer of the task."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params = load(arguments.params)
    task, paths = params.task(arguments.task), TaskPaths(arguments.task)
    steps = progress(total=2, desc=f"prepare {arguments.task}", unit="step")
    # 1. Refuse what the GPU at hand cannot hold, before anything is downloaded; a machine without one needs no torch for that.
    if Path("/dev/nvidiactl").exists():
        from tasks.presets.plan import require_fit

        require_fit(task, params.machine)
    elif task.corpus.source == "hub":
        log.info("no GPU is here; draftline presets plan %s estimates what this task takes of one", arguments.task)
    # 2. Read and check what is there, without waiting for a timing of this machine.
    corpus = load_corpus(task.corpus, params.corpus_source(arguments.task))
    for split in SPLITS:
        if not corpus[split]:
            raise InputError(f"task {arguments.task}: the {split} split is empty; give it at least one example")
    counts = count_texts(corpus)
    for error in text_errors(counts):
        raise InputError(f"task {arguments.task}: {error}")
    found = check_references(corpus, task.metric)
    check_starts(task.models.large, task.models.small)
    # 3. Write the corpus, train the tokenizer, and measure the texts in its tokens.
    with folder_lock(paths.resume("prepare")), host_lock(), steps:
        paths.forget_metrics()
        write_corpus(corpus, paths.corpus)
        write_tests(corpus, paths.tests)
        steps.update()
        write_tokenizer(task.tokenizer, corpus, paths.tokenizer)
        steps.update()
        tokenizer = load_tokenizer(paths.tokenizer)
        for model in (task.models.large, task.models.small):
            check_vocabulary(tokenizer, paths.tokenizer, model)
        if task.text.chat_template:
            # A template that is missing or does not take the messages is found here, before anything is trained.
            SourceEncoder(tokenizer, task.text)
        steps.close()
        report_corpus(arguments.task, corpus, counts, tokenizer, task.text, found)


if __name__ == "__main__":
    with stage():
        main()
