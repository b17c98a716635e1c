"""Exporters: framework model in; graph JSON, weights and golden file out. One package per framework, the parts they share beside them.

No framework is imported before an export needs it.
"""

__version__ = "0.1.0"
