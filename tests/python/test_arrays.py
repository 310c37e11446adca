"""Arrays of any library: no copies, any strides, clear refusals."""

import array
import ctypes
import json

import numpy as np
import pytest

import heed
import plain


def address(x):
    return x.__array_interface__["data"][0]


class OnlyDlpack:
    """A library that heed has never heard of."""

    def __init__(self, array, max_version=True):
        self.array = array
        self.asked = []
        self.max_version = max_version

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        if not self.max_version and arguments:
            raise TypeError("unexpected keyword argument")
        self.asked.append(arguments)
        return self.array.__dlpack__(**arguments)


def spans(x):
    """First and last address that an array touches."""
    low = high = address(x)
    for extent, stride in zip(x.shape, x.strides):
        low, high = low + min(0, (extent - 1) * stride), high + max(0, (extent - 1) * stride)
    return low, high


def test_results_lie_where_out_says(small):
    """The engine writes into the caller's memory: what stood there is replaced, byte for byte at its address."""
    q, k, v = small()
    memory = np.full((2, 5, 6, 8), np.nan, np.float32)
    out = memory[:, :, 1:5].transpose(0, 2, 1, 3)  # [B,H,T,E] inside a larger [B,T,6,E]
    assert heed.attend(q, k, v, out=out) is out
    through_address = np.ctypeslib.as_array(
        ctypes.cast(address(memory), ctypes.POINTER(ctypes.c_float)), shape=memory.shape
    )
    assert np.allclose(through_address[:, :, 1:5].transpose(0, 2, 1, 3), plain.attention(q, k, v)["out"], atol=1e-5)
    assert np.isnan(memory[:, :, 0]).all() and np.isnan(memory[:, :, 5]).all()


def test_inputs_are_read_where_they_lie(small):
    """NaN between the elements of a view would show in a copy of the memory around it, and protected pages would not be
    readable; here: a change of the caller's memory between two calls on the same object shows in the second result."""
    q, k, v = small()
    first = heed.attend(q, k, v)
    before = address(v)
    v[...] = 1
    assert address(v) == before and not np.array_equal(first, heed.attend(q, k, v))
    assert np.allclose(heed.attend(q, k, v), 1)


def test_nothing_of_an_input_is_copied(rng):
    """A copy of any of them would need memory: 1 GiB keys seen through a stride of 0 take 4 KiB."""
    resource = pytest.importorskip("resource")
    row = rng.standard_normal((1, 1, 1, 64)).astype("float32")
    keys = np.broadcast_to(row, (1, 1, 4 << 20, 64))  # seen as 1 GiB
    q = np.ascontiguousarray(row)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = heed.attend(q, keys, keys)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert np.allclose(out, row, atol=0.01)  # float32 sums of four million terms
    assert grown < 200 << 10, f"{grown} KiB more"


VIEWS = {
    "contiguous": lambda x: x.copy(),
    "transposed": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "inner stride": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1],
    "batch backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "fortran": np.asfortranarray,
    "dlpack": OnlyDlpack,
    "dlpack of before 1.0": lambda x: OnlyDlpack(x, max_version=False),
    "memoryview": lambda x: memoryview(x),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_any_strides_and_protocols(small, view, dtype):
    q, k, v = small(dtype)
    seen = [VIEWS[view](x) for x in (q, k, v)]
    expected = heed.attend(q, k, v)
    got = heed.attend(*seen)
    assert isinstance(got, np.ndarray) and got.dtype == q.dtype
    assert np.array_equal(got, expected) or np.allclose(got, expected, atol=1e-6 if dtype == "float32" else 1e-3)


def test_stride_zero_is_fine_to_read_and_refused_to_write(small):
    q, k, v = small()
    same = np.broadcast_to(k[:, :1], k.shape)
    assert np.array_equal(heed.attend(q, same, v), heed.attend(q, same.copy(), v))
    with pytest.raises(ValueError, match=r"\[attend\] out: "):
        heed.attend(q, k, v, out=np.broadcast_to(np.empty((2, 1, 5, 8), np.float32), (2, 4, 5, 8)))
    writable = np.lib.stride_tricks.as_strided(np.empty(8, np.float32), (2, 4, 5, 8), (0, 0, 0, 4))
    with pytest.raises(ValueError, match=r"\[attend\] out: "):
        heed.attend(q, k, v, out=writable)


def test_negative_strides_are_written(small):
    q, k, v = small()
    memory = np.empty((2, 4, 5, 8), np.float32)
    heed.attend(q, k, v, out=memory[:, ::-1, ::-1])
    assert np.array_equal(memory[:, ::-1, ::-1], heed.attend(q, k, v))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
        lambda x: memoryview(x.tobytes()),
        lambda x: OnlyDlpack(np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)),
    ],
    ids=["NumPy", "bytes", "DLPack"],
)
def test_read_only_is_refused_as_output(small, make):
    q, k, v = small()
    with pytest.raises(ValueError, match=r"\[attend\] out: expected an array that may be written, got a read-only one"):
        heed.attend(q, k, v, out=make(np.empty((2, 4, 5, 8), np.float32)))


def test_output_over_input_is_refused(small):
    q, k, v = small()
    with pytest.raises(heed.Error, match="out: expected memory apart from q"):
        heed.attend(q, k, v, out=q)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda q: q.astype("int32"), r"\[attend\] q: .*f32.*i32"),
        (lambda q: q.astype("complex64"), r"\[attend\] q: expected elements of a type that heed knows.*complex64"),
        (lambda q: q.astype(">f4"), r"\[attend\] q: expected elements in this machine's byte order, got >f4"),
        (lambda q: q.astype("longdouble"), r"\[attend\] q: expected elements of a type that heed knows"),
        (lambda q: q.astype("O"), r"\[attend\] q: expected elements of a type that heed knows.*object"),
        (lambda q: q.astype("float64"), r"\[attend\] k: .*f64.*f32"),
        (lambda q: q[0], r"\[attend\] q: expected 4 axes"),
        (lambda q: q[:, :3], r"\[attend\] k: expected 3 or 1 heads for the 3 of q, got 2"),
        (lambda q: q[..., :5], r"\[attend\] k: expected head size 5"),
        (lambda q: q[None, None, None, None, None], r"\[attend\] q: expected at most 8 axes, got 9"),
        (
            lambda q: np.zeros(q.size * 5, "u1")[1 : q.size * 4 + 1].view("f4").reshape(q.shape),
            r"\[attend\] q: expected memory on a multiple of the element size",
        ),
        (
            lambda q: np.zeros(q.shape, [("x", "f4"), ("y", "u1")])["x"],
            r"\[attend\] q: expected strides of whole elements",
        ),
        (lambda q: [[1.0, 2.0]], r"\[attend\] q: expected an array or a list of numbers, got list"),
    ],
)
def test_wrong_arrays(small, change, message):
    q, k, v = small()
    with pytest.raises(ValueError, match=message):
        heed.attend(change(q), k, v)


def test_wrong_arguments(small):
    q, k, v = small()
    with pytest.raises(TypeError, match=r"\[attend\] q: expected an array, got str"):
        heed.attend("q", k, v)
    with pytest.raises(TypeError, match="unexpected keyword argument 'casual'"):
        heed.attend(q, k, v, casual=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'casual'"):
        heed.attend(q, k, v, casual=None)
    with pytest.raises(TypeError):
        heed.attend(q, k)
    for options, message in [
        ({"align": "left"}, r"align: expected one of 'bottom_right', 'top_left', got 'left'"),
        ({"window": 3}, r"window: expected \(left, right\)"),
        ({"window": (1.5, 0)}, r"window: expected a whole number, got 1.5"),
        ({"scale": "big"}, r"scale: expected a number, got 'big'"),
        ({"dropout": 1.0}, r"\[attend\] dropout"),
        ({"dropout": 0.1, "seed": -1}, r"seed: expected a whole number from 0"),
        ({"dropout": 0.1, "dropout_offset": 2**32}, r"dropout_offset: expected a number below 2\^32"),
        ({"allow": np.ones((2, 4, 5, 6), bool)}, r"\[attend\] allow: expected each axis of \[2, 4, 5, 7\] or 1"),
        ({"key_lengths": [1, 9]}, r"\[attend\] key_lengths"),
        ({"key_lengths": [1.5, 2]}, r"\[attend\] key_lengths: .*i64.*f64"),
        ({"key_lengths": [2**64, 2]}, r"\[attend\] key_lengths: expected whole numbers of 64 bits, got 1844674407"),
        ({"kernel": "fastest"}, r"\[attend\] kernel"),
        ({"pattern": "casual"}, r"casual"),
        ({"pattern": 3}, r"pattern: expected a heed.Pattern or its text, got 3"),
        ({"context": 3}, r"context: expected a heed.Context, got 3"),
        ({"causal": "yes"}, r"causal: expected True or False, got 'yes'"),
    ]:
        with pytest.raises(ValueError, match=message):
            heed.attend(q, k, v, **options)


def test_none_means_not_given(small):
    q, k, v = small()
    names = [
        "scale",
        "causal",
        "window",
        "allow",
        "bias",
        "sinks",
        "lengths",
        "pattern",
        "dropout",
        "kernel",
        "out",
        "lse",
        "context",
    ]
    assert np.array_equal(heed.attend(q, k, v, **{name: None for name in names}), heed.attend(q, k, v))


def test_errors_are_value_errors_and_os_errors(tmp_path):
    assert issubclass(heed.Error, ValueError) and issubclass(heed.FileError, OSError)
    with pytest.raises(OSError, match="absent.safetensors"):
        heed.SafetensorsFile(tmp_path / "absent.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(heed.FileError, match="broken.safetensors"):
        heed.SafetensorsFile(tmp_path / "broken.safetensors")


def test_a_refused_call_writes_nothing(small):
    q, k, v = small()
    out = np.full((2, 4, 5, 8), 7, np.float32)
    with pytest.raises(ValueError):
        heed.attend(q, k, v[:, :, :6], out=out)
    assert (out == 7).all()


def test_bfloat16_of_ml_dtypes(small):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in small())
    out = heed.attend(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    expected = plain.attention(*(x.astype("float64") for x in (q, k, v)))["out"]
    assert np.abs(out.astype("float64") - expected).max() < 2**-7


def test_lists_and_the_buffer_protocol_for_small_arguments(small):
    q, k, v = small()
    expected = heed.attend(q, k, v, key_lengths=np.array([3, 6]))
    assert np.array_equal(heed.attend(q, k, v, key_lengths=[3, 6]), expected)
    assert np.array_equal(heed.attend(q, k, v, key_lengths=(3, 6)), expected)
    assert np.array_equal(heed.attend(q, k, v, key_lengths=array.array("i", [3, 6])), expected)
    slopes = heed.alibi_slopes(4)
    assert np.array_equal(
        heed.attend(q, k, v, alibi_slopes=slopes), heed.attend(q, k, v, alibi_slopes=np.array(slopes))
    )
    with pytest.raises(ValueError, match="expected an array or a list of numbers, got str"):
        heed.attend(q, k, v, key_lengths=["3", "6"])


def test_by_position_and_by_name_is_the_same_call(small):
    q, k, v = small()
    expected, sums = heed.attend(q, k, v, lse=True, causal=True)
    out, lse = heed.attend(v=v, k=k, q=q, lse=True, causal=True)
    assert (out == expected).all() and (lse == sums).all()
    ones = np.ones_like(out)
    by_position = heed.attend_backward(q, k, v, out, lse, ones, causal=True)
    by_name = heed.attend_backward(q, k, v, out, causal=True, dout=ones, lse=lse)
    assert all((a == b).all() for a, b in zip(by_position[:3], by_name[:3]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'causl'"):
        heed.attend(q, k, v, causl=True)
    with pytest.raises(TypeError):
        heed.attend(q, k, v, q=q)
    with pytest.raises(TypeError):
        heed.attend(q, k)


class Named(np.ndarray):
    """A subclass with fields of its own behind NumPy's."""

    name = "keys"


def test_kinds_of_numpy_arrays(small):
    q, k, v = small()
    expected = heed.attend(q, k, v)
    assert (heed.attend(q.view(Named), k.view(Named), np.ma.masked_array(v)) == expected).all()
    positions = np.tile(np.arange(2, 7), (2, 1))
    for integer in ("int32", "int64", "longlong"):
        assert (heed.attend(q, k, v, query_positions=positions.astype(integer)) == expected).all()
    with pytest.raises(ValueError, match=r"\[attend\] k: .*byte order"):
        heed.attend(q, k.astype(">f4"), v)


def test_files_with_numbers_of_8_bits(tmp_path):
    """One such tensor keeps nobody from the others."""
    path = tmp_path / "mixed.safetensors"
    header = {
        "plain": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "small": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [8, 12]},
        "wide": {"dtype": "F8_E5M2", "shape": [4], "data_offsets": [12, 16]},
        "complex": {"dtype": "C64", "shape": [1], "data_offsets": [16, 24]},
    }
    text = json.dumps(header).encode()
    data = np.float32([1, 2]).tobytes() + b"\x38\xb8\x7e\x01" + b"\x3c\xbc\x7b\x7c" + b"12345678"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    file = heed.SafetensorsFile(path)
    assert file["plain"].tolist() == [1, 2]
    assert file["small"].tolist() == [[1, -1], [448, 2**-9]] and file.dtype("small") == "f32"
    assert file["wide"].tolist() == [1, -1, 57344, float("inf")]
    assert file.shape("complex") == (1,)
    with pytest.raises(heed.FileError, match="'complex': expected a type that heed can read, got C64"):
        file["complex"]


def test_a_view_of_a_file_is_the_file(tmp_path):
    path = tmp_path / "some.safetensors"
    given = {"x": np.arange(6, dtype="float32").reshape(2, 3), "n": np.array(7), "b": np.array([True, False]), "e": np.ones((0, 4))}
    heed.write_safetensors(path, given)
    file = heed.SafetensorsFile(path)
    views = {name: file.view(name) for name in file}
    del file
    for name, array in given.items():
        assert views[name].dtype == array.dtype and views[name].shape == array.shape
        np.testing.assert_array_equal(views[name], array)
        assert not views[name].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        views["x"][0, 0] = 1
    # As an argument, and behind the last name of the file, it is an array like others.
    out = heed.matmul(views["x"], given["x"].T)
    np.testing.assert_array_equal(out, given["x"] @ given["x"].T)


def test_a_view_of_what_would_be_converted_is_refused(tmp_path):
    path = tmp_path / "mixed.safetensors"
    text = json.dumps({"s": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"abc")
    with pytest.raises(heed.FileError, match="as they lie in the file, got F8_E4M3"):
        heed.SafetensorsFile(path).view("s")


def test_bfloat16_of_a_file(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "b.safetensors"
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    heed.write_safetensors(path, {"x": x})
    file = heed.SafetensorsFile(path)
    assert file.view("x").dtype == x.dtype and file.view("x").tolist() == file["x"].tolist() == x.tolist()
