#!/usr/bin/env python3
"""heed's kernels for Hopper beside PyTorch's cuDNN, FlashAttention-2 and others, in one process on one GPU.

    measure.py LIBRARY [check] [error] [same] [time] [wide] [decode] [pages] [calls] [options]      default: all

`check` compares forward and backward with float64 and with cuDNN's own error, over odd sizes, bands, lengths, grouped heads
and layouts, and looks whether a second run gives the same bits. `error` compares heed's and cuDNN's root-mean-square
and largest errors, `same` 100 runs alone and among neighbours. The others print one line a case: TFLOP/s (causal counts
half), the ratio to cuDNN, and what is left to the machine's own limits. Cases are interleaved, medians of many runs.
"""
import ctypes
import datetime
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

I64, PTR = ctypes.c_int64, ctypes.c_void_p


class Call(ctypes.Structure):
    _fields_ = ([("dtype", I64)] + [(n, I64) for n in "batch heads kv_heads queries keys size".split()]
                + [(n, PTR) for n in "q k v dout out lse dq dk dv".split()]
                + [(n, I64 * 4) for n in "q_stride k_stride v_stride out_stride".split()]
                + [(n, I64) for n in "causal left right".split()]
                + [("key_lengths", PTR), ("bias", PTR), ("dbias", PTR), ("allow", PTR), ("dropout", ctypes.c_double), ("softcap", ctypes.c_double),
                   ("slopes", PTR), ("kernel", ctypes.c_char_p)])


class PagedCall(ctypes.Structure):
    _fields_ = ([(n, I64) for n in "caches heads kv_heads keys size".split()] + [(n, PTR) for n in "q k v out".split()]
                + [("page_size", I64), ("pages", I64), ("tables", PTR)])


class Heed:
    """Calls of one shape, with their tensors."""
    library = None
    context = PTR()

    @classmethod
    def open(cls, path):
        cls.library = ctypes.CDLL(path)
        for name in "open set_stream wait attend backward paged host_time".split():
            getattr(cls.library, "heed_gpu_" + name).restype = ctypes.c_char_p
        cls.expect(cls.library.heed_gpu_open(ctypes.byref(cls.context), PTR(torch.cuda.current_stream().cuda_stream)))

    @classmethod
    def on_current_stream(cls):
        cls.expect(cls.library.heed_gpu_set_stream(cls.context, PTR(torch.cuda.current_stream().cuda_stream)))

    @staticmethod
    def expect(error):
        if error:
            raise RuntimeError(error.decode())

    def __init__(self, q, k, v, causal=False, window=(-1, -1), lengths=None, bias=None, dropout=0.0, softcap=0.0,
                 slopes=None, kernel="", dout=None, allow=None, dbias=False):
        def like(x):
            return torch.full_like(x, float("nan"))
        self.q, self.k, self.v, self.dout = q, k, v, dout
        self.out, self.dq, self.dk, self.dv = like(q), like(q), like(k), like(v)
        self.lse = torch.full(q.shape[:3], float("nan"), device="cuda", dtype=torch.float32)
        if dout is not None and dout.stride() != self.out.stride():
            self.dout = torch.empty_like(self.out).copy_(dout)
        c = self.call = Call()
        c.dtype = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}[q.dtype]
        c.batch, c.heads, c.queries, c.size = q.shape
        c.kv_heads, c.keys = k.shape[1], k.shape[2]
        for name in "q k v dout out lse dq dk dv".split():
            x = getattr(self, name)
            setattr(c, name, x.data_ptr() if x is not None else None)
        for name, x in (("q", q), ("k", k), ("v", v), ("out", self.out)):
            setattr(c, name + "_stride", (I64 * 4)(*x.stride()))
        c.causal, (c.left, c.right) = causal, window
        self.kept = (ctypes.c_int64 * len(lengths))(*lengths) if lengths is not None else None
        self.slopes = (ctypes.c_float * len(slopes))(*slopes) if slopes is not None else None
        self.bias, self.allow = bias, allow
        self.dbias = torch.full_like(bias, float("nan"), dtype=torch.float32) if dbias else None
        c.key_lengths = ctypes.cast(self.kept, PTR) if lengths is not None else None
        c.slopes = ctypes.cast(self.slopes, PTR) if slopes is not None else None
        c.bias = bias.data_ptr() if bias is not None else None
        c.dbias = self.dbias.data_ptr() if dbias else None
        c.allow = allow.data_ptr() if allow is not None else None
        c.dropout, c.softcap, c.kernel = dropout, softcap, kernel.encode()

    def forward(self):
        self.expect(self.library.heed_gpu_attend(self.context, ctypes.byref(self.call)))

    def backward(self):
        self.expect(self.library.heed_gpu_backward(self.context, ctypes.byref(self.call)))


def median_times(functions, rounds=12, warm=3):
    """Milliseconds of each, one after the other in every round."""
    for f in functions:
        for _ in range(warm):
            f()
    torch.cuda.synchronize()
    times = [[] for _ in functions]
    for _ in range(rounds):
        for n, f in enumerate(functions):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            f()
            b.record()
            torch.cuda.synchronize()
            times[n].append(a.elapsed_time(b))
    return [sorted(t)[len(t) // 2] for t in times]


def graph_times(functions, repeats=20, rounds=10):
    """Milliseconds of one call of each, from replays of CUDA graphs: what the GPU takes, without the host."""
    graphs = []
    for f in functions:
        f()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            Heed.on_current_stream()
            for _ in range(repeats):
                f()
        graphs.append(graph)
    Heed.on_current_stream()
    return [t / repeats for t in median_times([g.replay for g in graphs], rounds)]


def exact(q, k, v, dout, mask):
    """Float64: out, lse, dq, dk, dv."""
    q, k, v = [x.double().detach().requires_grad_() for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    x = q @ k.repeat_interleave(group, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    x = x.masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(x, 3)
    w = torch.softmax(x, 3).nan_to_num(0.0)
    out = w @ v.repeat_interleave(group, 1)
    out.backward(dout.double())
    return [out.detach(), lse.detach(), q.grad, k.grad, v.grad]


def visible(B, T, S, causal, window, lengths):
    i = torch.arange(T, device="cuda")[:, None] + S - T
    j = torch.arange(S, device="cuda")[None, :]
    mask = torch.ones(T, S, device="cuda", dtype=torch.bool)
    if causal:
        mask &= j <= i
    if window[0] >= 0:
        mask &= j >= i - window[0]
    if window[1] >= 0:
        mask &= j <= i + window[1]
    mask = mask[None, None].expand(B, 1, T, S)
    if lengths is not None:
        mask = mask & (j[None, None] < torch.tensor(lengths, device="cuda")[:, None, None, None])
    return mask


def tensor(layout, dtype, *shape):
    if layout == "BTHD":
        B, H, T, D = shape
        return torch.randn(B, T, H, D, device="cuda", dtype=dtype).transpose(1, 2)
    return torch.randn(*shape, device="cuda", dtype=dtype)


def check_one(kernel, dtype, B, H, G, T, S, D, causal, window, lengths, layout, poison=False):
    q, dout = tensor(layout, dtype, B, H, T, D), tensor(layout, dtype, B, H, T, D)
    k, v = tensor(layout, dtype, B, G, S, D), tensor(layout, dtype, B, G, S, D)
    mask = visible(B, T, S, causal, window, lengths)
    expected = exact(q, k, v, dout, mask)
    if poison:  # what nobody sees may hold anything
        for b, n in enumerate(lengths):
            k[b, :, n:] = float("nan")
            v[b, :, n:] = float("inf")
    h = Heed(q, k, v, causal, window, lengths, kernel=kernel, dout=dout)
    h.forward()
    h.backward()
    torch.cuda.synchronize()
    got = [h.out, h.lse, h.dq, h.dk, h.dv]
    first = [x.clone() for x in got]
    # The yardstick: the same in the tensors' own type, rounded where an unfused program would round.
    w = (q.float() @ k.float().nan_to_num(0).repeat_interleave(H // G, 1).transpose(2, 3) / math.sqrt(D)).masked_fill(
        ~mask, -math.inf).softmax(3).nan_to_num(0).to(dtype)
    naive = (w.float() @ v.float().nan_to_num(0, 0, 0).repeat_interleave(H // G, 1)).to(dtype)
    yard = (naive.double() - expected[0]).abs().max().item()
    parts, good = [], True
    for name, g, e in zip(("out", "lse", "dq", "dk", "dv"), got, expected):
        g = g.double()
        if name in ("dk", "dv") and lengths is not None:
            for b, n in enumerate(lengths):
                good &= bool((g[b, :, n:] == 0).all())
        same_inf = torch.isinf(e) & (g == e)
        error = torch.where(same_inf, 0.0, (g - e).abs()).max().item() if e.numel() else 0.0
        size = e[torch.isfinite(e)].abs().max().item() if e.numel() else 0.0
        bound = 4e-6 * max(1, size) * 4 if name == "lse" else \
            max(2 * yard, (2 ** -7 if dtype == torch.bfloat16 else 2 ** -9) * max(size, 0.05))
        good &= error <= bound  # NaN fails
        parts.append(f"{name} {error:.1e}/{bound:.1e}")
    h.forward()
    h.backward()
    torch.cuda.synchronize()
    same = all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(first, [h.out, h.lse, h.dq, h.dk, h.dv]))
    if not (good and same):
        print(f"WRONG {kernel} {dtype} B{B} H{H}/{G} T{T} S{S} D{D} causal={causal} window={window} lengths={lengths} "
              f"{layout} poison={poison}: {', '.join(parts)} same bits: {same}", flush=True)
    return good and same


def check():
    torch.manual_seed(1)
    cases, wrong = 0, 0
    sizes = [(1, 1), (5, 7), (64, 64), (65, 130), (128, 128), (129, 257), (200, 333), (333, 200), (512, 512), (1000, 1000),
             (1, 700), (700, 1)]
    variants = [dict(causal=False, window=(-1, -1)), dict(causal=True, window=(-1, -1)), dict(causal=True, window=(100, 0)),
                dict(causal=False, window=(60, 30)), dict(causal=False, window=(-1, -1), lengths=True),
                dict(causal=True, window=(-1, -1), lengths=True)]
    for D in (128, 64, 256):
        for n, (T, S) in enumerate(sizes):
            for m, variant in enumerate(variants):
                dtype = (torch.bfloat16, torch.float16)[(n + m) % 2]
                H, G = ((2, 2), (4, 1), (6, 3))[(n + m) % 3]
                layout = ("BHTD", "BTHD")[(n // 2 + m) % 2]
                lengths = [S // 2, S] if variant.get("lengths") else None
                cases += 1
                wrong += not check_one("cuda-sm90", dtype, 2, H, G, T, S, D, variant["causal"], variant["window"], lengths,
                                       layout, poison=lengths is not None and n % 2 == 0)
    for D in (40, 128):
        cases += 1
        wrong += not check_one("cuda-any", torch.bfloat16, 2, 4, 2, 200, 333, D, True, (-1, -1), None, "BTHD")
    print(f"check: {cases} cases against float64, {wrong} wrong", flush=True)
    check_options()


def close(got, expected, bound):
    """Whether the difference is within `bound` of the largest number; NaN is not."""
    got, expected = got.double(), expected.double()
    same = torch.isinf(expected) & (got == expected)
    size = torch.where(same, 0.0, expected.abs()).max().item()
    error = torch.where(same, 0.0, (got - expected).abs()).max().item()
    return error <= bound * max(size, 1e-3), error / max(size, 1e-30)


def check_options():
    """Every option on larger shapes: cuda-sm90/general beside cuda-any, which computes in float32; twice, for equal bits."""
    torch.manual_seed(2)
    cases, wrong, worst = 0, 0, {}
    for D in (128, 64, 256):
        for n, (T, S) in enumerate([(300, 520), (1000, 1000), (129, 2048)]):
            H, G = ((4, 4), (4, 2), (6, 1))[n]
            dtype = (torch.bfloat16, torch.float16)[n % 2]
            q, g = [torch.randn(2, H, T, D, device="cuda", dtype=dtype) for _ in range(2)]
            k, v = [torch.randn(2, G, S, D, device="cuda", dtype=dtype) for _ in range(2)]
            bias = torch.randn(1, H, T, S, device="cuda", dtype=dtype)
            allow = torch.rand(1, 1, T, S, device="cuda") < 0.7
            allow[..., :128, 128:320] = False
            slopes = [2.0 ** (-8 * (h + 1) / H) for h in range(H)]
            for options in (dict(bias=bias, dbias=True), dict(slopes=slopes, softcap=20.0), dict(dropout=0.3), dict(dropout=0.1, causal=True),
                            dict(dropout=0.2, window=(90, 30)),
                            dict(allow=allow, causal=True), dict(bias=bias, dropout=0.1, causal=True, dbias=True),
                            dict(softcap=500.0, window=(200, 30)),
                            dict(bias=bias, allow=allow, slopes=slopes, softcap=30.0, dropout=0.2, window=(-1, 50))):
                fast = "cuda-sm90" if "dropout" in options and D != 256 and not set(options) - {"dropout", "causal", "window"} \
                    else "cuda-sm90/general"
                mine, any_ = [Heed(q, k, v, dout=g, kernel=kernel, **options) for kernel in (fast, "cuda-any")]
                any_.forward()
                any_.backward()
                mine.forward()
                mine.backward()
                torch.cuda.synchronize()
                names = "out lse dq dk dv".split() + (["dbias"] if options.get("dbias") else [])
                first = {name: getattr(mine, name).clone() for name in names}
                bad = []
                for name in names:
                    bound = 1e-5 if name == "lse" else 2.0 ** -6 if dtype == torch.bfloat16 else 2.0 ** -8
                    good, error = close(getattr(mine, name), getattr(any_, name), bound)
                    worst[name] = max(worst.get(name, 0), error / bound)
                    if not good:
                        bad.append(f"{name} {error:.1e}/{bound:.1e}")
                mine.forward()
                mine.backward()
                torch.cuda.synchronize()
                if not all(torch.equal(first[name], getattr(mine, name)) for name in names):
                    bad.append("other bits in the second run")
                cases += 1
                if bad:
                    wrong += 1
                    print(f"WRONG options {dtype} H{H}/{G} T{T} S{S} D{D} {sorted(options)}: {', '.join(bad)}", flush=True)
    print(f"check options: {cases} cases against cuda-any, {wrong} wrong; worst of what is allowed: "
          + ", ".join(f"{name} {value:.2f}" for name, value in worst.items()), flush=True)


def compare_errors():
    """Errors against float64 beside cuDNN's: each the root mean square and the largest, as a ratio to cuDNN's."""
    torch.manual_seed(3)
    worst = 0
    for D, T in ((128, 512), (128, 2048), (64, 512), (64, 2048), (256, 512), (256, 2048)):
        for causal in (False, True):
            for dtype in (torch.bfloat16, torch.float16):
                q, k, v, g = [torch.randn(2, 4, T, D, device="cuda", dtype=dtype) for _ in range(4)]
                expected = exact(q, k, v, g, visible(2, T, T, causal, (-1, -1), None))
                h = Heed(q, k, v, causal, dout=g)
                h.forward()
                h.backward()
                peers = [x.clone().requires_grad_() for x in (q, k, v)]
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    out = F.scaled_dot_product_attention(*peers, is_causal=causal)
                    grads = torch.autograd.grad(out, peers, g)
                torch.cuda.synchronize()
                parts = []
                for name, mine, peer, e in zip(("out", "dq", "dk", "dv"), (h.out, h.dq, h.dk, h.dv), (out, *grads),
                                               [expected[n] for n in (0, 2, 3, 4)]):
                    a, b = (mine.double() - e).abs(), (peer.detach().double() - e).abs()
                    rms = (a.square().mean() / b.square().mean()).sqrt().item()
                    worst = max(worst, rms)
                    parts.append(f"{name} {rms:.2f} {(a.max() / b.max()).item():.2f}")
                print(f"error T{T} D{D} {'causal' if causal else 'full'} {str(dtype)[6:]}, of cuDNN's (rms, largest): "
                      + ", ".join(parts), flush=True)
    print(f"error: worst rms {worst:.2f} of cuDNN's", flush=True)


def check_same_bits():
    """100 runs, alone and among other neighbours: every bit of out, lse, dq, dk and dv."""
    torch.manual_seed(4)
    for D, T, H, G, options in ((128, 700, 4, 2, {}), (128, 700, 4, 2, dict(causal=True)), (64, 1000, 6, 2, dict(causal=True)),
                                (256, 500, 2, 1, dict(causal=True)), (256, 500, 4, 4, {}), (128, 520, 4, 4, dict(dropout=0.1)),
                                (64, 520, 4, 4, dict(dropout=0.1)), (128, 520, 4, 4, dict(softcap=20.0))):
        # Dropout's words come from the entry's number: a neighbour in front is another entry.
        q, g = [torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        k, v = [torch.randn(1, G, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        names = "out lse dq dk dv".split()
        first, different = None, 0
        for run in range(100):
            batch = 1 + run % 4
            place = 0 if "dropout" in options else run % batch
            tensors = [torch.randn(batch, *x.shape[1:], device="cuda", dtype=x.dtype) for x in (q, k, v, g)]
            for x, own in zip(tensors, (q, k, v, g)):
                x[place] = own[0]
            h = Heed(*tensors[:3], dout=tensors[3], **options)
            h.forward()
            h.backward()
            torch.cuda.synchronize()
            got = [getattr(h, name)[place].clone() for name in names]
            first = first or got
            different += not all(torch.equal(a, b) for a, b in zip(first, got))
        print(f"same bits: D{D} T{T} H{H}/{G} {options}: {different} of 100 runs differ", flush=True)


def flops(B, H, T, S, D, causal, backward):
    return 4 * B * H * T * S * D * (0.5 if causal else 1) * (2.5 if backward else 1)


def time_all(sizes=None):
    print(f"{'case':34} {'heed fwd':>9} {'cuDNN':>6} {'ratio':>6} | {'heed bwd':>9} {'cuDNN':>6} {'ratio':>6}   TFLOP/s")
    shapes = sizes or [(D, T) for D in (128, 64) for T in (512, 2048, 8192)]
    for D, T in shapes:
        B, H = 16384 // T, 2048 // D
        for causal in (False, True):
            q, k, v, g = [torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            h = Heed(q, k, v, causal, dout=g)
            peers = [x.clone().requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                def cudnn():
                    with torch.no_grad():
                        F.scaled_dot_product_attention(*peers, is_causal=causal)
                out = F.scaled_dot_product_attention(*peers, is_causal=causal)

                def cudnn_backward():
                    torch.autograd.grad(out, peers, g, retain_graph=True)
                fwd, peer_fwd = median_times([h.forward, cudnn])
                bwd, peer_bwd = median_times([h.backward, cudnn_backward])
            f, b = flops(B, H, T, T, D, causal, False) / 1e9, flops(B, H, T, T, D, causal, True) / 1e9
            print(f"B{B} H{H} T{T} D{D} {'causal' if causal else 'full':20}"[:34].ljust(34) +
                  f" {f / fwd:9.0f} {f / peer_fwd:6.0f} {peer_fwd / fwd:6.2f} | {b / bwd:9.0f} {b / peer_bwd:6.0f} "
                  f"{peer_bwd / bwd:6.2f}", flush=True)


def time_forward():
    """The forward pass alone, for comparing variants: TFLOP/s and the ratio to cuDNN."""
    for D, T in ((128, 512), (128, 2048), (128, 8192), (64, 2048), (256, 2048), (256, 8192)):
        B, H, parts = 16384 // T, 2048 // D, []
        for causal in (False, True):
            q, k, v = [torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            h = Heed(q, k, v, causal)
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
                mine, peer = graph_times(
                    [h.forward, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)], 5)
            f = flops(B, H, T, T, D, causal, False) / 1e9
            parts.append(f"{'causal' if causal else 'full'} {f / mine:.0f} ({peer / mine:.2f})")
        print(f"forward B{B} H{H} T{T} D{D}: {', '.join(parts)}", flush=True)


def time_decode():
    for B, S in ((1, 4096), (1, 32768), (16, 32768), (1, 131072)):
        q = torch.randn(B, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        k, v = [torch.randn(B, 8, S, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        h = Heed(q, k, v)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            mine, peer = graph_times([h.forward, lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)])
        bytes_read = 2 * B * 8 * S * 128 * 2
        print(f"decode 32/8 heads D128 B{B} S{S}: heed {mine * 1e3:.1f} us {bytes_read / mine / 1e9:.2f} TB/s, cuDNN "
              f"{peer * 1e3:.1f} us, ratio {peer / mine:.2f}", flush=True)


def time_pages():
    """Decoding from pages of a cache beside the same from tensors, tables uploaded by every call."""
    for B, S in ((1, 4096), (1, 32768), (16, 32768), (1, 131072)):
        q = torch.randn(B, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        k, v = [torch.randn(B, 8, S, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        h = Heed(q, k, v)
        q_rows = q.transpose(0, 2).contiguous()  # [1,H,B,D]
        parts = []
        for page in (16, 64, 256):
            pages = B * S // page
            order = torch.randperm(pages)
            pools = []
            for x in (k, v):
                by_page = x.transpose(0, 1).reshape(8, pages, page, 128)
                pool = torch.empty_like(by_page)
                pool[:, order.cuda()] = by_page
                pools.append(pool)
            table = order.to(torch.int32).contiguous()
            out = torch.full_like(q_rows, float("nan"))
            c = PagedCall(B, 32, 8, S, 128, q_rows.data_ptr(), pools[0].data_ptr(), pools[1].data_ptr(), out.data_ptr(), page,
                          pages, table.data_ptr())
            paged = lambda: Heed.expect(Heed.library.heed_gpu_paged(Heed.context, ctypes.byref(c)))
            mine, there = graph_times([h.forward, paged])
            same = torch.equal(out.transpose(0, 2), h.out)
            bytes_read = 2 * B * 8 * S * 128 * 2
            parts.append(f"pages of {page} {there * 1e3:.1f} us {bytes_read / there / 1e9:.2f} TB/s ({mine / there:.2f}"
                         f"{'' if same else ', OTHER BITS'})")
        print(f"paged decode 32/8 heads D128 B{B} S{S}: tensors {mine * 1e3:.1f} us; " + ", ".join(parts), flush=True)


def time_calls():
    """What a call costs the host beyond the kernel: many small calls, not waited for."""
    q, k, v = [torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    h = Heed(q, k, v)
    for name, f in (("heed through ctypes", h.forward), ("PyTorch cuDNN", lambda: F.scaled_dot_product_attention(q, k, v))):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            for _ in range(50):
                f()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(500):
                f()
            middle = time.perf_counter()
            torch.cuda.synchronize()
            print(f"a small call, {name}: {(middle - begin) * 2e3:.1f} us of the host", flush=True)
    host = ctypes.c_double()
    Heed.expect(Heed.library.heed_gpu_host_time(Heed.context, ctypes.byref(h.call), I64(500), ctypes.byref(host)))
    print(f"a small call from C++: {host.value:.1f} us of the host", flush=True)


def time_options(T=8192):
    """The general variant beside cuDNN, where that has the option."""
    D, H, B = 128, 16, 16384 // T
    q, k, v, g = [torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    bias = torch.randn(1, H, T, T, device="cuda", dtype=torch.bfloat16)
    slopes = [2.0 ** (-8 * (n + 1) / H) for n in range(H)]
    blocks = torch.rand(T // 128, T // 128, device="cuda") < 0.25
    allow = blocks.repeat_interleave(128, 0).repeat_interleave(128, 1)[None, None].contiguous()
    seen = blocks.float().mean().item()
    f = flops(B, H, T, T, D, False, False) / 1e9
    for name, options, peer in (
            ("nothing", dict(), dict()), ("bias", dict(bias=bias), dict(attn_mask=bias)),
            ("bias, gradient of it", dict(bias=bias, dbias=True), dict(attn_mask=bias.clone().requires_grad_())),
            ("dropout", dict(dropout=0.1), dict(dropout_p=0.1)),
            ("bias + dropout", dict(bias=bias, dropout=0.1), dict(attn_mask=bias, dropout_p=0.1)),
            ("ALiBi + soft-cap", dict(slopes=slopes, softcap=30.0), None), ("ALiBi", dict(slopes=slopes), None),
            ("soft-cap", dict(softcap=30.0), None), (f"allow, {seen:.0%} of tiles", dict(allow=allow), None)):
        h = Heed(q, k, v, dout=g, kernel="cuda-sm90" if list(options) == ["dropout"] else "cuda-sm90/general", **options)
        fwd, bwd = median_times([h.forward, h.backward], 5, 1)
        part = seen if "allow" in options else 1.0
        line = f"options B{B} H{H} T{T} D{D} {name}: forward {part * f / fwd:.0f}, backward {2.5 * part * f / bwd:.0f} TFLOP/s"
        if peer is not None:
            try:
                peers = [x.clone().requires_grad_() for x in (q, k, v)]
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    out = F.scaled_dot_product_attention(*peers, **peer)
                    wanted = peers + ([peer["attn_mask"]] if options.get("dbias") else [])
                    with torch.no_grad():
                        peer_fwd, = median_times([lambda: F.scaled_dot_product_attention(*peers, **peer)], 5, 1)
                    peer_bwd, = median_times([lambda: torch.autograd.grad(out, wanted, g, retain_graph=True)], 5, 1)
                line += f"; cuDNN {f / peer_fwd:.0f}, {2.5 * f / peer_bwd:.0f}; ratio {peer_fwd / fwd:.2f}, {peer_bwd / bwd:.2f}"
            except RuntimeError as error:
                line += f"; cuDNN: {str(error).splitlines()[0][:60]}"
        print(line, flush=True)
    T, W = 32768, 1023
    q, k, v, g = [torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    h = Heed(q, k, v, True, (W, 0), dout=g)
    fwd, bwd = median_times([h.forward, h.backward], 10)
    f = 4 * H * D * (T * (W + 1) - (W + 1) * W / 2) / 1e9
    print(f"window 1024 causal B1 H{H} T{T} D{D}: forward {f / fwd:.0f}, backward {2.5 * f / bwd:.0f} TFLOP/s of visible pairs",
          flush=True)


def main():
    Heed.open(sys.argv[1])
    what = sys.argv[2:] or ["check", "error", "same", "time", "wide", "decode", "pages", "calls", "options"]
    print(f"{datetime.date.today()} {torch.cuda.get_device_name()} torch {torch.__version__} cuDNN "
          f"{torch.backends.cudnn.version()}", flush=True)
    for name in what:
        {"check": check, "time": time_all, "forward": time_forward, "decode": time_decode, "options": time_options, "calls": time_calls,
         "error": compare_errors, "same": check_same_bits, "pages": time_pages,
         "wide": lambda: time_all([(256, 2048), (256, 8192)])}[name]()


if __name__ == "__main__":
    main()
