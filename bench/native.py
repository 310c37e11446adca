"""The C++ side (bench/capi.cc) through ctypes: machine limits, heed, the compositions, and the buffers of a case."""

import ctypes
from ctypes import c_char_p, c_double, c_int, c_int32, c_int64, c_void_p

DTYPES = {"f32": 0, "bf16": 1, "f16": 2}
BIAS = {None: 0, "per_head": 1, "shared": 2}


class Spec(ctypes.Structure):
    """heed::bench::Spec, field by field."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_size")),
        *((name, c_int64) for name in ("window_left", "window_right", "key_length", "query_length")),
        *((name, c_double) for name in ("softcap", "dropout")),
        *((name, c_int32) for name in ("dtype", "causal", "bias", "alibi", "backward", "copies")),
    ]


def spec_of(case, copies=1):
    options = case.options
    window = options.get("window")
    return Spec(
        *case.shape,
        window_left=-1 if window is None else window - 1,
        window_right=-1 if window is None else 0,
        key_length=options.get("key_length", -1),
        query_length=options.get("query_length", -1),
        softcap=options.get("softcap", 0),
        dropout=options.get("dropout", 0),
        dtype=DTYPES[case.dtype],
        causal=bool(options.get("causal")),
        bias=BIAS[options.get("bias")],
        alibi=bool(options.get("alibi")),
        backward=case.backward,
        copies=copies,
    )


class NativeError(RuntimeError):
    pass


class Library:
    def __init__(self, path):
        self._c = ctypes.CDLL(str(path))
        declare = {
            "hb_error": (c_char_p, []),
            "hb_isa": (c_char_p, []),
            "hb_onednn_version": (c_char_p, []),
            "hb_has_bf16_dot": (c_int, []),
            "hb_last_level_cache": (c_double, []),
            "hb_peak_gflops": (c_double, [c_int, c_int, c_double]),
            "hb_exp_rate": (c_double, [c_int, c_double]),
            "hb_read_bandwidth": (c_double, [c_void_p, c_int]),
            "hb_open": (c_void_p, [c_int]),
            "hb_close": (None, [c_void_p]),
            "hb_problem_new": (c_void_p, [ctypes.POINTER(Spec)]),
            "hb_problem_free": (None, [c_void_p]),
            "hb_buffer": (c_void_p, [c_void_p, c_char_p, c_int, ctypes.POINTER(c_double)]),
            "hb_declines": (c_char_p, [c_char_p, ctypes.POINTER(Spec)]),
            "hb_kernel": (c_char_p, [c_void_p]),
            "hb_run": (c_double, [c_void_p, c_void_p, c_char_p, c_double]),
            "hb_forward": (c_int, [c_void_p, c_void_p]),
            "hb_forward_error": (c_double, [c_void_p, c_void_p]),
            "hb_backward_error": (c_double, [c_void_p, c_void_p, c_void_p, c_void_p]),
        }
        for name, (result, arguments) in declare.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def call(self, name, *arguments):
        """Calls hb_<name>; what it reports by hb_error becomes an exception."""
        result = getattr(self._c, "hb_" + name)(*arguments)
        failed = result is None if name in ("open", "problem_new") else result != result or result == -1
        if failed:
            raise NativeError(self._c.hb_error().decode())
        return result

    @property
    def isa(self):
        return self._c.hb_isa().decode()

    @property
    def onednn_version(self):
        return self._c.hb_onednn_version().decode()

    @property
    def has_bf16_dot(self):
        return bool(self._c.hb_has_bf16_dot())

    @property
    def last_level_cache(self):
        return self._c.hb_last_level_cache()

    def peak_gflops(self, dtype, threads, seconds=0.02):
        return self.call("peak_gflops", DTYPES[dtype], threads, seconds)

    def exp_rate(self, threads, seconds=0.1):
        return self.call("exp_rate", threads, seconds)


class Session:
    """The threads that heed and the compositions use."""

    def __init__(self, library, threads):
        self.library, self.threads = library, threads
        self.handle = library.call("open", threads)

    def close(self):
        self.library.call("close", self.handle)

    def read_bandwidth(self, threads):
        return self.library.call("read_bandwidth", self.handle, threads)


class Problem:
    """A case with its buffers, which belong to the library and are lent to other software as they are."""

    def __init__(self, session, case, copies=1):
        self.session, self.case, self.copies = session, case, copies
        self.spec = spec_of(case, copies)
        self.handle = session.library.call("problem_new", ctypes.byref(self.spec))
        if case.backward:
            session.library.call("forward", session.handle, self.handle)

    def close(self):
        self.session.library.call("problem_free", self.handle)
        self.handle = None

    def buffer(self, name, copy=0):
        """The bytes of q, k, v, out, dout, bias, ... as a writable ctypes array, without a copy."""
        size = c_double()
        address = self.session.library.call("buffer", self.handle, name.encode(), copy, ctypes.byref(size))
        if not address:
            raise NativeError(f"{self.case.key} has no {name}")
        return (ctypes.c_char * int(size.value)).from_address(address)

    def declines(self, contestant):
        return self.session.library.call("declines", contestant.encode(), ctypes.byref(self.spec)).decode()

    def kernel(self):
        return self.session.library.call("kernel", self.handle).decode()

    def run(self, contestant, iterations):
        return self.session.library.call("run", self.session.handle, self.handle, contestant.encode(), iterations)

    def error(self, *results):
        """Largest error against float64 of (out) or (dq, dk, dv), given as addresses; own buffers where absent."""
        names = ("dq", "dk", "dv") if self.case.backward else ("out",)
        addresses = results or [ctypes.addressof(self.buffer(name)) for name in names]
        check = "backward_error" if self.case.backward else "forward_error"
        return self.session.library.call(check, self.handle, *addresses)
