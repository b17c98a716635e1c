"""Element types and tensor types, as the graph format names them."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

__all__ = ["DType", "TensorType"]


class DType(enum.Enum):
    """Element type of a tensor. The value is the name used in files: ``f32``, ``i64``, ``bool``..."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    BF16 = "bf16"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype:
        """NumPy's dtype for the storage; bf16 has none in NumPy, its 16 bits are carried as uint16."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F64, DType.F16, DType.BF16)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Returns the DType of a NumPy dtype (or anything ``np.dtype`` accepts); raises KeyError where there is none."""
        return _FROM_NUMPY[np.dtype(dtype)]  # type: ignore[call-overload]

    def __str__(self) -> str:
        return self.value


_NUMPY: dict[DType, np.dtype] = {
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.BOOL: np.dtype(np.bool_),
}
_FROM_NUMPY: dict[np.dtype, DType] = {numpy: dtype for dtype, numpy in _NUMPY.items() if dtype is not DType.BF16}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and static shape. Prints as ``f32[1,3,224,224]``; a 0-d tensor prints as ``f32[]``."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; 1 for a 0-d tensor, 0 where any dim is 0."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @classmethod
    def of(cls, array: np.ndarray) -> TensorType:
        """Returns the type of a NumPy array."""
        return cls(DType.of(array.dtype), array.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
