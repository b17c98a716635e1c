"""The native core: kernels per instruction set, the program that walks them, and pooled memory. How it works: native/README.md."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from typing_extensions import Buffer as _Buffer

# What offers the buffer protocol, C-contiguous: numpy.ndarray, bytearray, Buffer.
ReadableBuffer: TypeAlias = _Buffer | np.ndarray[Any, Any]
WritableBuffer: TypeAlias = _Buffer | np.ndarray[Any, Any]

# kind (of step_kinds(), or -1), parameters (int64), places (int64 triples), callable(arena, inputs, outputs): what runs for kind -1, and where
# the kernel declines; or None.
Step: TypeAlias = tuple[int, ReadableBuffer | None, ReadableBuffer | None, Callable[[Any, Any, Any], object] | None]

isa_error: str | None
"""What is wrong with the environment variable RML_ISA, or None. The module then runs the baseline."""

def isa_names() -> tuple[str, ...]:
    """Returns the names of the instruction sets that this machine has and that are compiled in, widest last."""

def current_isa() -> str:
    """Returns the instruction set chosen at import: the widest, or the one that RML_ISA names."""

def isa_info(isa: str | None = None) -> dict[str, Any]:
    """Returns facts of an instruction set (None: the current one): name, lanes (f32 of a vector), gemm_mr and gemm_nr (the GEMM tile),
    available (isa_names).
    """

def step_kinds() -> dict[str, int]:
    """Returns the kind of every step by name. Parameters and operands of each: native/kernels/steps.def."""

def packed_b_floats(k: int, n: int, isa: str | None = None) -> int:
    """Returns how many f32 the packed form of a [k, n] matrix has. Packed forms differ between instruction sets."""

def pack_b(
    dst: WritableBuffer,
    b: ReadableBuffer,
    k: int,
    n: int,
    row_stride: int,
    col_stride: int,
    isa: str | None = None,
    *,
    taps: int = 1,
    tap_stride: int = 0,
    scale: ReadableBuffer | None = None,
) -> None:
    """Packs the f32 [k, n] matrix at the beginning of ``b``, strides in elements, for the steps gemm and conv.

    The k rows are ``taps`` blocks, ``tap_stride`` apart. ``scale`` is a factor per column, f64 [n]: a product is rounded once.

    Raises:
        ValueError: a buffer is too small, a size or stride negative, or k no multiple of ``taps``.
    """

def peak_flops(seconds: float, isa: str | None = None) -> float:
    """Returns the FLOP/s that one core reaches on independent multiply-adds, measured for about so long. The GIL is released."""

@final
class Program:
    """An immutable list of steps. Any number of threads may run one program at once, each with its own arena and outputs."""

    def __new__(
        cls,
        steps: Sequence[Step],
        constants: Sequence[ReadableBuffer],
        n_inputs: int,
        n_outputs: int,
        arena_bytes: int,
        isa: str | None = None,
        flush_denormals: bool = False,
    ) -> Program:
        """Returns a program after checking every step; ``constants`` are kept alive, not copied.

        An operand's place is a triple (space, index, byte offset): space -1 absent, 0 arena (index unused), 1 input, 2 output, 3 constant.

        Args:
            steps: in the order in which they run.
            constants: what places in space 3 refer to.
            n_inputs: how many inputs run() takes.
            n_outputs: how many outputs run() takes.
            arena_bytes: how large an arena run() takes at least.
            isa: instruction set whose kernels run (None: the current one). Packed operands must be packed for the same one.
            flush_denormals: whether kernels treat denormal numbers as zero during a run.

        Raises:
            ValueError: a step has an unknown kind, a wrong number of parameters or operands, or a place outside of what there is. Whether
                kernels stay inside of their operands is up to the parameters: that the caller must get right.
        """

    def run(self, arena: WritableBuffer, inputs: Sequence[ReadableBuffer], outputs: Sequence[WritableBuffer], threads: int, /) -> None:
        """Walks the steps on ``threads`` threads (1 to 256), the caller's one of them, with the GIL released while kernels run.

        While another run has the worker threads, this one walks on the caller's thread alone; results have the same bits. The exception of
        a Python step ends the run at once and propagates; outputs are then incomplete.

        Raises:
            ValueError: a buffer is missing, too small, not contiguous or (arena, outputs) read-only.
        """

    def run_profiled(
        self,
        arena: WritableBuffer,
        inputs: Sequence[ReadableBuffer],
        outputs: Sequence[WritableBuffer],
        threads: int,
        times_ns: WritableBuffer,
        /,
    ) -> None:
        """Runs, and writes the nanoseconds of each step, with its barrier, to the int64 buffer ``times_ns``."""

@final
class Buffer:
    """Writable memory of a BufferPool (buffer protocol). It goes back to the pool when the last reference, views included, dies."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BufferPool:
    """Keeps memory blocks for the next taker of the same size (in steps of 64 bytes). Thread-safe."""

    def __new__(cls) -> BufferPool: ...
    @property
    def hits(self) -> int:
        """Blocks that take() found in the pool."""

    @property
    def misses(self) -> int:
        """Blocks that take() had to allocate."""

    @property
    def bytes_held(self) -> int:
        """Bytes of free blocks in the pool."""

    @property
    def bytes_in_use(self) -> int:
        """Bytes of blocks taken and not yet given back."""

    def take(self, nbytes: int, /) -> Buffer:
        """Returns memory, contents undefined: 64-byte aligned; from 2 MB on 2 MB-aligned, on huge pages where the system grants them.

        Raises:
            ValueError: nbytes is negative.
            MemoryError: there is not so much memory.
        """

    def trim(self) -> None:
        """Gives the free blocks back to the system."""
