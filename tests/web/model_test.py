"""`heed serve MODEL`: OpenAI's interface over plain HTTP, and with OpenAI's own client where that is installed."""
import base64
import concurrent.futures
import json
import math
import os
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from models import golden, make_gpt2, make_llama, read_safetensors
from support import HEED, Serve

GREEDY = {"temperature": 0}


def events(server, path, body):
    """The server-sent events of a streamed answer, as JSON, without the last one."""
    status, headers, text = server.request("POST", path, json.dumps({**body, "stream": True}))
    assert status == 200, text
    assert headers["Content-Type"].startswith("text/event-stream"), headers
    parts = [part[len("data: "):] for part in text.decode().split("\n\n") if part]
    assert parts[-1] == "[DONE]", parts[-1]
    return [json.loads(part) for part in parts[:-1]]


def metrics(server):
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {line.split()[0]: int(line.split()[1]) for line in lines if not line.startswith("#")}


CHAT = """{% for message in messages %}{% if message['content'] == 'refuse me' %}{{ raise_exception('refused') }}{% endif %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


class WithoutTokenizer(unittest.TestCase):
    def test_greedy_tokens_are_those_of_transformers(self):
        for name in ("gpt2-scaled", "llama", "qwen3", "gemma2-softcap", "marian", "t5"):
            expected = read_safetensors(os.path.join(golden(name), "expected.safetensors"))
            want = list(expected["greedy"][1])
            tokens = expected["input_ids"][0][1]
            with Serve(golden(name)) as server:
                source = list(expected["input_ids"][1][:tokens])
                two_stacks = "decoder_input_ids" in expected
                start = 1 if two_stacks else tokens
                new = want[start:]
                if not two_stacks:
                    self.assertEqual(want[:tokens], source, name)
                answer = server.ask("/v1/completions", {"prompt": source, "max_tokens": len(new), **GREEDY})
                self.assertEqual(answer["choices"][0]["token_ids"], new, name)
                self.assertEqual(answer["choices"][0]["text"], "", name)

    def test_text_is_refused_clearly(self):
        with Serve(golden("gpt2")) as server:
            for path, body in (("/v1/completions", {"prompt": "hello"}), ("/v1/embeddings", {"input": ["hello"]}),
                               ("/v1/completions", {"prompt": [1], "stop": "x"})):
                self.assertIn("tokenizer.json", server.ask(path, body, expect=400)["error"]["message"])

    def test_an_encoder_makes_vectors_only(self):
        with Serve(golden("bert")) as server:
            answer = server.ask("/v1/embeddings", {"input": [[1, 2, 3], [4, 5]]})
            self.assertEqual([len(answer["data"]), answer["usage"]["prompt_tokens"]], [2, 5])
            self.assertIn("encoder", server.ask("/v1/completions", {"prompt": [1]}, expect=400)["error"]["message"])


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = make_gpt2(os.path.join(cls.folder.name, "tiny"), positions=4096)
        with open(os.path.join(cls.model, "chat_template.jinja"), "w") as file:
            file.write(CHAT)
        cls.server = Serve(cls.model, "--tokens", "16384", "--sequences", "8", "--queue", "8")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def complete(self, prompt="The river", **fields):
        return self.server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 12, **GREEDY, **fields})

    def wait_for(self, name, value):
        for _ in range(200):
            if metrics(self.server)[name] == value:
                return
            time.sleep(0.02)
        self.fail(f"{name} is {metrics(self.server)[name]}, not {value}")

    def test_models(self):
        data = json.loads(self.server.request("GET", "/v1/models")[2])["data"]
        self.assertEqual([model["id"] for model in data], ["tiny"])
        self.assertEqual(json.loads(self.server.request("GET", "/v1/models/tiny")[2]), data[0])
        self.assertEqual(self.server.request("GET", "/v1/models/other")[0], 404)
        self.assertIn("tiny", self.server.ask("/v1/completions", {"model": "other", "prompt": "x"}, expect=404)["error"]["message"])

    def test_a_completion(self):
        answer = self.complete(model="tiny")
        choice = answer["choices"][0]
        self.assertEqual((choice["finish_reason"], len(choice["token_ids"])), ("length", 12))
        self.assertTrue(choice["text"])
        self.assertEqual(answer["usage"]["total_tokens"], answer["usage"]["prompt_tokens"] + 12)
        self.assertEqual(self.complete()["choices"][0]["text"], choice["text"])

    def test_streamed_text_is_the_same_text(self):
        whole = self.complete()["choices"][0]
        parts = events(self.server, "/v1/completions", {"prompt": "The river", "max_tokens": 12, **GREEDY, "stream_options": {"include_usage": True}})
        self.assertEqual("".join(part["choices"][0]["text"] for part in parts[:-1]), whole["text"])
        self.assertEqual([id for part in parts[:-1] for id in part["choices"][0].get("token_ids", [])], whole["token_ids"])
        self.assertEqual(parts[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(parts[-1]["usage"]["completion_tokens"], 12)

    def test_stop_strings(self):
        text = self.complete()["choices"][0]["text"]
        for begin in range(2, len(text) - 3, 3):
            stop = text[begin:begin + 3]
            if "\ufffd" in stop:
                continue
            want = text[:text.find(stop)]
            choice = self.complete(stop=["never in there", stop])["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"]), (want, "stop"))
            parts = events(self.server, "/v1/completions", {"prompt": "The river", "max_tokens": 12, **GREEDY, "stop": stop})
            self.assertEqual("".join(part["choices"][0]["text"] for part in parts), want)

    def test_seeds(self):
        draw = lambda seed: self.complete(temperature=1.0, top_p=0.95, seed=seed)["choices"][0]["token_ids"]
        self.assertEqual(draw(7), draw(7))
        self.assertGreater(len({tuple(draw(seed)) for seed in range(5)}), 1)

    def test_logprobs(self):
        scores = self.complete(logprobs=3)["choices"][0]["logprobs"]
        self.assertEqual(len(scores["tokens"]), 12)
        for own, best in zip(scores["token_logprobs"], scores["top_logprobs"]):
            self.assertAlmostEqual(own, max(best.values()), places=12)
            self.assertEqual(len(best), 3)
        # All of them together are a distribution: asked for one by one they sum to less than 1.
        self.assertLess(sum(math.exp(x) for x in scores["top_logprobs"][0].values()), 1)
        chat = self.server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": True, "top_logprobs": 2, **GREEDY})
        content = chat["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(content), len(content[0]["top_logprobs"])], [2, 2])
        for one in content:
            spelled = bytes(one["bytes"]).decode("utf-8", "backslashreplace")
            self.assertIn(one["token"], (spelled, "bytes:" + spelled, "bytes:" + "".join(f"\\x{byte:02x}" for byte in one["bytes"])))

    def test_logprobs_are_the_golden_logits(self):
        expected = read_safetensors(os.path.join(golden("gpt2-scaled"), "expected.safetensors"))
        (_, tokens, vocab), logits = expected["logits"]
        row = logits[(tokens - 1) * vocab:tokens * vocab]
        base = math.log(sum(math.exp(x) for x in row))
        with Serve(golden("gpt2-scaled")) as server:
            answer = server.ask("/v1/completions", {"prompt": list(expected["input_ids"][1][:tokens]), "max_tokens": 1, "logprobs": 5, **GREEDY})
        best = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        for token, score in best.items():
            self.assertAlmostEqual(score, row[int(token.split(":")[1])] - base, places=4)

    def test_chat(self):
        body = {"messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 5, **GREEDY}
        whole = self.server.ask("/v1/chat/completions", body)["choices"][0]
        self.assertEqual((whole["message"]["role"], whole["finish_reason"]), ("assistant", "length"))
        text = self.complete("system: Short.\nuser: Hi\nassistant:", max_tokens=5)["choices"][0]["text"]
        self.assertEqual(whole["message"]["content"], text)
        parts = events(self.server, "/v1/chat/completions", body)
        self.assertEqual(parts[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(part["choices"][0]["delta"].get("content", "") for part in parts), text)
        self.assertIn("template", self.server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "refuse me"}]}, expect=400)["error"]["message"])
        with tempfile.TemporaryDirectory() as folder:
            other = make_gpt2(os.path.join(folder, "other"))
            with Serve(other) as server:
                self.assertIn("chat_template.jinja", server.ask("/v1/chat/completions", body, expect=400)["error"]["message"])
            with open(os.path.join(other, "chat_template.jinja"), "w") as file:
                file.write("{% for x in %}")
            with Serve(other) as server:
                self.assertIn("[ChatTemplate]", server.ask("/v1/chat/completions", body, expect=400)["error"]["message"])
                self.assertEqual(server.request("GET", "/v1/models")[0], 200)

    def test_special_tokens_in_messages_are_letters(self):
        ask = lambda text: self.server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **GREEDY})["usage"]["prompt_tokens"]
        self.assertGreater(ask("<|endoftext|>") - ask(""), 1)

    def test_several_prompts(self):
        one = [self.complete(text)["choices"][0]["token_ids"] for text in ("The river", "A tree", "One")]
        both = self.complete(["The river", "A tree", "One"])["choices"]
        self.assertEqual([choice["token_ids"] for choice in both], one)
        self.assertEqual([choice["index"] for choice in both], [0, 1, 2])

    def test_several_choices(self):
        answer = self.complete(n=3, temperature=1.0, seed=5)
        drawn = [tuple(choice["token_ids"]) for choice in answer["choices"]]
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2])
        self.assertEqual(len(set(drawn)), 3)
        self.assertEqual(drawn, [tuple(choice["token_ids"]) for choice in self.complete(n=3, temperature=1.0, seed=5)["choices"]])
        self.assertEqual(drawn[0], tuple(self.complete(temperature=1.0, seed=5)["choices"][0]["token_ids"]))
        self.assertEqual([answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")], [self.complete()["usage"]["prompt_tokens"], 36])
        both = self.complete(["The river", "A tree"], n=2)["choices"]
        self.assertEqual([both[0]["text"], both[2]["text"]], [both[1]["text"], both[3]["text"]])
        self.assertNotEqual(both[0]["text"], both[2]["text"])
        chat = self.server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "n": 2, **GREEDY})
        self.assertEqual(len(chat["choices"]), 2)

    def test_echo(self):
        """The prompt stands before the text; its scores are those that each token has behind the ones before it."""
        made = self.complete(max_tokens=4)["choices"][0]
        whole = self.complete(max_tokens=4, echo=True, logprobs=2)["choices"][0]
        self.assertEqual(whole["text"], "The river" + made["text"])
        self.assertEqual(whole["token_ids"], made["token_ids"])
        scores = whole["logprobs"]
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertIsNone(scores["top_logprobs"][0])
        prompt = len(scores["tokens"]) - 4
        self.assertEqual("".join(scores["tokens"][:prompt]), "The river")
        self.assertEqual(scores["text_offset"][prompt], len("The river"))
        scored = self.complete(max_tokens=0, echo=True, logprobs=2)["choices"][0]
        self.assertEqual((scored["text"], scored["finish_reason"], scored["token_ids"]), ("The river", "length", []))
        self.assertEqual(scored["logprobs"]["token_logprobs"], scores["token_logprobs"][:prompt])
        # The last token of the prompt, as a completion of what stands before it.
        ids = [3, 5, 7, 11]
        echoed = self.complete(ids, max_tokens=0, echo=True, logprobs=20)["choices"][0]["logprobs"]
        best = self.complete(ids[:3], max_tokens=1, logprobs=20)["choices"][0]["logprobs"]["top_logprobs"][0]
        for token, score in echoed["top_logprobs"][3].items():
            self.assertAlmostEqual(score, best[token], places=4)
        parts = events(self.server, "/v1/completions", {"prompt": "The river", "max_tokens": 4, "echo": True, "logprobs": 2, **GREEDY})
        self.assertEqual("".join(part["choices"][0]["text"] for part in parts), whole["text"])
        self.assertEqual([x for part in parts for x in (part["choices"][0]["logprobs"] or {}).get("text_offset", [])], scores["text_offset"])
        self.assertIn("echo", self.server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "echo": True}, expect=400)["error"]["message"])
        self.assertIn("max_tokens", self.server.ask("/v1/completions", {"prompt": "x", "max_tokens": 0}, expect=400)["error"]["message"])

    def test_embeddings_of_another_size_are_refused(self):
        message = self.server.ask("/v1/embeddings", {"input": "x", "dimensions": 8}, expect=400)["error"]["message"]
        self.assertEqual(message, "dimensions: expected 24, got 8")

    def test_embeddings(self):
        answer = self.server.ask("/v1/embeddings", {"input": ["The river", "A tree"]})
        vectors = [entry["embedding"] for entry in answer["data"]]
        for vector in vectors:
            self.assertAlmostEqual(math.fsum(x * x for x in vector), 1, places=5)
        packed = self.server.ask("/v1/embeddings", {"input": "The river", "encoding_format": "base64"})["data"][0]["embedding"]
        self.assertEqual(list(struct.unpack(f"<{len(vectors[0])}f", base64.b64decode(packed))),
                         [struct.unpack("<f", struct.pack("<f", x))[0] for x in vectors[0]])

    def test_bad_requests_name_the_field(self):
        for body, word in (({}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [900]}, "prompt"), ({"prompt": [1, "x"]}, "prompt"),
                           ({"prompt": "x", "max_tokens": 0}, "max_tokens"), ({"prompt": "x", "max_tokens": 100000}, "max_tokens"),
                           ({"prompt": "x", "temperature": -1}, "temperature"), ({"prompt": "x", "top_p": 2}, "top_p"),
                           ({"prompt": "x", "n": 17}, "n:"), ({"prompt": "x", "n": 2, "best_of": 3}, "best_of"), ({"prompt": "x", "echo": 1}, "echo"),
                           ({"prompt": "x", "stop": [1]}, "stop"), ({"prompt": "x", "stop": ""}, "stop"),
                           ({"prompt": "x", "logprobs": 99}, "logprobs"), ({"prompt": "x", "logit_bias": {"1": 2}}, "logit_bias"),
                           ({"prompt": ["x"] * 65}, "prompt")):
            self.assertIn(word, self.server.ask("/v1/completions", body, expect=400)["error"]["message"])
        for body in ({}, {"messages": "x"}, {"messages": [{"role": "king", "content": "x"}]}, {"messages": [{"role": "user", "content": 3}]}):
            self.assertIn("messages", self.server.ask("/v1/chat/completions", body, expect=400)["error"]["message"])

    def test_neighbours_change_nothing(self):
        alone = self.complete()["choices"][0]["token_ids"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda n: self.complete() if n % 2 else self.complete("Once there was", max_tokens=30), range(8)))
        for answer in together[1::2]:
            self.assertEqual(answer["choices"][0]["token_ids"], alone)

    def test_a_client_that_goes_frees_its_pages(self):
        pages = metrics(self.server)["heed_pages"]
        before = metrics(self.server)["heed_texts_cancelled_total"]
        for stream in (True, False):
            body = json.dumps({"prompt": ["The river", "A tree", "One", "Two"], "max_tokens": 3900, "ignore_eos": True, "stream": stream, **GREEDY})
            with socket.create_connection((self.server.host, self.server.port)) as connection:
                connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {self.server.host}:{self.server.port}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                self.wait_for("heed_texts_running", 4)
            gone = time.monotonic()
            self.wait_for("heed_texts_running", 0)
            self.wait_for("heed_pages_free", pages)
            self.assertLess(time.monotonic() - gone, 2)
        self.assertEqual(metrics(self.server)["heed_texts_cancelled_total"], before + 8)

    def test_a_full_queue_says_so(self):
        body = {"prompt": ["The river"] * 17, "max_tokens": 5}
        self.assertEqual(self.server.ask("/v1/completions", body, expect=429)["error"]["type"], "server_busy")
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            codes = list(pool.map(lambda n: self.server.request("POST", "/v1/completions", json.dumps({"prompt": f"{n} river", "max_tokens": 100, "ignore_eos": True, **GREEDY}))[0], range(40)))
        self.assertEqual(set(codes) - {200, 429}, set())
        self.assertGreaterEqual(codes.count(200), 16)
        self.wait_for("heed_pages_free", metrics(self.server)["heed_pages"])

    def test_with_openais_own_client(self):
        try:
            import openai
        except ImportError:
            print("skipped: the Python package openai is not installed, so its client is not tried", flush=True)
            self.skipTest("no openai")
        client = openai.OpenAI(base_url=self.server.address + "/v1", api_key="none")
        model = client.models.list().data[0].id
        text = self.complete()["choices"][0]["text"]
        answer = client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, logprobs=2)
        self.assertEqual(answer.choices[0].text, text)
        self.assertEqual(len(answer.choices[0].logprobs.token_logprobs), 12)
        parts = client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, stream=True)
        self.assertEqual("".join(part.choices[0].text for part in parts), text)
        stop = text[3:6]
        self.assertEqual(client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, stop=stop).choices[0].text, text[:text.find(stop)])
        messages = [{"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(model=model, messages=messages, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
        self.assertEqual(len(chat.choices[0].logprobs.content), 6)
        parts = client.chat.completions.create(model=model, messages=messages, max_tokens=6, temperature=0, stream=True)
        self.assertEqual("".join(part.choices[0].delta.content or "" for part in parts), chat.choices[0].message.content)
        self.assertEqual(len(client.embeddings.create(model=model, input="The river").data[0].embedding), 24)
        self.assertEqual(client.models.retrieve(model).id, model)
        self.assertEqual(len(client.completions.create(model=model, prompt="The river", n=2, max_tokens=2, seed=1).choices), 2)
        echoed = client.completions.create(model=model, prompt="The river", max_tokens=0, echo=True, logprobs=1)
        self.assertEqual((echoed.choices[0].text, echoed.choices[0].logprobs.token_logprobs[0]), ("The river", None))
        with self.assertRaises(openai.BadRequestError) as refused:
            client.completions.create(model=model, prompt="x", temperature=-1)
        self.assertEqual(refused.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")


def ask_and_leave(server, path, body, until):
    """Sends a request, waits until `until` says that it is worked on, and goes away."""
    text = json.dumps(body)
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        until()


class LongTexts(unittest.TestCase):
    """A pass over a long text ends with its client, not with the text."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # Dynamic scaling: a prompt is one step, however long.
        model = make_llama(os.path.join(cls.folder.name, "long"), d=64, max_position_embeddings=64, rope_scaling={"type": "dynamic", "factor": 2.0})
        cls.server = Serve(model, "--tokens", "40000")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    @staticmethod
    def seconds(action):
        begin = time.monotonic()
        action()
        return time.monotonic() - begin

    def ids(self, seed):
        return [(n * n + n // 7 + seed) % 60 + 1 for n in range(14000)]

    def test_a_prompt(self):
        whole = self.seconds(lambda: self.server.ask("/v1/completions", {"prompt": self.ids(0), "max_tokens": 1, **GREEDY}))
        ask_and_leave(self.server, "/v1/completions", {"prompt": self.ids(1), "max_tokens": 1, **GREEDY}, lambda: time.sleep(whole / 8))
        left = self.seconds(lambda: self.wait_for("heed_texts_cancelled_total", 1))
        self.assertLess(left, whole / 2)
        now = metrics(self.server)
        self.assertEqual((now["heed_texts_running"], now["heed_pages_free"]), (0, now["heed_pages"]))
        again = self.server.ask("/v1/completions", {"prompt": self.ids(0)[:50], "max_tokens": 3, **GREEDY})
        self.assertEqual(len(again["choices"][0]["token_ids"]), 3)

    def wait_for(self, name, value):
        for _ in range(6000):
            if metrics(self.server)[name] == value:
                return
            time.sleep(0.01)
        self.fail(f"{name} is {metrics(self.server)[name]}, not {value}")

    def test_a_look(self):
        whole = self.server.ask("/api/look", {"ids": self.ids(0)})["seconds"]["forward"]
        answered = []

        def meanwhile():
            """Others are answered while it computes, also those who ask what the server keeps."""
            time.sleep(whole / 8)
            answered.append(self.seconds(lambda: [self.server.request("GET", path) for path in ("/metrics", "/") for _ in range(5)]))

        ask_and_leave(self.server, "/api/look", {"ids": self.ids(1)}, meanwhile)
        self.assertLess(answered[0], whole / 2)
        left = self.seconds(lambda: self.server.ask("/api/look", {"ids": [1, 2, 3]}))
        self.assertLess(left, whole / 2)
        self.assertEqual(metrics(self.server)["heed_look_texts"], 2)


class Runs(unittest.TestCase):
    def test_what_heed_train_made(self):
        """A run's folder is a model: its best one, under the run's name, with the letters that it was trained on."""
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text.txt")
            with open(text, "w") as file:
                file.write("the river and the tree\n" * 200)
            for name, data in (("letters", ["--task", "copy"]), ("bytes", ["--text", text])):
                run = os.path.join(folder, name)
                subprocess.run([HEED, "train", *data, "--out", run, "--steps", "2", "--d-model", "16", "--layers", "1", "--heads", "2", "--batch", "2", "--tokens", "32", "--quiet"],
                               check=True, stdout=subprocess.DEVNULL)
                for given in (run, os.path.join(run, "best")):
                    with Serve(given) as server:
                        called = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"]
                        self.assertIn(called, (name,) if given == run else (name, "best"))
                        answer = server.ask("/api/look", {"prompt": "tree"})
                        self.assertIn("tree", "".join(answer["texts"]))
                        self.assertEqual(answer["ids"] == list(b"tree"), name == "bytes")


if __name__ == "__main__":
    unittest.main()
