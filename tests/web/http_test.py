"""The server over plain HTTP: answers that are right, refusals that are clear, and no input that hurts it."""
import concurrent.futures
import json
import math
import os
import random
import socket
import time
import unittest

from support import Serve


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_the_page_and_its_files(self):
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn(b"heed", body)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        page = os.path.join(os.environ["HEED_SOURCE_DIR"], "apps", "web", "page")
        for name in os.listdir(page):
            status, _, body = self.server.request("GET", "/" + name)
            self.assertEqual(status, 200, name)
            with open(os.path.join(page, name), "rb") as file:
                self.assertEqual(body, file.read(), name)
        self.assertEqual(self.server.request("HEAD", "/")[2], b"")
        self.assertEqual(json.loads(self.server.request("GET", "/health")[2]), {"status": "ok"})

    def test_no_file_of_the_machine(self):
        for path in ("/../etc/passwd", "/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/etc/passwd",
                     "/page/index.html", "/index.html%00.js", "/%", "/%zz"):
            self.assertIn(self.server.request("GET", path)[0], (400, 404), path)

    def test_the_worked_example_adds_up(self):
        answer = self.server.ask("/api/walkthrough", {"example": "random", "tokens": 5, "d_model": 8, "heads": 4,
                                                      "kv_heads": 2, "causal": True, "seed": 3})
        steps = {step["name"]: step["values"] for step in answer["steps"]}
        for h in range(4):
            for i in range(5):
                scores = []
                for j in range(5):
                    score = sum(a * b for a, b in zip(steps["query_heads"][h][i], steps["key_heads"][h // 2][j]))
                    self.assertAlmostEqual(score, steps["scores"][h][i][j], places=12)
                    scores.append(score * answer["scale"])
                total = sum(math.exp(s) for s in scores[:i + 1])
                for j in range(5):
                    expected = math.exp(scores[j]) / total if j <= i else 0
                    self.assertAlmostEqual(steps["weights"][h][i][j], expected, places=12)
        self.assertLess(answer["largest_difference"], 1e-6)

    def test_other_lessons(self):
        answer = self.server.ask("/api/pattern", {"text": "causal & window(2, 0)", "tokens": 6, "length": 1024})
        self.assertEqual(answer["rows"][4], "001110")
        self.assertEqual(answer["blocks"], {"none": 49, "some": 15, "all": 0})
        rope = self.server.ask("/api/rope", {"pairs": 4, "scaling": "linear", "factor": 4})
        for plain, scaled in zip(rope["plain"], rope["frequencies"]):
            self.assertAlmostEqual(scaled, plain / 4)
        kinds = {kind["kind"]: kind for kind in self.server.ask("/api/kinds", {"model": "llama-3-8b"})["kinds"]}
        self.assertEqual(kinds["GQA"]["bytes_per_token"], 32 * 8 * 2 * 128 * 2)
        self.assertEqual(kinds["MHA"]["bytes_per_token"], 4 * kinds["GQA"]["bytes_per_token"])
        steps = self.server.ask("/api/linear", {"tokens": 3, "size": 2})["steps"]
        phi = [x + 1 if x > 0 else math.exp(x) for x in steps[0]["k"]]
        self.assertAlmostEqual(steps[0]["s"][0][1], phi[0] * steps[0]["v"][1])
        infini = self.server.ask("/api/infini", {"tokens": 9, "segment": 4})["steps"]
        self.assertEqual(infini[-1]["segments"], 2)
        self.assertAlmostEqual(infini[4]["z"][0], sum(x + 1 if x > 0 else math.exp(x) for x in (step["k"][0] for step in infini[:4])))
        self.assertEqual(self.server.ask("/api/alibi", {"heads": 8})["slopes"][0], 0.5)

    def test_sizes(self):
        answer = self.server.ask("/api/sizes", {"model": "llama-3-8b", "tokens": 8192, "texts": 2, "bytes": 2})
        self.assertEqual(answer["parameters"]["total"], 8030261248)
        self.assertEqual(answer["weight_bytes"], 2 * 8030261248)
        self.assertEqual(answer["cache_bytes"], 2 * 8192 * 32 * 8 * 2 * 128 * 2)
        flops = answer["flops"]
        self.assertEqual(sum(flops[name] for name in ("projections", "scores", "ffn", "head")), flops["total"])
        self.assertIn("bert-base", " ".join(answer["models"]))
        self.assertIn("bytes", self.server.ask("/api/sizes", {"bytes": 8}, expect=400)["error"]["message"])

    def test_errors_have_openais_shape(self):
        error = self.server.ask("/api/linear", {"decay": 2}, expect=400)["error"]
        self.assertEqual((error["type"], error["param"], error["code"]), ("invalid_request_error", "decay", 400))
        self.assertIsNone(json.loads(self.server.request("GET", "/nowhere")[2])["error"]["param"])

    def test_bad_fields_are_named(self):
        for path, body, word in (("/api/walkthrough", {"tokens": 99}, "tokens"), ("/api/walkthrough", {"heads": "x"}, "heads"),
                                 ("/api/walkthrough", {"example": "random", "heads": 3}, "heads"),
                                 ("/api/pattern", {"text": "caused"}, "caused"), ("/api/rope", {"scaling": "x"}, "scaling"),
                                 ("/api/kinds", {"model": "nope"}, "nope"), ("/api/linear", {"decay": 2}, "decay"),
                                 ("/api/infini", {"segment": 0}, "segment"), ("/api/pattern", [], "object"),
                                 ("/api/walkthrough", {"seed": 18446744073709551615}, "seed")):
            message = self.server.ask(path, body, expect=400)["error"]["message"]
            self.assertIn(word, message)
        status, _, text = self.server.request("POST", "/api/pattern", "{")
        self.assertEqual((status, "body" in json.loads(text)["error"]["message"]), (400, True))
        self.assertEqual(self.server.request("POST", "/api/pattern", "[" * 100000)[0], 400)
        self.assertEqual(self.server.request("GET", "/api/pattern")[0], 405)
        self.assertEqual(self.server.request("POST", "/nowhere")[0], 404)

    def test_other_hosts_and_origins_are_refused(self):
        for host in ("evil.example", "evil.example:%d" % self.server.port, "127.0.0.1:1", "", "localhost.evil.example"):
            self.assertEqual(self.server.request("GET", "/health", headers={"Host": host})[0], 403, host)
        for origin, status in (("http://evil.example", 403), ("null", 403), (self.server.address, 200)):
            self.assertEqual(self.server.request("GET", "/health", headers={"Origin": origin})[0], status, origin)

    def test_limits(self):
        self.assertEqual(self.server.request("POST", "/api/pattern", "x" * (5 << 20))[0], 413)
        self.assertIn(self.server.request("GET", "/health", headers={"X": "y" * 40000})[0], (400, 431))

    def raw(self, data, wait=2):
        with socket.create_connection((self.server.host, self.server.port), timeout=wait) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(200)
            except (TimeoutError, ConnectionError):
                return b""

    def test_broken_requests(self):
        dice = random.Random(7)
        start = b"POST /api/pattern HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 2\r\n\r\n{}" % self.server.port
        for count in range(400):
            data = bytearray(start)
            for _ in range(dice.randint(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if count % 5 == 0:
                data = data[:dice.randrange(len(data))]
            self.raw(bytes(data), wait=1)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_many_clients_and_slow_ones(self):
        slow = [socket.create_connection((self.server.host, self.server.port)) for _ in range(200)]
        try:
            for connection in slow:
                connection.sendall(b"GET / HTTP/1.1\r\nHo")
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                codes = list(pool.map(lambda _: self.server.request("GET", "/health")[0], range(600)))
        finally:
            for connection in slow:
                connection.close()
        self.assertEqual(set(codes) - {200, 429}, set())
        self.assertGreater(codes.count(200), 400)
        for _ in range(50):
            lines = self.server.request("GET", "/metrics")[2].decode().splitlines()
            if int(next(line for line in lines if line.startswith("heed_http_connections ")).split()[1]) <= 2:
                break
            time.sleep(0.1)
        else:
            self.fail("connections stay open after their clients have gone")


class Token(unittest.TestCase):
    def test_a_token_guards_everything_but_the_page(self):
        with Serve("--token") as server:
            self.assertEqual(server.request("GET", "/")[0], 200)
            self.assertEqual(server.request("GET", "/metrics")[0], 401)
            self.assertEqual(server.request("POST", "/api/alibi", "{}")[0], 401)
            for token, status in ((server.token, 200), (server.token[:-1], 401), (server.token + "0", 401), ("", 401)):
                headers = {"Authorization": "Bearer " + token}
                self.assertEqual(server.request("POST", "/api/alibi", "{}", headers)[0], status)
            self.assertEqual(server.request("GET", "/metrics?token=" + server.token)[0], 200)

    def test_beyond_this_machine_there_is_always_one(self):
        with Serve("--host", "0.0.0.0") as server:
            self.assertTrue(server.token)


if __name__ == "__main__":
    unittest.main()
