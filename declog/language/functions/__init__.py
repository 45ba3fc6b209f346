"""The functions of the language. To add one, write it with a ``@BUILTIN`` line in the right file, and a test.

    operators.py   operators and elementwise functions, on numpy and on torch
    structure.py   aggregates with ``over=``, ranks, sizes, members of families, pass@k
    reduced.py     reductions of one column, with ``over=``
    text.py        functions of texts, and labels
    user.py        ``@declog.function``, for functions of users and installed packages
    rules.py       the shared typing rules
    base.py        the class of a function, and the registry

Nothing here knows plans or recorders.
"""

from declog.language.functions import operators, structure, text
from declog.language.functions.base import BUILTIN, DEFAULT, Function, FunctionOf, Functions, Param
from declog.language.functions.rules import Call
from declog.language.functions.user import function
from declog.registry import REQUIRED

__all__ = [
    "BUILTIN",
    "DEFAULT",
    "REQUIRED",
    "Call",
    "Function",
    "FunctionOf",
    "Functions",
    "Param",
    "function",
    "operators",
    "structure",
    "text",
]
