"""TensorArrays, which TensorFlow keeps as lists of tensors. Their lengths are known at export, so they become plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from exporters.from_tf.table import TABLE, Context, Known, RefusalError, TensorList, Value, dtype_of
from rml_exec.types import DType

__all__ = ["element", "stack", "starts", "written"]


def _list(value: Value) -> TensorList:
    if not isinstance(value, TensorList):
        raise RefusalError("the list of tensors is not one that TensorArray makes")
    return value


def _one(value: Value) -> str | Known:
    if not isinstance(value, str | Known):
        raise RefusalError("an element of a list must be a tensor")
    return value


def _element_type(ctx: Context) -> DType:
    return dtype_of(ctx.attr("element_dtype").as_numpy_dtype)


def _element_shape(shape: Value) -> tuple[int, ...] | None:
    """Returns the shape in a list's ``element_shape`` operand, None where it is not known or has unknown sizes."""
    if not isinstance(shape, Known) or shape.array.ndim != 1 or (shape.array < 0).any():
        return None
    return tuple(int(size) for size in shape.array)


def stack(ctx: Context, tensors: TensorList) -> Value:
    """Returns all elements along a new leading axis; those never written are zeros."""
    if tensors.stacked is not None:
        return tensors.stacked
    if tensors.shape is None:
        raise RefusalError("the shape of the elements of a list is not known")
    whole = (tensors.length, *tensors.shape)
    zero = ctx.constant(np.zeros((), tensors.dtype.numpy))
    if not any(item is not None for item in tensors.items):
        return ctx.add("broadcast", zero, shape=whole)
    row = (1, *tensors.shape)
    rows = [ctx.add("broadcast", zero, shape=row) if item is None else ctx.reshape(item, row) for item in tensors.items]
    return rows[0] if len(rows) == 1 else ctx.add("concat", *rows, axis=0)


def element(ctx: Context, tensors: TensorList, index: int) -> Value:
    """Returns one element."""
    if not 0 <= index < tensors.length:
        raise RefusalError(f"index {index} is out of range for a list of {tensors.length} elements")
    if tensors.stacked is None and (item := tensors.items[index]) is not None:
        return item
    stacked = stack(ctx, tensors) if tensors.stacked is None else tensors.stacked
    shape = ctx.shape(stacked)
    row = ctx.slice(stacked, [index, *(0 for _ in shape[1:])], [index + 1, *shape[1:]])
    return ctx.reshape(row, shape[1:])


def starts(ctx: Context, index: Value, rank: int) -> Value:
    """Returns the ``start`` of a window of a value of this rank: ``index`` along the first axis, 0 along the others."""
    first = ctx.reshape(index, (1,))
    if rank == 1:
        return first
    return ctx.add("concat", first, ctx.constant(np.zeros(rank - 1, ctx.type(index).dtype.numpy)), axis=0)


def written(ctx: Context, tensors: TensorList, index: int) -> Value | None:
    """Returns one element; None for one that was not written, or lies behind the end."""
    if index >= tensors.length or (tensors.stacked is None and tensors.items[index] is None):
        return None
    return element(ctx, tensors, index)


@TABLE.lowers("TensorListReserve", "EmptyTensorList")
def _reserve(ctx: Context, shape: Value, count: Value) -> Value:
    """The operand of EmptyTensorList is a largest length: the list itself has no elements."""
    length = ctx.ints(count, "the length of a list")[0] if ctx.op.type == "TensorListReserve" else 0
    return TensorList(length, _element_type(ctx), _element_shape(shape), items=(None,) * length)


@TABLE.lowers("TensorListFromTensor")
def _from_tensor(ctx: Context, x: Value, shape: Value) -> Value:
    length, *sizes = ctx.shape(x)
    return TensorList(length, ctx.type(x).dtype, tuple(sizes), stacked=_one(x))


@TABLE.lowers("TensorListGetItem")
def _get_item(ctx: Context, tensors: Value, index: Value, shape: Value) -> Value:
    """An index out of range is an error of the run."""
    source = _list(tensors)
    if isinstance(index, Known):
        if source.shape is None and (sizes := _element_shape(shape)) is not None:
            source = replace(source, shape=sizes)
        return element(ctx, source, int(index.array))
    return ctx.add("take", stack(ctx, source), index, axis=0, oob="error", wrap_negative=False, fill_value=None)


@TABLE.lowers("TensorListSetItem")
def _set_item(ctx: Context, tensors: Value, index: Value, item: Value) -> Value:
    target, new = _list(tensors), _one(item)
    shape = ctx.shape(new)
    if isinstance(index, Known):
        position = int(index.array)
        grown = max(target.length, position + 1) if ctx.attr("resize_if_index_out_of_bounds") else target.length
        if not 0 <= position < grown:
            raise RefusalError(f"index {position} is out of range for a list of {target.length} elements")
        items = [*_items(ctx, target), *[None] * (grown - target.length)]
        items[position] = new
        return TensorList(grown, target.dtype, shape, items=tuple(items))
    stacked = stack(ctx, replace(target, shape=shape))
    update = ctx.reshape(new, (1, *shape))
    y = ctx.add("dynamic_update_slice", stacked, update, starts(ctx, index, len(shape) + 1))
    return replace(target, shape=shape, stacked=y, items=())


def _items(ctx: Context, tensors: TensorList) -> list[str | Known | None]:
    if tensors.stacked is None:
        return list(tensors.items)
    return [_one(element(ctx, tensors, index)) for index in range(tensors.length)]


@TABLE.lowers("TensorListPushBack")
def _push_back(ctx: Context, tensors: Value, item: Value) -> Value:
    target, new = _list(tensors), _one(item)
    return TensorList(target.length + 1, target.dtype, ctx.shape(new), items=(*_items(ctx, target), new))


@TABLE.lowers("TensorListStack")
def _stack(ctx: Context, tensors: Value, shape: Value) -> Value:
    source = _list(tensors)
    return stack(ctx, source if source.shape is not None else replace(source, shape=_element_shape(shape)))


@TABLE.lowers("TensorListConcat", "TensorListConcatV2")
def _concat(ctx: Context, tensors: Value, *_: Value) -> Sequence[Value]:
    """The second result holds the lengths of the elements."""
    stacked = stack(ctx, _list(tensors))
    count, *shape = ctx.shape(stacked)
    if not shape:
        raise RefusalError("scalars cannot be concatenated")
    joined = ctx.reshape(stacked, (count * shape[0], *shape[1:]))
    return [joined, ctx.constant(np.full(count, shape[0], np.int64))]


@TABLE.lowers("TensorListGather")
def _gather(ctx: Context, tensors: Value, indices: Value, _: Value) -> Value:
    return ctx.add("take", stack(ctx, _list(tensors)), indices, axis=0, oob="error", wrap_negative=False, fill_value=None)


@TABLE.lowers("TensorListSplit")
def _split(ctx: Context, x: Value, _: Value, lengths: Value) -> Value:
    counts = ctx.ints(lengths, "the lengths")
    if len(set(counts)) != 1:
        raise RefusalError("the elements of a list must have one shape")
    rows = ctx.reshape(x, (len(counts), counts[0], *ctx.shape(x)[1:]))
    return TensorList(len(counts), ctx.type(x).dtype, ctx.shape(rows)[1:], stacked=_one(rows))


@TABLE.lowers("TensorListLength")
def _length(ctx: Context, tensors: Value) -> Value:
    return ctx.size(np.asarray(_list(tensors).length, np.int32))


@TABLE.lowers("TensorListElementShape")
def _shape_of_elements(ctx: Context, tensors: Value) -> Value:
    shape = _list(tensors).shape
    if shape is None:
        raise RefusalError("the shape of the elements of a list is not known")
    return ctx.size(np.asarray(shape, ctx.output_dtype().numpy))


@TABLE.lowers("TensorListResize")
def _resize(ctx: Context, tensors: Value, size: Value) -> Value:
    source, (length,) = _list(tensors), ctx.ints(size, "the length of a list")
    if length == source.length:
        return source
    items = (_items(ctx, source) + [None] * length)[:length]
    return replace(source, length=length, stacked=None, items=tuple(items))
