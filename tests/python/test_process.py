"""Threads, forks, memory: what a long-lived process relies on."""

import gc
import os
import threading
import time

import numpy as np
import pytest

import heed


def resident_kib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def cases(rng, count):
    for _ in range(count):
        t = int(rng.integers(1, 60))
        yield [rng.standard_normal((2, 2, t, 16)).astype("float32") for _ in range(3)]


@pytest.mark.parametrize("own_context", [False, True])
def test_threads_at_once(rng, own_context):
    work = list(cases(rng, 40))
    expected = [heed.attend(*x, causal=True) for x in work]
    wrong = []

    def run(number):
        context = heed.Context(threads=2) if own_context else None
        for round_ in range(5):
            for n in range(len(work)):
                at = (n * (number + 1) + round_) % len(work)
                if not np.array_equal(heed.attend(*work[at], causal=True, context=context), expected[at]):
                    wrong.append((number, at))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_gil_is_free_while_computing():
    """Another Python thread counts on while one call runs."""
    x = np.ones((1, 1, 1200, 64))  # float64: the reference, slow enough to watch
    counted, done = [], threading.Event()

    def count():
        while not done.is_set():
            counted.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    begin = time.perf_counter()
    heed.attend(x, x, x)
    end = time.perf_counter()
    done.set()
    thread.join()
    during = [moment for moment in counted if begin < moment < end]
    assert len(during) >= 5, f"{len(during)} moments of another thread within {end - begin:.2f} s"


def test_results_do_not_depend_on_threads(rng):
    x = rng.standard_normal((3, 4, 50, 32)).astype("float32")
    results = [heed.attend(x, x, x, context=heed.Context(threads=n)) for n in (1, 2, 3)]
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_context():
    context = heed.Context(threads=2)
    assert context.threads == 2 and "threads=2" in repr(context)
    x = np.ones((1, 2, 64, 64), np.float32)
    heed.attend(x, x, x, context=context)
    assert context.workspace_bytes > 0
    context.release_workspace()
    assert context.workspace_bytes == 0
    with pytest.raises(ValueError):
        heed.Context(threads=-1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("shared", [False, True])
def test_a_forked_child_computes(rng, shared):
    context = heed.Context(threads=2) if shared else None
    x = rng.standard_normal((4, 4, 128, 64)).astype("float32")
    expected = heed.attend(x, x, x, context=context)
    child = os.fork()
    if child == 0:
        right = np.array_equal(heed.attend(x, x, x, context=context), expected)
        os._exit(0 if right else 1)
    for _ in range(3000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_no_leak_over_100000_calls(rng):
    q, k, v = (rng.standard_normal((1, 2, 4, 8)).astype("float32") for _ in range(3))
    bias, lengths = rng.standard_normal((1, 2, 4, 4)), [3]
    context = heed.Context(threads=1)

    def call(n):
        out, lse = heed.attend(q, k, v, bias=bias, key_lengths=lengths, causal=True, lse=True, context=context)
        if n % 10 == 0:
            heed.attend_backward(
                q, k, v, out, lse, out, bias=bias, key_lengths=lengths, causal=True, dbias=True, context=context
            )
            with pytest.raises(ValueError):
                heed.attend(q, k[..., :3], v)
            heed.attend(memoryview(q), k, v, context=context)

    for n in range(5000):
        call(n)
    gc.collect()
    before = resident_kib()
    for n in range(100_000):
        call(n)
    gc.collect()
    grown = resident_kib() - before
    # One kept object a call would be 5 MB and more.
    assert grown < 2048, f"{grown} KiB more after 100000 calls"
