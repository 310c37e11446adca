"""A text of 32,768 tokens looked at, with a watch in the hand.

    python3 tests/web/long_text.py [--tokens 32768] [--size 64] [--page]    (HEED: the program; HEED_SOURCE_DIR: the repository)

Prints the seconds of the forward pass, of the overview of all heads, of the first map of a head and of each step nearer
down to single weights, and the server's memory. Ends with an error where a bar is missed: 2 s for the first map, 0.3 s
for a step. --page does the same in a browser, and says what the page keeps.
"""
import argparse
import os
import sys
import tempfile
import time

from browser import Browser, missing
from load import metrics, rss_mebibytes
from models import make_llama
from support import Serve


def processor_seconds(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Seconds that passed, and those that the server computed: more tell of work, fewer of a machine that does something else."""

    def __init__(self, server):
        self.server = server

    def __call__(self, action):
        begin, computed = time.monotonic(), processor_seconds(self.server)
        result = action()
        self.computed = processor_seconds(self.server) - computed
        return result, time.monotonic() - begin


def in_a_browser(server, ids):
    """The same text on the page: from the link to the map of a head, each step nearer, and the page's memory."""
    browser = Browser()
    try:
        heap = lambda: {m["name"]: m["value"] for m in browser.call("POST", browser.session + "/goog/cdp/execute", {"cmd": "Performance.getMetrics", "params": {}})["metrics"]}["JSHeapUsedSize"] / 2**20
        browser.call("POST", browser.session + "/goog/cdp/execute", {"cmd": "Performance.enable", "params": {}})
        browser.open(server.address + "/#/look/heads")
        browser.wait("document.querySelector('#prompt')")
        empty = heap()
        browser.open("about:blank")
        browser.open(f"{server.address}/#/look/heads?prompt={'+'.join(map(str, ids))}")
        browser.wait("document.querySelector('#heads').dataset.ready", 600)
        timed = """const [click, ready] = arguments, begin = performance.now(), before = document.querySelector('#head').dataset.ready;
            document.querySelector(click).click();
            const wait = () => (document.querySelector('#head').dataset.ready === before ? setTimeout(wait, 2) : ready(performance.now() - begin));
            wait();"""
        ask = lambda click: browser.call("POST", browser.session + "/execute/async", {"script": timed, "args": [click]})
        opened = ask("[data-name='self.0.0']")
        steps = []
        while not browser.script("return document.querySelector('#head').dataset.ready").startswith("self.0.0.1."):
            steps.append(ask("#zoom-in"))
        print(f"on the page: a head opened in {opened / 1000:.2f} s, {len(steps)} steps nearer in {min(steps):.0f} to {max(steps):.0f} ms; the page keeps {heap():.0f} MiB instead of {empty:.0f}")
        return opened / 1000, max(steps) / 1000
    finally:
        browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--size", type=int, default=64, help="of a head (default 64)")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--first", type=float, default=2.0, help="seconds that the first map may take")
    parser.add_argument("--step", type=float, default=0.3, help="seconds that a step may take")
    parser.add_argument("--page", action="store_true", help="also in a browser")
    arguments = parser.parse_args()
    if arguments.page and missing():
        sys.exit(f"--page: expected a browser, got no {missing()} (tools/bootstrap web installs it)")
    with tempfile.TemporaryDirectory() as folder, Serve(make_llama(os.path.join(folder, "long"), d=arguments.size * arguments.heads, heads=arguments.heads)) as server:
        empty, timed = rss_mebibytes(server), Watch(server)
        ids = [(n * n + n // 7) % 60 for n in range(arguments.tokens)]
        look, took = timed(lambda: server.ask("/api/look", {"ids": ids}))
        seconds = look["seconds"]
        print(f"{arguments.tokens} tokens, 2 layers of {arguments.heads} heads of {arguments.size}: {took:.2f} s, of them {seconds['forward']:.2f} forward, {seconds['heads']:.2f} for all heads from {look['heads'][0]['rows']} rows each; {timed.computed:.2f} s of computing")
        base = {"text": look["text"], "layer": 1, "head": 1, "cells": 128}  # as the page asks
        tile, first = timed(lambda: server.ask("/api/look/map", base))
        print(f"first map, {tile['step']} x {tile['step']} weights a cell: {first:.2f} s ({timed.computed:.2f} s of computing)")
        worst, step = 0, tile["step"]
        while step > 1:
            step //= 2
            begin = max(0, arguments.tokens * 5 // 8 // step * step)
            tile, took = timed(lambda: server.ask("/api/look/map", {**base, "step": step, "top": begin, "left": max(0, begin - 64 * step)}))
            worst = max(worst, took)
            print(f"step nearer, {step} x {step}: {1000 * took:.0f} ms ({1000 * timed.computed:.0f} ms of computing)")
        cell, took = timed(lambda: server.ask("/api/look/cell", {**base, "row": begin, "column": begin - 3}))
        worst = max(worst, took)
        print(f"a weight taken apart, with its row and its column: {1000 * took:.0f} ms (weight {cell['weight']:.3g}, from its parts {cell['parts']['weight']:.3g})")
        now = metrics(server)
        print(f"server: {empty:.0f} MiB before, {rss_mebibytes(server):.0f} MiB now; kept {now['heed_look_bytes'] / 2**20:.0f} MiB of queries, keys and hidden states, {now['heed_look_map_bytes'] / 2**20:.0f} MiB of maps")
        if arguments.page:
            opened, slowest = in_a_browser(server, ids)
            first, worst = max(first, opened), max(worst, slowest)
        if first > arguments.first or worst > arguments.step:
            sys.exit(f"too slow: {first:.2f} s for the first map, {worst:.2f} s for the slowest step")


if __name__ == "__main__":
    main()
