"""Tensors of a GPU: forward, backward, options, streams and graphs. Needs PyTorch, a GPU, and heed built with CUDA."""
import math

import pytest

import heed

torch = pytest.importorskip("torch")
pytest.importorskip("heed.torch")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or len(heed.devices()) < 2,
    reason="no GPU, or heed built without CUDA",
)


def inputs(dtype=torch.bfloat16, B=2, H=4, G=2, T=150, S=200, D=64, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = (B, H, T, D), (B, G, S, D), (B, G, S, D)
    return [torch.randn(s, device="cuda", dtype=dtype, generator=generator).requires_grad_() for s in shapes]


def exact(q, k, v, mask=None, bias=None):
    q, k, v = [x.detach().double().requires_grad_() for x in (q, k, v)]
    x = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) / math.sqrt(q.shape[3])
    x = x if bias is None else x + bias.double()
    x = x if mask is None else x.masked_fill(~mask, -math.inf)
    out = x.softmax(3) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return out, (q, k, v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [64, 128, 40])
def test_gradients(dtype, size):
    q, k, v = inputs(dtype, D=size)
    mask = torch.ones(150, 200, dtype=torch.bool, device="cuda").tril(50)
    expected, leaves = exact(q, k, v, mask)
    dout = torch.randn_like(q)
    expected.backward(dout.double())
    out = heed.torch.attend(q, k, v, causal=True)
    out.backward(dout)
    bound = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}[dtype]
    for got, want in [(out, expected)] + list(zip((q.grad, k.grad, v.grad), (x.grad for x in leaves))):
        assert got.device.type == "cuda" and got.dtype == dtype
        assert (got.double() - want).abs().max() <= bound * want.abs().max()


def test_like_pytorch():
    q, k, v = [x.detach() for x in inputs(G=4, S=150)]
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.randn(150, 150, device="cuda", dtype=torch.bfloat16)}):
        got = heed.torch.scaled_dot_product_attention(q, k, v, **options)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        assert (got.float() - want.float()).abs().max() < 3e-2


def test_lists_on_host_or_device():
    q, k, v = [x.detach() for x in inputs()]
    lengths = torch.tensor([200, 77])
    on_host = heed.attend(q, k, v, key_lengths=lengths)
    assert torch.equal(on_host, heed.attend(q, k, v, key_lengths=lengths.cuda()))
    assert torch.equal(on_host, heed.attend(q, k, v, key_lengths=[200, 77]))


def test_mixed_devices_are_refused():
    q, k, v = [x.detach() for x in inputs()]
    with pytest.raises(heed.Error, match="k: expected memory on cuda:0"):
        heed.attend(q, k.cpu(), v)
    with pytest.raises(heed.Error, match="CPU's memory"):
        heed.rope(q, heed.rope_table(heed.Rope(size=64), 100)) if hasattr(heed, "rope") else heed.matmul(q, q)


def test_streams_and_graphs():
    q, k, v = [x.detach() for x in inputs(D=128)]
    expected = heed.attend(q, k, v, causal=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = heed.attend(q, k, v, causal=True)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(on_side, expected)
    graph = torch.cuda.CUDAGraph()
    out = torch.empty_like(expected)
    with torch.cuda.graph(graph):
        heed.attend(q, k, v, causal=True, out=out, key_lengths=[200, 60])
    want = heed.attend(q, k, v, causal=True, key_lengths=[200, 60])
    out.fill_(float("nan"))
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    q.mul_(0.5)
    graph.replay()
    assert torch.equal(out, heed.attend(q, k, v, causal=True, key_lengths=[200, 60]))


def test_dropout_is_the_same_as_on_the_cpu():
    q, k, v = [x.detach().float() for x in inputs()]
    on_gpu = heed.attend(q, k, v, dropout=0.3, seed=7)
    on_cpu = heed.attend(q.cpu(), k.cpu(), v.cpu(), dropout=0.3, seed=7)
    assert (on_gpu.cpu() - on_cpu).abs().max() < 1e-4
