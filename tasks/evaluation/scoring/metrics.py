"""The metrics that quality is measured in, and how each scores examples.

Most metrics are the mean of one number for each example: a function of an output and its references, registered by `@metric`.
Two are determined by sums over the examples: BLEU by its counts, and the perplexity of given texts by nats and tokens. ROUGE is
rouge-score's, BLEU is sacrebleu's. `quality` makes intervals and paired differences of all of them.

A metric's full name is its name where the tokenizers are the usual ones, and otherwise also says which they are:
`bleu[bleu_tokenizer=zh]`. Rows, summaries and every function that scores take full names.

Scored examples are cached, since points of a sweep give the same text for most of them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import math
import re
import secrets
import shutil
import string
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.errors import InputError
from tasks.evaluation.scoring.words import split_sentences, unicode_words
from tasks.settings import read_settings, setting, settings

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

Floats = NDArray[np.float64]
Texts = Sequence[str]
References = Sequence[tuple[str, ...]]
"""One or more reference texts for each example; their number may differ between examples."""

ROUGES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
PROGRAMS = "pass_at_1"
"""The metric that runs outputs as programs; the first reference of an example is a program, the others are its tests."""
PERPLEXITY = "perplexity"
"""The metric of given texts, of which less is better; all others score outputs, and more is better."""
METRICS: dict[str, tuple[str, ...]] = {"bleu": ("bleu", "rougeL"), **dict.fromkeys(ROUGES, ("bleu", *ROUGES))}
"""The metrics by name, each with the names of those that are usually reported with it, itself among them."""
SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {}
"""The metrics that `@metric` registers."""
BLEU_TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "flores200", "char", "none")
"""sacrebleu's, by its names."""
ROUGE_TOKENIZERS = ("default", "unicode")
_USUAL = {"bleu_tokenizer": "13a", "rouge_tokenizer": "default"}
"""The tokenizers that a full name leaves out."""
_REMEMBERED = 1 << 16
"""Examples that a cache holds."""

Score = Callable[[str, Sequence[str]], float]


def metric(*reported: str) -> Callable[[Score], Score]:
    """Register a function as the metric of its name: from an output and its references to a share from 0 to 1.

    Args:
        reported: The metrics that are reported with it, itself among them; none for itself alone.
    """

    def register(score: Score) -> Score:
        METRICS[score.__name__] = reported or (score.__name__,)
        SCORES[score.__name__] = score
        return score

    return register


# Short answers: exact match and F1 as in SQuAD (Rajpurkar et al., 2016 and 2018), numeric answers as in GSM8K (Cobbe et al.,
# 2021).

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANSWER_MARK = "####"
# A sign counts where nothing is subtracted from: "-5" and "x = -5", but not "10-5".
_NUMBER = re.compile(r"(?:(?<![\w.)])([-−+])\s?)?[$€£]?((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")


def normalised(text: str) -> str:
    """`text` in lower case without ASCII punctuation, English articles and repeated white space, as SQuAD compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _golds(references: Sequence[str]) -> list[str]:
    """References as compared: an empty one, that of an unanswerable question, counts only where there is no other."""
    return [gold for gold in map(normalised, references) if gold] or [""]


@metric("exact_match", "token_f1")
def exact_match(text: str, references: Sequence[str]) -> float:
    """1 where the normalised text equals a reference, otherwise 0."""
    return float(normalised(text) in _golds(references))


@metric("exact_match", "token_f1")
def token_f1(text: str, references: Sequence[str]) -> float:
    """The F1 of the words of the normalised text against the best reference; without a word it is 1 or 0, as exact match."""

    def f1(gold: list[str]) -> float:
        if not words or not gold:
            return float(words == gold)
        return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))

    words = normalised(text).split()
    return max(f1(gold.split()) for gold in _golds(references))


@metric()
def numeric_answer(text: str, references: Sequence[str]) -> float:
    """1 where the last number of the text equals that of a reference, otherwise 0; a reference without a number never does."""
    found = last_number(text)
    return float(found is not None and any(last_number(reference) == found for reference in references))


def last_number(text: str) -> Decimal | None:
    """The last number of a text, or of what follows its last `####`; None where there is none.

    Thousands separators, a currency sign and trailing zeros do not matter: "$1,250.00" is 1250. A fraction ends with its
    denominator, and a percentage is its number.
    """
    numbers = _NUMBER.findall(text.rpartition(_ANSWER_MARK)[2])
    if not numbers:
        return None
    sign, digits = numbers[-1]
    value = Decimal(digits.replace(",", ""))
    return value.copy_negate() if sign in ("-", "−") else value


# pass@1: the share of programs that pass their tests (Chen et al., 2021, with one program for each example).

_CPU_SECONDS = 5
_WALL_SECONDS = 20.0
"""Longer than the CPU seconds, so that a busy machine does not decide what passes."""
_MEMORY = 1 << 30
_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_RUNNER = """
import json, os, resource, sys
work = json.load(sys.stdin)
for name, value in work["limits"].items():
    resource.setrlimit(getattr(resource, name), (value, value))
names = {"__name__": "program"}
for part in (work["program"], work["tests"]):
    exec(compile(part, "program.py", "exec"), names)
os._exit(work["passed"])
"""
"""Runs a program and its tests; any exit status but `passed` is a failure, so that a program cannot pass by leaving early."""


@metric()
def pass_at_1(text: str, references: Sequence[str]) -> float:
    """1 where the program in a text passes the tests, otherwise 0. `params.yaml` has to allow it: `run_generated_code`.

    Args:
        text: A program, or a text whose first block between lines of ``` is one.
        references: A program that passes, which is not read here, and then the tests: lines of Python.

    Raises:
        InputError: nothing on this machine runs programs apart from everything else.
    """
    require_sandbox()
    return float(passes(program_of(text), "\n".join(references[1:])))


def program_of(text: str) -> str:
    """The first fenced block of a text; where it has none, its first lines as far as they are a program, or else all of it."""
    fenced = _FENCED.search(text)
    if fenced:
        return fenced[1]
    lines = text.splitlines(keepends=True)
    # A model that continues examples goes on with the next one.
    beginnings = ("".join(lines[:count]) for count in range(len(lines), 0, -1))
    return next((one for one in beginnings if _is_program(one)), text)


def _is_program(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@functools.lru_cache(maxsize=_REMEMBERED)
def passes(program: str, tests: str, wall_seconds: float = _WALL_SECONDS) -> bool:
    """Whether a program runs to its end in the sandbox and its tests raise nothing, within the limits."""
    passed = 3 + secrets.randbelow(120)
    limits = {"RLIMIT_CPU": _CPU_SECONDS, "RLIMIT_AS": _MEMORY, "RLIMIT_FSIZE": 1 << 20, "RLIMIT_CORE": 0}
    work = json.dumps({"program": program, "tests": tests, "passed": passed, "limits": limits})
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        # Without the packages of this environment; hashes are fixed, so that the order of a set is.
        command = [*sandbox(folder), "-P", "-s", "-S", "-B", "-c", _RUNNER]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(  # noqa: S603 (in a sandbox)
                command, input=work.encode("utf-8", "replace"), capture_output=True, timeout=wall_seconds, check=False
            )
            return done.returncode == passed
    return False


def sandbox(folder: str) -> list[str]:
    """The command that runs Python in a sandbox: no network, nothing to write but its own folder, no other process.

    Args:
        folder: An empty folder, which the program may write to.
    """
    if bwrap := shutil.which("bwrap"):
        return [
            *(bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
            *("--setenv", "PYTHONHASHSEED", "0", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *("--tmpfs", "/tmp", "--bind", folder, folder, "--chdir", folder, sys.executable),  # noqa: S108 (in the sandbox)
        ]
    if runtime := shutil.which("podman") or shutil.which("docker"):
        return [
            *(runtime, "run", "--rm", "--interactive", "--pull", "never", "--network", "none", "--read-only"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "16", "--memory", str(_MEMORY)),
            *("--env", "PYTHONHASHSEED=0", "--tmpfs", "/program", "--workdir", "/program", _image(), "python"),
        ]
    return []


def _image() -> str:
    return f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


@functools.cache
def require_sandbox() -> None:
    """Check that programs run here apart from everything else.

    Raises:
        InputError: there is no sandbox, or it does not run.
    """
    if not sandbox("") or not passes("x = 1", "assert x == 1") or passes("x = 1", "assert x == 2"):
        said = "metric: pass_at_1 runs generated programs, and nothing here runs them apart from everything else"
        fix = f"install bubblewrap (bwrap), or podman or docker with the image {_image()}, or choose another metric"
        raise InputError(f"{said}; {fix}")


# ROUGE (Lin, 2004), by rouge-score: F-measure, the best of several references.


def rouge_table(hypotheses: Texts, references: References, names: tuple[str, ...], tokenizer: str = "default") -> Floats:
    """F-measures in points, `[examples, names]`."""
    pairs = zip(hypotheses, references, strict=True)
    return np.array([_rouge_example(text, tuple(right), names, tokenizer) for text, right in pairs], dtype=np.float64)


@functools.lru_cache(maxsize=_REMEMBERED)
def _rouge_example(hypothesis: str, references: tuple[str, ...], names: tuple[str, ...], tokenizer: str) -> tuple[float, ...]:
    scorer = _rouge_scorer(names, tokenizer)
    best = scorer.score_multi([split_sentences(text) for text in references], split_sentences(hypothesis))
    return tuple(100.0 * best[name].fmeasure for name in names)


def rouge_signature(tokenizer: str) -> str:
    """How ROUGE was computed, in the form of sacrebleu's signatures."""
    stemmer = "porter" if tokenizer == "default" else "no"
    return f"tok:{tokenizer}|stem:{stemmer}|sent:rules|version:{version('rouge-score')}"


@contextlib.contextmanager
def _hidden(*modules: str) -> Iterator[None]:
    """Let these modules be missing: nltk imports them for parts that ROUGE does not use, and takes three times as long then."""
    missing = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None is Python's mark of a module that is not found
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


@functools.cache
def _rouge_scorer(names: tuple[str, ...], tokenizer: str) -> Any:
    # Only now: rouge-score imports nltk, which takes long even so.
    with _hidden("sklearn", "scipy.stats"):
        from nltk.stem.porter import PorterStemmer
        from rouge_score import rouge_scorer, tokenize

    # Stemming took two thirds of the time without a cache.
    stemmer = SimpleNamespace(stem=functools.lru_cache(maxsize=_REMEMBERED)(PorterStemmer().stem))

    def words(text: str) -> list[str]:
        found: list[str] = unicode_words(text) if tokenizer == "unicode" else tokenize.tokenize(text, stemmer)
        return found

    return rouge_scorer.RougeScorer(list(names), tokenizer=SimpleNamespace(tokenize=words))


# BLEU (Papineni et al., 2002), by sacrebleu: counts that are additive over examples, mixed case, exponential smoothing.

NGRAMS = 4
"""Orders of n-grams."""
_EXAMPLES = 1 << 12
"""Examples whose references are remembered."""
BLEU_COUNTS = 2 + 2 * NGRAMS
"""Counts of an example, see `bleu_statistics`."""
_PACKAGES = {"ja-mecab": ("MeCab", "sacrebleu[ja]"), "ko-mecab": ("mecab_ko", "sacrebleu[ko]")}
"""The module of a tokenizer, and what installs it."""


@functools.cache
def require_bleu_tokenizer(tokenizer: str) -> None:
    """Check that a tokenizer of BLEU can run here, since sacrebleu would download what is missing.

    Raises:
        InputError: a package or the tokenizer's model is missing; names the command that fetches it.
    """
    module, package = _PACKAGES.get(tokenizer, ("", ""))
    if module and not find_spec(module):
        fix = f"run pip install '{package}', or choose another tokenizer"
        raise InputError(f"metric: bleu_tokenizer {tokenizer} needs the package {package}, which is not installed; {fix}")
    if tokenizer == "flores200":
        from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
        from sacrebleu.utils import SACREBLEU_DIR

        model = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS[tokenizer]["url"]).name
        if not model.is_file():
            command = f"python -c \"import sacrebleu; sacrebleu.BLEU(tokenize='{tokenizer}')\""
            fix = f"run {command} once with a network, or choose char"
            raise InputError(f"metric: bleu_tokenizer {tokenizer} needs the model {model}, which is not there; {fix}")


def bleu_statistics(hypotheses: Texts, references: References, tokenizer: str = "13a") -> NDArray[np.int32]:
    """The counts that determine corpus BLEU, `[examples, 10]`: system length, closest reference length, matched 1- to 4-grams,
    all 1- to 4-grams. They are additive over examples; several references clip against all of them."""
    rows = [_bleu_example(text, tuple(right), tokenizer) for text, right in zip(hypotheses, references, strict=True)]
    return np.array(rows, dtype=np.int32)


@functools.lru_cache(maxsize=_REMEMBERED)
def _bleu_example(hypothesis: str, references: tuple[str, ...], tokenizer: str) -> tuple[int, ...]:
    found = _bleu_against(references, tokenizer).corpus_score([hypothesis], None)
    return (found.sys_len, found.ref_len, *found.counts, *found.totals)


# A sweep scores some tens of outputs against the references of each example, whose n-grams are counted once.
@functools.lru_cache(maxsize=_EXAMPLES)
def _bleu_against(references: tuple[str, ...], tokenizer: str) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    require_bleu_tokenizer(tokenizer)
    return BLEU(tokenize=tokenizer, references=[[one] for one in references])


def bleu_of(sums: Sequence[float] | NDArray[Any]) -> float:
    """BLEU in points from summed `bleu_statistics`, shape `[10]`."""
    from sacrebleu.metrics.bleu import BLEU

    counts = [int(value) for value in sums]
    matched, total = counts[2 : 2 + NGRAMS], counts[2 + NGRAMS :]
    return float(BLEU.compute_bleu(matched, total, counts[0], counts[1], smooth_method="exp").score)


def bleus_of(sums: Floats) -> Floats:
    """Corpus BLEU for many rows of sums, `[samples, 10]`: a sweep has a thousand resamples for every point.

    Where every order has a match nothing is smoothed, and BLEU follows its definition (Papineni et al., 2002); sacrebleu
    computes the other rows.
    """
    matched, total = sums[:, 2 : 2 + NGRAMS], sums[:, 2 + NGRAMS :]
    plain = np.asarray((matched > 0).all(axis=1))
    scores = np.array([0.0 if simple else bleu_of(row) for simple, row in zip(plain, sums, strict=True)])
    brevity = np.minimum(0.0, 1.0 - sums[plain, 1] / sums[plain, 0])
    scores[plain] = 100.0 * np.exp(np.log(matched[plain] / total[plain]).mean(axis=1) + brevity)
    return scores


def bleu_gradients(sums: Floats) -> Floats:
    """Derivatives of `bleus_of` in the sums, `[rows, 10]`; an order of n-grams without a match counts as constant."""
    gradients = np.zeros(sums.shape)
    counts = sums[:, 2:]
    plain = np.tile(sums[:, 2 : 2 + NGRAMS] > 0, 2)
    signs = np.repeat([1.0, -1.0], NGRAMS)
    np.divide(signs / NGRAMS, counts, out=gradients[:, 2:], where=plain)
    short = (sums[:, 0] < sums[:, 1]) & (sums[:, 0] > 0)
    length, reference = sums[short, 0], sums[short, 1]
    gradients[short, 0], gradients[short, 1] = reference / length**2, -1.0 / length
    return gradients * bleus_of(sums)[:, None]


@functools.lru_cache(maxsize=4)
def bleu_signature(references: tuple[int, ...], tokenizer: str = "13a") -> str:
    """sacrebleu's signature of a corpus BLEU over examples with these numbers of references."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenizer)
    # As sacrebleu takes them: the first reference of every example, the second of every example, …; None for none.
    streams: list[Any] = [["" if stream < count else None for count in references] for stream in range(max(references))]
    metric.corpus_score([""] * len(references), streams)
    return str(metric.get_signature())


# Perplexity is exp(nats / tokens), over all given texts at once, and not a mean over texts. Quality is minus the perplexity:
# more is better, as for every other metric, and a margin of one point is a point of perplexity (BiLD-v1, 4.2).

LIKELIHOOD_SUMS = 2
"""Values of an example: its negative log-likelihood in nats, and its tokens."""
_MOST_NATS = 700.0
"""Mean nats of a token beyond which float64 holds no perplexity."""
METRICS[PERPLEXITY] = (PERPLEXITY,)


class InfinitePerplexityError(RuntimeError):
    """A text has no probability, or less than float64 holds, so that no perplexity can be compared."""


def likelihood_statistics(log_likelihoods: Sequence[float], tokens: Sequence[int]) -> Floats:
    """Nats and tokens of each text: `[examples, 2]`.

    Raises:
        ValueError: unequal lengths, no text, or a text without tokens.
        InfinitePerplexityError: a text is impossible, or nearly so.
    """
    if len(log_likelihoods) != len(tokens) or not tokens or min(tokens) < 1:
        raise ValueError(f"{len(log_likelihoods)} log-likelihoods of {len(tokens)} texts; one for each, of at least a token")
    for example, (value, count) in enumerate(zip(log_likelihoods, tokens, strict=True)):
        if not math.isfinite(value) or -value > _MOST_NATS * count:
            raise InfinitePerplexityError(f"the text of example {example} has a log-likelihood of {value:g}: no perplexity")
    return np.column_stack((-np.asarray(log_likelihoods, dtype=np.float64), np.asarray(tokens, dtype=np.float64)))


def likelihood_qualities(sums: Floats) -> Floats:
    """Minus the perplexity of summed statistics: `[rows]` of `[rows, 2]`."""
    found: Floats = -np.exp(sums[:, 0] / sums[:, 1])
    return found


def likelihood_gradients(sums: Floats) -> Floats:
    """Derivatives of `likelihood_qualities` in nats and tokens: `[rows, 2]`."""
    nats, tokens = sums[:, 0], sums[:, 1]
    by_nats = likelihood_qualities(sums) / tokens
    return np.column_stack((by_nats, -by_nats * nats / tokens))


# The setting `metric` of a task, and its full name.


@settings
class MetricSettings:
    """A metric and how texts are split into words for it."""

    name: str = setting("The metric; `metric: NAME` is short for `metric: {name: NAME}`.", choices=tuple(METRICS))
    bleu_tokenizer: str = setting(
        "How BLEU splits texts into words, by sacrebleu: 13a for languages with spaces, zh for Chinese, ja-mecab for Japanese, "
        "ko-mecab for Korean, flores200 for any language, char into characters.",
        default="13a",
        choices=BLEU_TOKENIZERS,
    )
    rouge_tokenizer: str = setting(
        "How ROUGE splits texts into words: default is rouge-score's with stems of English words, which keeps a-z and 0-9 "
        "alone; unicode takes letters and digits of all scripts, without stems.",
        default="default",
        choices=ROUGE_TOKENIZERS,
    )

    def validate(self) -> None:
        """Check that a tokenizer that was set is used."""
        shown = METRICS[self.name]
        if "bleu_tokenizer" in self.changed and "bleu" not in shown:
            raise ValueError(f"bleu_tokenizer is {self.bleu_tokenizer}, but {self.name} takes no BLEU; leave it out")
        if "rouge_tokenizer" in self.changed and not set(shown) & set(ROUGES):
            raise ValueError(f"rouge_tokenizer is {self.rouge_tokenizer}, but {self.name} takes no ROUGE; leave it out")

    @property
    def changed(self) -> dict[str, str]:
        """The tokenizers that are not the usual ones."""
        return {name: value for name, usual in _USUAL.items() if (value := getattr(self, name)) != usual}

    @property
    def tokenizer(self) -> str:
        """The tokenizer of the metric itself, where it is not the usual one; otherwise empty."""
        return self.changed.get(_tokenizer_of(self.name), "")

    def __str__(self) -> str:
        """Return the full name."""
        changed = ",".join(f"{name}={value}" for name, value in self.changed.items())
        return f"{self.name}[{changed}]" if changed else self.name


def _tokenizer_of(name: str) -> str:
    """The setting by which a metric's own number changes; BLEU beside a ROUGE has the other one."""
    return "bleu_tokenizer" if name == "bleu" else "rouge_tokenizer"


@functools.cache
def metric_of(full_name: str) -> MetricSettings:
    """Return the metric of a full name.

    Raises:
        ValueError: there is no such metric or tokenizer.
    """
    found = re.fullmatch(r"(\w+)(?:\[(.*)\])?", full_name)
    if found is None or found[1] not in METRICS:
        raise ValueError(f"unknown metric {full_name!r}; it must be one of {', '.join(METRICS)}")
    changed = dict(part.partition("=")[::2] for part in (found[2] or "").split(",") if part)
    return read_settings(MetricSettings, {"name": found[1], **changed})


def compared_as(full_name: str) -> str:
    """The metric without what does not change its own number: BLEU's beside a ROUGE, and the other way round."""
    metric = metric_of(full_name)
    own = _tokenizer_of(metric.name)
    return str(MetricSettings(name=metric.name, **{own: getattr(metric, own)}))


def points_of(name: str, value: float) -> float:
    """Quality in points, of which more is better: the value of a metric, by its name, or minus a perplexity."""
    return -value if name == PERPLEXITY else value
