"""The model zoo: one ``*_models.py`` per framework, and :mod:`exporters.models.zoo` that finds, lists and exports them."""
