"""A small model with another tokenizer: what it predicts of the large model's tokens, and what it drafts."""

import copy
import random
from pathlib import Path

import pytest
import torch

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.retokenized import RetokenizedDrafter, TranslatedDecoder, Translation, translation_between
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.errors import InputError
from tasks.models.checkpoints import save_model
from tasks.models.prompting import SourceDecoder, encode_sources
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer
from tests.architectures import models
from tests.gguf_files import write_gguf
from tests.pair_folders import LETTERS, letter_tokenizer
from tests.toys import END, START, PrefixDecoder, says, toy_sources
from tests.translated import translated_pair

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)
TEXT = TextSettings(max_source_tokens=16, max_target_tokens=24)


def cached(name: str) -> Pair:
    """The toys of an architecture, the small one in a vocabulary of its own."""
    small, large = models(name)
    target = open_decoder(large, "large", 23)
    begin = [START] if large.config.is_encoder_decoder else []
    return Pair(TranslatedDecoder(open_decoder(small, "small", 24), target, toy_translation(), begin), target)


def toy_translation() -> Translation:
    """Every other token is common, and stands elsewhere; the others are two of the small model's."""
    common = {END: END} | {token: 25 - token for token in range(2, 23, 2)}

    def written(token: int) -> list[int]:
        return [2 + token % 7, 9 + token % 11]

    def retokenize(text: list[int], drafted: list[int]) -> list[int]:
        return [token if token == END else 2 + (text[-1] + token) % 21 for token in drafted]

    return Translation(common, written, lambda rows: [[*row[1:], 5] for row in rows], retokenize)


@pytest.mark.parametrize("name", ["t5", "llama", "bart"])
def test_a_cache_changes_nothing(name: str) -> None:
    """Predictions in runs of several tokens, after rewinds and in batches are those of a run over the whole text."""
    pair, plan = cached(name), toy_translation()
    small, rng = pair.small, random.Random(0)
    own = open_decoder(models(name)[0], "small", 24)
    sources = [[*row[:3], 7, END] for row in toy_sources(3, seed=4)]
    rows = small.start(small.encode(sources))
    rows = [row + [rng.randrange(2, 23) for _ in range(9)] for row in rows]
    begins = [len(row) - 9 for row in rows]

    def expected(row: int, length: int) -> torch.Tensor:
        [start] = own.start(own.encode(plan.sources([sources[row]])))
        written = [one for token in rows[row][begins[row] : length] for one in plan.written(token)]
        logits = own.forward([[*start, *written]]).logits[0, -1]
        found = torch.full((23,), -torch.inf)
        for token, same in plan.common.items():
            found[token] = logits[same]
        return found

    cuts = [0, 0, 0]
    for new, kept in ((begins[0] + 3, 2), (4, 3), (1, 1), (3, 0)):
        ends = [begin + new - begins[0] if cut == 0 else cut + new for begin, cut in zip(begins, cuts, strict=True)]
        step = small.forward([row[cut:end] for row, cut, end in zip(rows, cuts, ends, strict=True)])
        assert small.lengths == ends
        for row, end in enumerate(ends):
            for back in range(min(step.lengths[row], end - begins[row] + 1)):
                found = step.logits[row, step.lengths[row] - 1 - back]
                torch.testing.assert_close(found, expected(row, end - back), atol=1e-4, rtol=0)
        cuts = [end - (end - begin) + min(kept, end - begin) for begin, end in zip(begins, ends, strict=True)]
        small.rewind(cuts)
    small.reorder([2, 0])
    step = small.forward([rows[2][cuts[2] : cuts[2] + 1], rows[0][cuts[0] : cuts[0] + 1]])
    for place, row in enumerate((2, 0)):
        torch.testing.assert_close(step.logits[place, step.lengths[place] - 1], expected(row, cuts[row] + 1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_retokenized_draft_by_hand(sampling: SamplingSettings) -> None:
    """The small model says x y x z, which the large one writes xy x z; as many of its tokens as may be drafted."""
    pair = translated_pair(says([2, 3, 2, 4], vocabulary=6), says([3, 0, 4], vocabulary=5), 5)
    drafter = RetokenizedDrafter(pair.small, pair.large, sampling)
    for budget, expected in ((1, [0]), (2, [3]), (3, [3, 0]), (6, [3, 0, 4, END])):
        drafter.start(pair.large.encode([[2, END]]), [[2, END]])
        draft = drafter.draft([[START]], [0], [budget], DraftRule(budget))
        assert (draft.tokens, draft.steps) == ([expected], [min(budget, 5)])
        assert pair.small.inner.rows == [[START]]  # type: ignore[attr-defined]
    settings = SpeculativeSettings(drafter="retokenized", draft_length=5)
    [text] = decode("speculative", settings, pair, [[2, END]], Request(9, sampling))
    assert (text.tokens, text.proposers, text.counts.small_steps) == ([3, 0, 4, END], "ssss", 5)


def test_a_pair_of_one_tokenizer_has_no_retokenized_drafts() -> None:
    large = PrefixDecoder(says([2]))
    with pytest.raises(InputError, match="both models have one; take the drafter small"):
        decode("speculative", SpeculativeSettings(drafter="retokenized"), Pair(large, large), [[2, END]], Request(4))


def permuted(folder: Path, name: str, drop: str = "") -> DecodingPair:
    """A pair of folders whose small model is the large one with its letters in another order, each under another id."""
    large, tokenizer = models(name)[1], letter_tokenizer()
    letters = tokenizer.convert_ids_to_tokens(range(3, 24))
    order = random.Random(5).sample(range(21), 21)
    small = copy.deepcopy(large)
    index = torch.tensor([0, 1, 2, *(3 + place for place in order)])
    with torch.no_grad():
        head = small.get_output_embeddings()
        for module in small.modules():
            if module is head or (isinstance(module, torch.nn.Embedding) and module.weight.shape[0] == 24):
                module.weight = torch.nn.Parameter(module.weight[index].clone())
    spelled = ["!" if letters[place] == drop else letters[place] for place in order]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -2.0) for letter in spelled)]
    own = type(tokenizer)(vocab=vocabulary, extra_ids=0)
    save_model(large, tokenizer, folder / "large")
    save_model(small, own, folder / "small")
    return load_pair(large=folder / "large", drafter=folder / "small", text=TEXT)


@pytest.mark.parametrize("name", ["t5", "llama"])
@pytest.mark.parametrize("drafter", ["small", "retokenized"])
def test_folders_of_two_tokenizers_are_opened_as_a_pair(name: str, drafter: str, tmp_path: Path) -> None:
    """The same model in other tokens drafts what is accepted, every token of it."""
    pair = permuted(tmp_path, name)
    settings = {"drafter": drafter, "draft_length": 3}
    found = pair.generate(LETTERS, method="speculative", settings=settings)
    vanilla = pair.generate(LETTERS, method="vanilla_large")
    assert [one.text for one in found] == [one.text for one in vanilla]
    assert len({one.text for one in found}) > 3
    common, compared = pair.decoders.small.translation.common, 0  # type: ignore[attr-defined]
    for one in found:
        # Behind padding, which is no text, the small model reads another text than the large one.
        length = next((place for place, token in enumerate(one.tokens) if token not in common), len(one.tokens))
        assert set(one.proposers[:length]) <= {"s", "l"}
        compared += length
    assert compared > 30


def test_a_token_that_only_one_tokenizer_has_is_never_drafted(tmp_path: Path) -> None:
    letter = permuted(tmp_path, "t5").generate(LETTERS[0], method="vanilla_small")[0].text[0]
    pair = permuted(tmp_path, "t5", drop=letter)
    small = pair.decoders.small
    assert isinstance(small, TranslatedDecoder)
    [token] = pair.tokenizer.convert_tokens_to_ids([letter])
    assert token not in small.translation.common
    assert len(small.translation.common) == 21
    assert small.translation.written(token) == [2]
    assert all(letter not in one.text for one in pair.generate(LETTERS, method="vanilla_small"))
    assert any(letter in one.text for one in pair.generate(LETTERS, method="vanilla_large"))


def test_tokenizers_of_two_kinds(tmp_path: Path) -> None:
    """Byte-level and SentencePiece: letters and words with a space are common."""
    byte_level, letters = load_tokenizer(write_gguf(tmp_path / "tiny.gguf")), letter_tokenizer()
    ends = byte_level.eos_token_id, letters.eos_token_id
    found = translation_between(byte_level, letters, ends, TEXT)
    for letter in "abt":
        [ours] = letters.convert_tokens_to_ids([letter])
        assert byte_level.decode([found.common[ours]]) == letter
    [space] = letters.convert_tokens_to_ids(["▁"])
    assert byte_level.decode([found.common[space]]) == " "
    assert found.common[ends[1]] == ends[0]
    [source] = encode_sources(letters, ["ab cd"], TEXT)
    assert byte_level.decode(found.sources([source])[0]).startswith("ab cd")
    drafted = byte_level(" the", add_special_tokens=False)["input_ids"]
    text = letters("ab", add_special_tokens=False)["input_ids"]
    assert letters.decode(text + found.retokenize(text, [*drafted, ends[0]])) == "ab the</s>"
    with pytest.raises(InputError, match="no token stands for the same text"):
        translation_between(letters, type(letters)(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("Z", 0.0)], extra_ids=0), ends, TEXT)


def test_a_source_is_read_back_from_a_chat_prompt(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))
    chat = TextSettings(max_source_tokens=200, chat_template=True, instruction="Sum up:\n\n{source}\nNow.", system="Be brief.")
    for text in (chat, TEXT):
        rows = encode_sources(tokenizer, ["the other", ""], text)
        assert SourceDecoder(tokenizer, text)(rows) == ["the other", ""]


def test_a_text_that_is_too_long_for_the_small_model_is_refused() -> None:
    pair = translated_pair(says([2, 3, 2, 4], vocabulary=6), says([3, 3, 4], vocabulary=5), 5)
    small = pair.small
    assert isinstance(small, TranslatedDecoder)
    short = TranslatedDecoder(small.inner, pair.large, small.translation, [START], positions=4)
    with pytest.raises(InputError, match="the small model has 4 positions, but a text has 5 of its tokens; lower"):
        decode("speculative", SpeculativeSettings(), Pair(short, pair.large), [[2, END]], Request(9))
