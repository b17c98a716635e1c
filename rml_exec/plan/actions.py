"""The records an execution plan consists of."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Action", "ActionKind"]


class ActionKind(enum.Enum):
    """What one step of a plan does."""

    LOCK_INPUT = "lock_input"
    UNLOCK_INPUT = "unlock_input"
    LOCK_CONSTANT = "lock_constant"
    UNLOCK_CONSTANT = "unlock_constant"
    ALLOCATE_BUFFER = "allocate_buffer"
    DELETE_BUFFER = "delete_buffer"
    CREATE_SHAPE = "create_shape"
    DELETE_SHAPE = "delete_shape"
    ALLOCATE_TEMPORARY = "allocate_temporary"
    DELETE_TEMPORARY = "delete_temporary"
    EXECUTE_NODE = "execute_node"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan. Prints as ``allocate_buffer h 64 B, reuses x``.

    Attributes:
        kind: what is done.
        name: the value it is done to; for a temporary and for ``execute_node``, the node.
        bytes: size of the value or temporary; 0 for a view, which holds no storage, and where size means nothing (lock, execute).
        node_index: the node that it is done for, before or after it runs.
        reuses: of an allocation: the operand whose storage the value takes over.
        views: of an allocation: the value whose storage it looks into; that may be an input or a constant.
    """

    kind: ActionKind
    name: str
    bytes: int
    node_index: int
    reuses: str | None = None
    views: str | None = None

    def __str__(self) -> str:
        size = f" {self.bytes} B" if self.bytes else ""
        where = f", reuses {self.reuses}" if self.reuses else f", views {self.views}" if self.views else ""
        return f"{self.kind} {self.name}{size}{where}"
