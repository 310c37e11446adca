"""Types of arguments. heed takes arrays of any library; a result is of the library of its first input."""

from typing import Any, TypeVar

#: NumPy arrays, PyTorch tensors on the CPU, anything with __dlpack__ or the buffer protocol; for one axis, a list.
ArrayLike = Any
#: The same, and the type of the result is that of the argument.
Array = TypeVar("Array")
