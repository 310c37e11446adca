"""What bench/together and bench/model share: two softwares in turn with no rests, as they run inside one program."""

import os
import pathlib
import statistics
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent


def start(name, build):
    """In the chosen python, with the module that was built; returns torch, heed and heed.torch."""
    chosen = os.environ.get("HEED_BENCH_PYTHON")
    if chosen and os.environ.get("HEED_BENCH_STARTED") != chosen:
        os.environ["HEED_BENCH_STARTED"] = chosen
        os.execvp(chosen, [chosen, str(FOLDER / name), *sys.argv[1:]])
    if build:
        sys.path.insert(0, str(build / "apps" / "python"))
    try:
        import torch
        import heed
        import heed.torch
    except ImportError as error:
        raise SystemExit(f"bench/{name}: {error}; needs PyTorch and heed's Python module (HEED_BENCH_PYTHON, --build)")
    return torch, heed, heed.torch


def in_turn(first, second, seconds, most=400):
    """Median times of both, in seconds, called one after the other without a pause."""
    first(), second()
    times, begin = ([], []), time.perf_counter()
    while len(times[0]) < 5 or (time.perf_counter() - begin < seconds and len(times[0]) < most):
        t0 = time.perf_counter()
        first()
        t1 = time.perf_counter()
        second()
        t2 = time.perf_counter()
        times[0].append(t1 - t0)
        times[1].append(t2 - t1)
    return statistics.median(times[0]), statistics.median(times[1])


def with_rests(function, rounds=9, rest=0.02):
    """Median time of a call when nothing else has run for a while: three in a row, the last one counts."""
    times = []
    for _ in range(rounds):
        time.sleep(rest)
        function(), function()
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "CPU")
