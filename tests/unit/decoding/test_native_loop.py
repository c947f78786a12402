"""The native loop equals the general loop, and runs only numeric rules on native models and tables."""

import copy
import dataclasses
import math
import threading
from typing import Any

import pytest
import torch

from tasks.decoding import loop, native_loop
from tasks.decoding.decoder import AUTO, REFERENCE, BrokenLogitsError, Rows, Runtime
from tasks.decoding.loop import SpeculativeLoop, abandonable, continue_greedily, executor_for, watched
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods import speculative
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import DiffOracleSettings, SpeculativeCascadeSettings, TokenCascadeSettings
from tasks.decoding.methods.speculative import LenientSettings, SpeculativeSettings
from tasks.decoding.registry import METHODS, decode
from tasks.decoding.runtimes.choose import open_decoders
from tasks.decoding.turn import AbandonedError, Abandonment, RowState
from tests.architectures import FAST, models, pair_of
from tests.executors import same_in_the_kernel
from tests.methods import DEFERRAL_COSTS, DRAWN, NUMERIC
from tests.toys import VOCABULARY, toy_sources

SOURCES = toy_sources(12)


def built(method: str, settings: Any, pair: Pair, sampling: SamplingSettings | None = None, **rest: Any) -> SpeculativeLoop:
    one = METHODS[method].make(settings, pair, Request(9, SamplingSettings() if sampling is None else sampling, **rest))
    assert isinstance(one, SpeculativeLoop)
    return one


@pytest.mark.parametrize(("method", "settings"), NUMERIC)
def test_rows_equal_the_general_loop(method: str, settings: Any) -> None:
    for limit in (1, 2, 3, 20):
        same_in_the_kernel(built(method, settings, pair_of("t5")), SOURCES, limit)


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *NUMERIC,
        ("vanilla_large", VanillaSettings()),
        ("speculative_lossy", speculative.LossySettings(lossiness=0.3, draft_length=3, tuned=True)),
    ],
)
def test_sampled_rows_equal_the_general_loop(
    method: str, settings: Any, drawn: tuple[SamplingSettings, dict[str, Any]]
) -> None:
    sampling, rest = drawn
    found = same_in_the_kernel(built(method, settings, pair_of("t5"), sampling, **rest), SOURCES, 20)
    greedy = built(method, settings, pair_of("t5")).run(SOURCES, range(len(SOURCES)), 20)
    assert rest.get("drafter") or [one.tokens for one in found] != [one.tokens for one in greedy]


@pytest.mark.parametrize("name", FAST)
def test_every_native_architecture_equals_the_general_loop(name: str) -> None:
    for method, settings in (
        ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=1.0, max_draft=4)),
        ("speculative_cascade", SpeculativeCascadeSettings(rule="token_v3", deferral_cost=0.6, draft_length=3)),
    ):
        same_in_the_kernel(built(method, settings, pair_of(name)), SOURCES, 14)


@pytest.mark.parametrize("rule", DEFERRAL_COSTS)
def test_a_cascade_defers_and_keeps_in_the_native_loop(rule: str) -> None:
    """With α between its extremes, texts are neither vanilla's nor those of accepting every draft."""

    def texts(method: str, settings: Any) -> Rows:
        one = built(method, settings, pair_of("t5"))
        return [one.run([source], [example], 20)[0].tokens for example, source in enumerate(SOURCES)]

    settings = SpeculativeCascadeSettings(rule=rule, deferral_cost=DEFERRAL_COSTS[rule], draft_length=4)
    found = texts("speculative_cascade", settings)
    assert found != texts("speculative", SpeculativeSettings())
    assert found != texts("token_cascade", TokenCascadeSettings(deferral_cost=1.0))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("speculative", SpeculativeSettings(draft_length=4)),
        ("speculative_confident", speculative.ConfidentSettings(max_draft=6, stop_below=0.2)),
        ("speculative_lenient", LenientSettings(lenience=0.3, draft_length=4)),
        ("bild", BildSettings(fallback_threshold=0.02, rollback_threshold=4.0, max_draft=5)),
        ("bild", BildSettings(fallback_threshold=0.0, rollback_threshold=math.inf, max_draft=3)),
    ],
)
@pytest.mark.parametrize(("name", "drafter"), [("t5", "bigram"), ("llama", "unigram")])
def test_drafts_of_a_table_equal_the_general_loop(name: str, method: str, settings: Any, drafter: str) -> None:
    opened = pair_of(name)
    texts = [decode("vanilla_large", None, opened, [source], Request(12))[0].tokens for source in toy_sources(30, seed=3)]
    pair = dataclasses.replace(opened, calibration=texts)
    loop_of_tables = built(method, dataclasses.replace(settings, drafter=drafter), pair)
    for limit in (1, 3, 20):
        same_in_the_kernel(loop_of_tables, SOURCES, limit)
    counts = loop_of_tables.run([SOURCES[0]], [0], 20)[0].counts
    assert counts.drafted > 0
    assert counts.small_steps == 0


@pytest.mark.parametrize(
    ("method", "settings", "sampling"),
    [
        ("bild", BildSettings(drafter="copy"), SamplingSettings()),
        ("bild_oracle", BildOracleSettings(), SamplingSettings()),
        ("speculative", SpeculativeSettings(drafter="bigram"), SamplingSettings(temperature=1.0)),
        ("speculative_cascade", SpeculativeCascadeSettings(drafter="copy"), SamplingSettings()),
        *(("speculative", SpeculativeSettings(drafter=drafter), SamplingSettings()) for drafter in ("copy", "suffix")),
    ],
)
def test_other_methods_run_in_the_general_loop(method: str, settings: Any, sampling: SamplingSettings) -> None:
    pair = dataclasses.replace(pair_of("t5"), calibration=[[3, 4, 1]])
    assert executor_for(built(method, settings, pair, sampling), 1) is loop.generate


def test_other_runtimes_and_unequal_vocabularies_run_in_the_general_loop() -> None:
    small, large = models("t5")
    assert executor_for(built("bild", BildSettings(), pair_of("t5", REFERENCE)), 1) is loop.generate
    cut = open_decoders(small, large, VOCABULARY - 3)
    assert executor_for(built("bild", BildSettings(), cut), 1) is native_loop.generate
    cut.small.vocabulary -= 1  # type: ignore[misc]
    method = built("bild", BildSettings(), cut)
    assert executor_for(method, 1) is loop.generate
    with pytest.raises(ValueError, match="a native model with another one or a table"):
        native_loop.generate(method, SOURCES[:1], [0], 9)


def test_one_model_alone_is_continued_in_one_call() -> None:
    native, reference = (built("vanilla_large", VanillaSettings(), pair) for pair in (pair_of("t5"), pair_of("t5", REFERENCE)))
    assert executor_for(native, 1) is continue_greedily
    assert executor_for(native, 2) is native_loop.generate
    assert executor_for(reference, 1) is loop.generate
    expected = loop.generate(native, SOURCES, range(len(SOURCES)), 9)
    assert [native.run([source], [example], 9)[0] for example, source in enumerate(SOURCES)] == expected
    assert native.run(SOURCES, range(len(SOURCES)), 9) == expected
    with pytest.raises(ValueError, match="does not continue a row by itself"):
        continue_greedily(reference, SOURCES[:1], [0], 9)


def test_one_model_alone_is_watched_token_by_token() -> None:
    method, seen = built("vanilla_large", VanillaSettings(), pair_of("t5")), list[int]()
    shown = watched(method, lambda row: seen.append(len(row.tokens) - row.prompt))
    [text] = shown.run(SOURCES[:1], [0], 9)
    assert [text] == method.run(SOURCES[:1], [0], 9)
    assert seen == list(range(1, len(text.tokens) + 1))


@pytest.mark.parametrize("runtime", [REFERENCE, AUTO], ids=["reference", "native"])
def test_a_watch_ends_one_text_of_a_batch(runtime: Runtime) -> None:
    method = endless("speculative", SpeculativeSettings(), runtime)
    whole = method.run(SOURCES[:3], range(3), 9)
    ended = watched(method, lambda row: row.example == 1 and len(row.tokens) - row.prompt >= 3)
    first, second, third = ended.run(SOURCES[:3], range(3), 9)
    assert [first, third] == [whole[0], whole[2]], "the others go on"
    assert 3 <= len(second.tokens) < 9 and second.tokens == whole[1].tokens[: len(second.tokens)]
    assert second.counts.tokens == len(second.tokens) and second.counts.large_calls < whole[1].counts.large_calls


@pytest.mark.parametrize("broken", [0, 1])
def test_broken_logits_are_reported_as_by_the_general_loop(broken: int) -> None:
    small, large = (copy.deepcopy(model) for model in models("t5"))
    with torch.no_grad():
        (small, large)[broken].lm_head.weight[5] = math.nan
    opened = open_decoders(small, large, runtime=Runtime("native"))
    for name, settings in (("bild", BildSettings(fallback_threshold=0.2)), ("speculative", SpeculativeSettings())):
        method = built(name, settings, opened)
        with pytest.raises(BrokenLogitsError) as general:
            loop.generate(method, [SOURCES[0]], [0], 9)
        with pytest.raises(BrokenLogitsError, match=f"the {('small', 'large')[broken]} model") as native:
            method.run([SOURCES[0]], [0], 9)
        assert str(native.value) == str(general.value)


def endless(method: str, settings: Any, runtime: Runtime = AUTO) -> SpeculativeLoop:
    opened = open_decoders(*models("t5"), runtime=runtime)
    for model in (opened.small, opened.large):
        model.end_tokens = frozenset()
    return built(method, settings, opened)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("method", "settings"), [("vanilla_large", VanillaSettings()), ("speculative", SpeculativeSettings())])
def test_the_kernel_ends_once_nobody_waits(method: str, settings: Any, rows: int) -> None:
    texts = [Abandonment() for _ in range(rows)]
    going = abandonable(endless(method, settings), texts)
    assert len(going.run(SOURCES[:rows], range(rows), 9)[0].tokens) == 9

    def leave() -> None:
        for text in texts:
            text.set()

    setting = threading.Timer(0.05, leave)
    setting.start()
    with pytest.raises(AbandonedError):
        going.run(SOURCES[:rows], range(rows), 30_000)
    setting.join()


def test_a_batch_goes_on_while_one_client_waits() -> None:
    texts = [Abandonment(), Abandonment()]
    texts[0].set()
    method = endless("speculative", SpeculativeSettings())
    going = abandonable(method, texts)
    assert going.run(SOURCES[:2], range(2), 9) == method.run(SOURCES[:2], range(2), 9)


@pytest.mark.parametrize("runtime", [REFERENCE, AUTO], ids=["reference", "native"])
def test_a_watched_text_ends_at_its_next_turn(runtime: Runtime) -> None:
    text, turns = Abandonment(), 0

    def watch(_: RowState) -> None:
        nonlocal turns
        turns += 1
        text.set()

    with pytest.raises(AbandonedError):
        watched(abandonable(endless("speculative", SpeculativeSettings(), runtime), [text]), watch).run(SOURCES[:1], [0], 9)
    assert turns == 1


def test_a_token_that_ends_a_text_for_the_large_model_alone() -> None:
    small, large = models("t5")
    pair = open_decoders(small, large)
    first = decode("vanilla_small", None, pair, [SOURCES[1]], Request(6))[0].tokens
    pair.large.end_tokens = frozenset({*pair.large.end_tokens, first[1]})
    for settings in (BildSettings(fallback_threshold=0.0), BildSettings(fallback_threshold=0.0, rollback_threshold=0.5)):
        same_in_the_kernel(built("bild", settings, pair), SOURCES, 12)


PLAIN = SamplingSettings(temperature=1.0)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("sampling", [PLAIN, SamplingSettings()], ids=["sampled", "greedy"])
def test_kept_predictions_change_nothing(name: str, sampling: SamplingSettings) -> None:
    """Methods in turn, one of which runs in the general loop, on two batches, of which the second one is asked for twice."""
    pair, asked = pair_of(name), list[tuple[Any, Rows]]()
    methods = [*NUMERIC[::3], ("diff_oracle", DiffOracleSettings()), *NUMERIC[1::3]]
    for sources in (SOURCES[:4], SOURCES[4:], SOURCES[4:]):
        asked += [(built(method, settings, pair, sampling), sources) for method, settings in methods]
    plain = [one.run(sources, range(len(sources)), 9) for one, sources in asked]
    with native_loop.keeping_predictions(pair):
        assert [one.run(sources, range(len(sources)), 9) for one, sources in asked] == plain


def test_what_is_kept_is_not_computed_again() -> None:
    small, large = map(copy.deepcopy, models("t5"))
    one = built("speculative", SpeculativeSettings(draft_length=3), pair := open_decoders(small, large), PLAIN)
    with native_loop.keeping_predictions(pair):
        first = one.run(SOURCES, range(len(SOURCES)), 9)
        for model in (small, large):
            model.get_input_embeddings().weight.data.mul_(-1)  # the kernel reads them where they are
        assert one.run(SOURCES, range(len(SOURCES)), 9) == first
    assert one.run(SOURCES, range(len(SOURCES)), 9) != first


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_rows_of_one_source_share_what_is_kept(name: str) -> None:
    pair, sources = pair_of(name), [SOURCES[0]] * 6
    one = built("speculative", SpeculativeSettings(draft_length=3), pair, PLAIN)
    plain = one.run(sources, range(6), 9)
    assert len({tuple(row.tokens) for row in plain}) > 1
    with native_loop.keeping_predictions(pair):
        assert [one.run(sources, range(6), 9) for _ in range(2)] == [plain, plain]
