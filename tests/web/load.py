"""Many clients at once, polite and otherwise: does the server keep answering, alike, and give back what it took?

    make load, or
    python3 tests/web/load.py --clients 1000 --seconds 60 --fuzz 100000        (HEED: the program; HEED_SOURCE_DIR: the repository)

Clients ask for pages, lessons and texts; some read slowly, some go away in the middle, some send bodies that are too
long, hosts that are not ours, or what is no HTTP at all. Every text of the greedy prompt must come out as it does alone.
At the end nothing may be left: no text, no connection, every page of the cache free, and memory as it was.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import resource
import sys
import tempfile
import time

from models import make_gpt2
from support import Serve

PROMPT = {"prompt": "The river and the", "max_tokens": 6, "temperature": 0}


class Failure(Exception):
    pass


def rss_mebibytes(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024


def metrics(server):
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def request_bytes(server, method, path, body=b"", host=None, extra=""):
    head = f"{method} {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{server.port}'}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


async def read_response(reader):
    """Status and body, whether of known length or chunked."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    low = head.lower()
    if b"transfer-encoding: chunked" in low:
        parts = []
        while True:
            size = int(await reader.readline(), 16)
            part = await reader.readexactly(size + 2)
            if size == 0:
                return status, b"".join(parts)
            parts.append(part[:-2])
    length = low.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0] if b"content-length:" in low else b"0"
    return status, await reader.readexactly(int(length))


class Load:
    def __init__(self, server, seed):
        self.server, self.dice = server, random.Random(seed)
        self.expected = server.ask("/v1/completions", PROMPT)["choices"][0]["text"]
        self.counts = collections.Counter()

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.server.port)

    def note(self, kind, status, allowed):
        self.counts[f"{kind} {status}"] += 1
        if status not in allowed:
            raise Failure(f"{kind}: expected one of {allowed}, got {status}")

    async def ordinary(self, kind, method, path, body=b""):
        reader, writer = await self.connect()
        try:
            for _ in range(self.dice.randint(1, 4)):  # several on one connection
                writer.write(request_bytes(self.server, method, path, body))
                status, _ = await read_response(reader)
                self.note(kind, status, (200, 429))
        finally:
            writer.close()

    async def text(self, stream):
        reader, writer = await self.connect()
        try:
            writer.write(request_bytes(self.server, "POST", "/v1/completions", json.dumps({**PROMPT, "stream": stream}).encode()))
            status, body = await read_response(reader)
            self.note("stream" if stream else "text", status, (200, 429))
            if status != 200:
                return
            if stream:
                events = [part[6:] for part in body.decode().split("\n\n") if part.startswith("data: ")]
                got = "".join(choice["text"] for event in events if event != "[DONE]" for choice in json.loads(event)["choices"])
            else:
                got = json.loads(body)["choices"][0]["text"]
            if got != self.expected:
                raise Failure(f"a text differs among neighbours: {got!r}, not {self.expected!r}")
        finally:
            writer.close()

    async def slow_reader(self):
        reader, writer = await self.connect()
        try:
            writer.write(request_bytes(self.server, "POST", "/v1/completions", json.dumps({**PROMPT, "max_tokens": 40, "stream": True}).encode()))
            for _ in range(60):
                if not await reader.read(64):
                    break
                await asyncio.sleep(0.02)
            self.counts["slow reader"] += 1
        finally:
            writer.close()

    async def vanishing(self):
        reader, writer = await self.connect()
        body = json.dumps({**PROMPT, "max_tokens": 200, "stream": self.dice.random() < 0.5}).encode()
        whole = request_bytes(self.server, "POST", "/v1/completions", body)
        writer.write(whole[: self.dice.randint(1, len(whole))] if self.dice.random() < 0.3 else whole)
        await asyncio.sleep(self.dice.random() * 0.2)
        writer.transport.abort()
        self.counts["vanished"] += 1

    async def too_long(self):
        reader, writer = await self.connect()
        try:
            writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\nContent-Length: {1 << 30}\r\n\r\n".encode() + b"x" * 1000)
            status, _ = await read_response(reader)
            self.note("too long", status, (413,))
        finally:
            writer.close()

    async def wrong_host(self):
        reader, writer = await self.connect()
        try:
            writer.write(request_bytes(self.server, "GET", "/", host="evil.example"))
            status, _ = await read_response(reader)
            self.note("wrong host", status, (403, 429))
        finally:
            writer.close()

    def broken_bytes(self):
        """Valid requests with bytes changed, cut or repeated; JSON with fields of any kind."""
        dice = self.dice
        if dice.random() < 0.5:
            field = dice.choice(["prompt", "ids", "text", "max_tokens", "temperature", "messages", "model", "off", "step", "heads", "stop", "seed", "n", "echo", "logprobs", "bytes"])
            value = dice.choice([None, True, -1, 1e300, 2**63, "", "x" * dice.randint(0, 300), [], [[]], {}, {"a": []}, [-1], [99999], ["self", 0, 0], "\ud800"])
            path = dice.choice(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/api/look", "/api/look/map", "/api/look/cell", "/api/look/lens", "/api/walkthrough", "/api/pattern", "/api/rope", "/api/kinds", "/api/sizes", "/api/linear", "/api/infini"])
            return request_bytes(self.server, "POST", path, json.dumps({field: value, "max_tokens": 1}).encode(), extra="Connection: close\r\n")
        data = bytearray(request_bytes(self.server, dice.choice(["GET", "POST", "PUT", "HEAD"]), dice.choice(["/", "/api/alibi", "/v1/models", "/health", "/../etc/passwd"]), b'{"heads": 4}'))
        for _ in range(dice.randint(1, 8)):
            at = dice.randrange(len(data))
            data[at:at + dice.choice([0, 1, 1, 4])] = bytes(dice.randrange(256) for _ in range(dice.choice([0, 1, 1, 3])))
            if not data:
                data = bytearray(b"\r\n")
        return bytes(data[: dice.randint(1, len(data))] if dice.random() < 0.2 else data)

    async def broken(self):
        reader, writer = await self.connect()
        try:
            writer.write(self.broken_bytes())
            writer.write_eof()
            head = await asyncio.wait_for(reader.read(400), 30)
            status = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
            self.counts[f"broken {status}"] += 1
            if status >= 500:
                raise Failure(f"broken request: {head[:300]!r}")
        except (ConnectionError, asyncio.TimeoutError) as error:
            self.counts[f"broken {type(error).__name__}"] += 1
        finally:
            writer.close()

    async def client(self, end):
        kinds = [(30, lambda: self.ordinary("health", "GET", "/health")), (15, lambda: self.ordinary("page", "GET", "/")), (10, lambda: self.ordinary("lesson", "POST", "/api/alibi", b'{"heads": 8}')),
                 (15, lambda: self.text(False)), (10, lambda: self.text(True)), (4, self.slow_reader), (6, self.vanishing), (3, self.too_long), (3, self.wrong_host), (4, self.broken)]
        while time.monotonic() < end:
            action = self.dice.choices([k[1] for k in kinds], [k[0] for k in kinds])[0]
            try:
                await action()
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self.counts[f"connection {type(error).__name__}"] += 1
            await asyncio.sleep(self.dice.random() * 0.05)

    async def clients(self, count, seconds):
        end = time.monotonic() + seconds
        await asyncio.gather(*(self.client(end) for _ in range(count)))

    async def fuzz(self, count):
        left = iter(range(count))

        async def worker():
            for _ in left:
                await self.broken()
        await asyncio.gather(*(worker() for _ in range(32)))

    def wait_until_quiet(self):
        names = ("heed_texts_running", "heed_texts_waiting", "heed_http_streams")
        for _ in range(600):
            now = metrics(self.server)
            if all(now[name] == 0 for name in names) and now["heed_http_connections"] <= 1 and now["heed_pages_free"] == now["heed_pages"]:
                return now
            time.sleep(0.1)
        raise Failure(f"something is left: { {name: now[name] for name in (*names, 'heed_http_connections', 'heed_pages', 'heed_pages_free')} }")


def run(clients, seconds, fuzz, seed=1, most_growth=64):
    """What came of it, as lines; Failure where something went wrong."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 65536), limit))
    lines = []
    with tempfile.TemporaryDirectory() as folder, Serve(make_gpt2(os.path.join(folder, "tiny")), "--tokens", "8192", "--sequences", "16", "--queue", "64") as server:
        load = Load(server, seed)
        asyncio.run(load.clients(min(clients, 50), 2))
        load.wait_until_quiet()
        before = rss_mebibytes(server)
        load.counts.clear()
        begin = time.monotonic()
        asyncio.run(load.clients(clients, seconds))
        took = time.monotonic() - begin
        after = rss_mebibytes(server)
        now = load.wait_until_quiet()
        lines.append(f"{clients} clients, {took:.0f} s: {sum(load.counts.values())} actions, {dict(sorted(load.counts.items()))}")
        lines.append(f"texts finished {now['heed_texts_finished_total']:.0f}, cancelled {now['heed_texts_cancelled_total']:.0f}, refused {now['heed_texts_refused_total']:.0f}; pages free {now['heed_pages_free']:.0f} of {now['heed_pages']:.0f}")
        load.counts.clear()
        begin = time.monotonic()
        asyncio.run(load.fuzz(fuzz))
        now = load.wait_until_quiet()
        lines.append(f"{fuzz} broken requests, {time.monotonic() - begin:.0f} s: {dict(sorted(load.counts.items()))}")
        if load.server.ask("/v1/completions", PROMPT)["choices"][0]["text"] != load.expected:
            raise Failure("the text differs behind all this")
        last = rss_mebibytes(server)
        lines.append(f"memory: {before:.0f} MiB at first, {after:.0f} after the clients, {last:.0f} at the end")
        if last - before > most_growth:
            raise Failure(f"memory grew from {before:.0f} to {last:.0f} MiB")
        if server.stop() != 0:
            raise Failure("the server did not end well")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--fuzz", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        print("\n".join(run(arguments.clients, arguments.seconds, arguments.fuzz, arguments.seed)))
    except Failure as failure:
        sys.exit(f"failed: {failure}")
