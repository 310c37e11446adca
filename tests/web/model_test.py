"""`heed serve MODEL`: OpenAI's interface over plain HTTP, and with OpenAI's own client where that is installed."""
import base64
import concurrent.futures
import json
import math
import os
import socket
import struct
import tempfile
import time
import unittest

from models import golden, make_gpt2, read_safetensors
from support import Serve

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
                           ({"prompt": "x", "n": 2}, "n:"), ({"prompt": "x", "stop": [1]}, "stop"), ({"prompt": "x", "stop": ""}, "stop"),
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
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model=model, prompt="x", temperature=-1)


if __name__ == "__main__":
    unittest.main()
