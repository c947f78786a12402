"""The HTTP surface: answers, streams, refusals, metrics, and the texts of requests and answers."""

import copy
import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tasks.decoding import DecodingPair
from tasks.decoding.decoder import BrokenLogitsError
from tasks.decoding.generation import Counts, Generation
from tasks.serve.pacing import Batch, Engine, PairEngine
from tasks.serve.protocol import Message, NewText, RefusedError, encode_chat, encode_prompts
from tasks.serve.scheduler import ServerSettings
from tests.calibration import SOURCES
from tests.unit.serve.conftest import HeldEngine, app_of, held_encoding

URL, CHAT_URL = "/v1/completions", "/v1/chat/completions"
LIMITS = ServerSettings(max_body=2000, max_prompts=4, max_tokens=24)


def client_of(pair: DecodingPair, engine: Engine, **options: Any) -> TestClient:
    return TestClient(app_of(pair, engine, LIMITS, **options))


@pytest.fixture(scope="module")
def client(pair: DecodingPair) -> Iterator[TestClient]:
    with client_of(pair, PairEngine(pair), fixed=True) as found:
        yield found


def events(text: str) -> list[Any]:
    """The events of a stream; the last one is `[DONE]`."""
    *found, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(one.removeprefix("data: ")) for one in found]


def metrics_of(client: TestClient) -> dict[str, float]:
    """Samples without labels, and those with one label by its value."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def test_an_answer_is_the_offline_text(client: TestClient, pair: DecodingPair) -> None:
    answer = client.post(URL, json={"prompt": SOURCES[0], "max_tokens": 8, "model": "toy"}).json()
    [offline] = pair.generate(SOURCES[0], max_new_tokens=8)
    [choice] = answer["choices"]
    assert choice["text"] == offline.text
    assert choice["finish_reason"] == "length"
    assert choice["draftline"]["proposers"] == offline.proposers
    assert choice["draftline"]["method"] == str(pair.manifest.point)
    assert choice["draftline"]["drafted"] == offline.counts.drafted > 0
    read = len(pair.encode(SOURCES[:1])[0])
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": 8, "total_tokens": read + 8}
    assert (answer["object"], answer["model"]) == ("text_completion", "toy")


def test_texts_that_end_in_another_order_are_answered_in_the_order_asked(pair: DecodingPair) -> None:
    def backwards(batch: Batch) -> None:
        for position in reversed(range(len(batch.rows))):
            row = batch.rows[position]
            batch.finish(position, Generation(row, "l" * len(row), Counts(tokens=len(row))))

    engine = HeldEngine(turn=backwards)
    engine.released.set()
    prompts = SOURCES[:4]
    with client_of(pair, engine) as client:
        answer = client.post(URL, json={"prompt": prompts}).json()
    rows = pair.encode(prompts)
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
    assert [one["text"] for one in answer["choices"]] == [pair.decode(row) for row in rows]
    assert answer["usage"]["completion_tokens"] == sum(map(len, rows))


def test_draws_follow_the_seed(client: TestClient, pair: DecodingPair) -> None:
    asked = {"prompt": SOURCES[1], "temperature": 0.8, "top_p": 0.95, "seed": 5}
    first, second = (client.post(URL, json=asked).json()["choices"][0]["text"] for _ in range(2))
    [offline] = pair.generate(SOURCES[1], do_sample=True, temperature=0.8, top_p=0.95, seed=5)
    assert first == second == offline.text
    other = {client.post(URL, json={**asked, "seed": seed}).json()["choices"][0]["text"] for seed in range(6, 10)}
    assert len(other | {first}) > 1


def test_a_temperature_that_float32_takes_for_none_is_greedy(client: TestClient) -> None:
    greedy, cold = (client.post(URL, json={"prompt": SOURCES[1], "temperature": one}).json() for one in (0, 1e-46))
    assert cold["choices"][0]["text"] == greedy["choices"][0]["text"] != ""


def test_without_a_seed_draws_differ(client: TestClient) -> None:
    asked = {"prompt": SOURCES[1], "temperature": 1.0}
    assert len({client.post(URL, json=asked).json()["choices"][0]["text"] for _ in range(5)}) > 1


@pytest.mark.parametrize("prompts", [SOURCES[:1], SOURCES[:3]])
def test_a_stream_makes_the_same_texts(prompts: list[str], client: TestClient) -> None:
    asked = {"prompt": prompts, "temperature": 0.9, "seed": 3}
    whole = client.post(URL, json=asked).json()["choices"]
    found = events(client.post(URL, json={**asked, "stream": True}).text)
    for index, expected in enumerate(whole):
        pieces = [choice for event in found for choice in event["choices"] if choice["index"] == index]
        assert "".join(piece["text"] for piece in pieces) == expected["text"]
        assert [piece["finish_reason"] for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1]["finish_reason"] == expected["finish_reason"]
        assert pieces[-1]["draftline"]["proposers"] == expected["draftline"]["proposers"]
    assert len({event["id"] for event in found}) == 1


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 400, "prompt: Field required"),
        ({"prompt": ""}, 400, "prompt: "),
        ({"prompt": ["a", " "]}, 400, "prompt: a text is empty; give each prompt some text"),
        ({"prompt": 1}, 400, "prompt: Input should be"),
        ({"prompt": ["a"] * 5}, 400, "there are 5 prompts; at most 4"),
        ({"prompt": "red " * 30}, 400, "tokens; the pair reads at most 32"),
        ({"prompt": "a", "max_tokens": 25}, 400, "max_tokens is 25; at most 24"),
        ({"prompt": "a", "temperature": 3}, 400, "temperature: "),
        ({"prompt": "a", "top_p": 0}, 400, "top_p: "),
        ({"prompt": "a", "top_p": 1e-46}, 400, "top_p: "),
        ({"prompt": "a", "n": 2}, 400, "n is not supported; leave it out"),
        ({"prompt": "a", "colour": "red"}, 400, "colour is not supported"),
        ({"prompt": "a", "model": "gpt"}, 404, "there is no model gpt; this server has toy"),
        ({"prompt": "a" * 2100}, 413, "the body has more than 2000 bytes"),
    ],
)
def test_a_refusal_says_why(body: dict[str, Any], status: int, reason: str, client: TestClient) -> None:
    before = metrics_of(client).get(f"draftline:requests_refused_total {status}", 0.0)
    answer = client.post(URL, json=body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert metrics_of(client)[f"draftline:requests_refused_total {status}"] == before + 1


def test_routes_bodies_and_fields(client: TestClient, pair: DecodingPair) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "toy" and model["operating_point"].startswith(str(pair.manifest.point))
    assert [client.post(URL, content=body).status_code for body in (b"{", b"\xff")] == [400, 400]
    assert client.get(URL).status_code == 405
    assert client.get(URL).json()["error"]["message"] == "/v1/completions does not take GET; it takes POST"
    neutral = {"n": 1, "echo": False, "stop": None, "logprobs": None, "presence_penalty": 0, "user": "me"}
    assert client.post(URL, json={"prompt": SOURCES[0], **neutral}).status_code == 200
    answer = client.post("/v1/embeddings", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("there is no /v1/embeddings; this server has /v1/completions,")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_chat_is_answered_with_a_message(client: TestClient, pair: DecodingPair) -> None:
    asked = {"messages": [user(SOURCES[0])], "max_completion_tokens": 8}
    answer = client.post(CHAT_URL, json=asked).json()
    [choice], [offline] = answer["choices"], pair.generate(SOURCES[0], max_new_tokens=8)
    assert (answer["object"], choice["message"]) == ("chat.completion", {"role": "assistant", "content": offline.text})
    assert choice["finish_reason"] == "length" and answer["id"].startswith("chatcmpl-")
    found = events(client.post(CHAT_URL, json={**asked, "stream": True}).text)
    assert {event["object"] for event in found} == {"chat.completion.chunk"}
    assert "".join(event["choices"][0]["delta"]["content"] for event in found) == offline.text


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages: "),
        ([{"role": "system", "content": "Be brief."}, user("a")], "this pair reads one text and has no chat template"),
        ([user("red " * 30)], "tokens; the pair reads at most 32"),
        ([user("")], "messages.0.content: "),
    ],
)
def test_a_chat_that_the_pair_cannot_read_is_refused(messages: list[Any], reason: str, client: TestClient) -> None:
    answer = client.post(CHAT_URL, json={"messages": messages})
    assert answer.status_code == 400 and reason in answer.json()["error"]["message"]


def test_a_pair_with_a_template_reads_all_messages(pair: DecodingPair) -> None:
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{m.content}} {% endfor %}{{raise_exception('no') if messages|length>2}}"
    text = dataclasses.replace(pair.manifest.text, chat_template=True)
    chat = dataclasses.replace(pair, tokenizer=tokenizer, manifest=dataclasses.replace(pair.manifest, text=text))
    words = [Message(role="system", content="red"), Message(role="user", content="blue")]
    assert encode_chat(chat, words) == [tokenizer("red blue ", add_special_tokens=False)["input_ids"]]
    with pytest.raises(RefusedError, match="the chat template does not take these messages: no"):
        encode_chat(chat, [*words, *words])
    with pytest.raises(RefusedError, match=r"the messages have \d+ tokens with the chat template; the pair reads at most 32"):
        encode_chat(chat, [Message(role="user", content="red " * 40)])


def test_a_stop_ends_a_text_and_is_left_out(client: TestClient, pair: DecodingPair) -> None:
    [offline] = pair.generate(SOURCES[0])
    stop = offline.text[len(offline.text) // 2 :][:3]
    expected = offline.text[: offline.text.find(stop)]
    asked = {"prompt": SOURCES[0], "stop": ["\n\n", stop]}
    [choice] = client.post(URL, json=asked).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    assert choice["draftline"]["large_calls"] < offline.counts.large_calls, "what follows a stop is not decoded"
    found = events(client.post(URL, json={**asked, "stream": True}).text)
    assert "".join(event["choices"][0]["text"] for event in found) == expected
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_full_queue_is_429(pair: DecodingPair) -> None:
    engine = HeldEngine()
    with client_of(pair, engine, max_queue=1) as client:
        first = threading.Thread(target=client.post, args=(URL,), kwargs={"json": {"prompt": "red"}})
        first.start()
        assert engine.entered.acquire(timeout=20)
        refused = client.post(URL, json={"prompt": ["blue", "red"]})
        engine.released.set()
        first.join()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "the queue is full" in refused.json()["error"]["message"]


def test_no_more_requests_await_encoding_than_texts_decoding(pair: DecodingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, refused = held_encoding(monkeypatch)
    app = app_of(pair, HeldEngine(), dataclasses.replace(LIMITS, max_queue=1))
    with TestClient(app) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, URL, json={"prompt": "red"})
        assert begun.wait(60)
        second = client.post(URL, json={"prompt": "blue"})
        refused.set()
        assert (first.result().status_code, second.status_code, second.headers["retry-after"]) == (400, 429, "1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "says"), [(RuntimeError("mat1"), "log says why"), (BrokenLogitsError("step 3"), "step 3")])
def test_a_failing_model_is_500_and_the_server_goes_on(
    stream: bool, error: Exception, says: str, pair: DecodingPair, caplog: pytest.LogCaptureFixture
) -> None:
    engine = HeldEngine()
    engine.released.set()

    def fail(_: object) -> None:
        engine.turn = None
        raise error

    with client_of(pair, engine) as client:
        engine.turn = fail
        answer = client.post(URL, json={"prompt": "red", "stream": stream})
        assert says in answer.text and "mat1" not in answer.text
        assert f"a batch could not be decoded: {type(error).__name__}: {error}" in caplog.text
        assert answer.status_code == (200 if stream else 500)
        assert client.post(URL, json={"prompt": "red"}).status_code == 200
        assert client.get("/health").json() == {"status": "ok"}


def test_health_ends_with_the_worker(pair: DecodingPair) -> None:
    client = client_of(pair, HeldEngine())  # not started
    assert client.get("/health").status_code == 503


def test_metrics_count_what_engines_count(pair: DecodingPair) -> None:
    with client_of(pair, PairEngine(pair), fixed=True) as client:
        facts = client.post(URL, json={"prompt": SOURCES[:2], "stream": False}).json()
        client.post(URL, json={"prompt": SOURCES[2], "stream": True})
        found = metrics_of(client)
    name = "draftline:spec_decode_num"
    offline = [one.counts for one in pair.generate(SOURCES[:3])]
    assert facts["usage"]["completion_tokens"] == sum(one.tokens for one in offline[:2])
    assert found["draftline:generation_tokens_total"] == sum(one.tokens for one in offline)
    assert found[f"{name}_draft_tokens_total"] == sum(one.drafted for one in offline)
    assert found[f"{name}_accepted_tokens_total"] == sum(one.accepted for one in offline)
    kept = [(kept, number) for one in offline for (_, kept), number in one.kept.items()]
    assert found[f"{name}_drafts_total"] == sum(number for _, number in kept)
    for position in range(3):
        expected = sum(number for length, number in kept if length > position)
        assert found.get(f"{name}_accepted_tokens_per_pos_total {position}", 0) == expected
    assert found["draftline:e2e_request_latency_seconds_count"] == 3
    assert found["draftline:time_to_first_token_seconds_count"] == 1


def as_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer of bytes: a character is whole with its last byte."""
    return bytes(tokens).decode("utf-8", errors="replace")


@given(
    st.text(max_size=20),
    st.lists(st.integers(1, 5), max_size=30),
    st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=2),
)
@example("xaby", [1, 1, 1, 1], ["aby", "b"])
def test_pieces_make_the_text_up_to_a_stop(text: str, steps: list[int], stops: list[str]) -> None:
    tokens, new, given_, end = list(text.encode()), NewText(as_bytes, stops), "", 0
    for step in steps:
        end = min(len(tokens), end + step)
        piece = new.of(tokens[:end])
        assert "\N{REPLACEMENT CHARACTER}" not in piece or "\N{REPLACEMENT CHARACTER}" in text
        given_ += piece
    whole = next((end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)), None)
    longest = max((len(stop) for stop in stops if text[:whole].endswith(stop)), default=0)
    assert given_ + new.rest(tokens) == (text if whole is None else text[: whole - longest])


def test_a_prompt_that_would_be_cut_is_refused(pair: DecodingPair) -> None:
    assert encode_prompts(pair, SOURCES[:3]) == pair.encode(SOURCES[:3])
    limit = pair.manifest.text.max_source_tokens
    text = "red"
    while len(pair.tokenizer(text)["input_ids"]) < limit:
        text += "r"
    assert len(encode_prompts(pair, [text])[0]) == limit
    with pytest.raises(RefusedError, match=f"a prompt has {limit + 1} tokens; the pair reads at most {limit}"):
        encode_prompts(pair, [SOURCES[0], text + "r"])
    with pytest.raises(RefusedError, match=f"a prompt has 1000000 characters; at most {64 * limit}"):
        encode_prompts(dataclasses.replace(pair, tokenizer=MagicMock(side_effect=AssertionError)), ["r" * 1_000_000])
