"""heed on PyTorch's threads: whose they are, that results do not depend on it, forks, workers, nested calls."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import heed

torch = pytest.importorskip("torch")
import heed.torch  # noqa: E402


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.randn(2, 4, 200, 64).to(dtype) for _ in range(3)]


def attended(x=None, **options):
    with torch.no_grad():
        return heed.torch.scaled_dot_product_attention(*(x or inputs()), is_causal=True, **options)


def test_the_default_context_is_pytorchs_team_and_follows_it():
    torch.set_num_threads(2)
    context = heed.Context()
    if "quota" in context.runs_on:
        pytest.skip("fewer CPUs than threads here")
    assert context.runs_on == "PyTorch's OpenMP team"
    assert context.threads == 2
    expected = attended()
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        assert context.threads == threads
        assert torch.equal(attended(), expected)
    assert heed.Context(threads=3).runs_on == "heed's own threads"
    torch.set_num_threads(2)
    explanation = heed.explain(1, 2, 8, 8)
    assert explanation.threads == "PyTorch's OpenMP team, 2 threads"
    assert "threads: PyTorch's OpenMP team, 2 threads" in str(explanation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_on_whatever_threads(dtype):
    torch.set_num_threads(2)
    x = inputs(dtype)
    expected = attended(x)
    one = heed.Context(threads=1)
    alone = heed.attend(*x, causal=True, context=one)
    assert torch.equal(torch.as_tensor(alone).to(dtype), expected)


def test_flushing_small_numbers_changes_nothing():
    x = inputs()
    x[2] = x[2] * 1e-39
    expected = attended(x)
    assert (expected.abs() < 1.2e-38).any() and (expected != 0).any()
    torch.set_flush_denormal(True)
    try:
        got = attended(x)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(got, expected)


def test_calls_from_several_threads():
    x = inputs()
    expected, wrong = attended(x), []

    def run():
        for _ in range(10):
            torch.mm(torch.ones(64, 64), torch.ones(64, 64))
            if not torch.equal(attended(x), expected):
                wrong.append(1)

    callers = [threading.Thread(target=run) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


class Rows(torch.utils.data.Dataset):
    """Each item is a row of attention, computed by the worker that loads it."""

    def __len__(self):
        return 6

    def __getitem__(self, n):
        return n, attended().sum(dim=(0, 1))


def test_workers_of_a_data_loader():
    expected = attended().sum(dim=(0, 1))
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))  # the parent's team exists
    loader = torch.utils.data.DataLoader(Rows(), num_workers=2, timeout=60)
    seen = []
    for number, rows in loader:
        assert torch.equal(rows[0], expected)
        seen += number.tolist()
    assert sorted(seen) == list(range(6))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_team_it_does_not_have():
    torch.set_num_threads(2)
    x = inputs()
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))
    expected = np.asarray(heed.attend(*[y.numpy() for y in x], causal=True))
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(30)
        right = np.array_equal(heed.attend(*[y.numpy() for y in x], causal=True), expected)
        os._exit(0 if right and "fork" in heed.Context().runs_on else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("with_torch", [False, True])
def test_omp_num_threads_is_followed(with_torch):
    program = "import torch\n" * with_torch + "import heed\nprint(heed.Context().threads)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1", done.stderr


def test_own_threads_until_torch_comes_and_by_wish():
    """In a process of its own: heed first, then torch."""
    program = """if True:
        import heed
        context = heed.Context()
        assert context.runs_on == "heed's own threads", context.runs_on
        import torch
        torch.set_num_threads(1)
        print(context.runs_on, context.threads)
        """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HEED_THREADS", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "PyTorch's OpenMP team 1", done.stderr
    environment["HEED_THREADS"] = "own"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("heed's own threads"), done.stderr
