"""The outputs of a Swin and the arguments of its calls as JSON, for saved models.

A class stands in JSON by its name. It is looked up among the classes of modules that the program has imported already: a file imports
nothing, and only classes of outputs are called.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from .._calls.arguments import OfClass
from .._calls.outputs import LAYOUTS, Absent, Sides, Structure, Tensor
from .._common.errors import ArgumentError

#: Containers that have their own names; others have the name of their module, too.
PLAIN = {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}


def structure_as_json(structure: Any) -> Any:
    """A structure as JSON.

    Raises:
        ArgumentError: for a container that cannot be found by its name, or whose class is none of outputs.
    """
    if structure is None:
        return None
    if isinstance(structure, Tensor):
        return {"output": structure.output, "layout": structure.layout}
    if isinstance(structure, Absent):
        return {"absent": structure.place}
    if isinstance(structure, Sides):
        return {"sides": list(structure.outputs)} | ({} if structure.axis is None else {"axis": structure.axis})
    kind = structure.kind
    if not _is_of_outputs(kind):
        raise ArgumentError(f"a {kind.__name__}, which a Swin of this model gives, is no class of outputs that can be saved")
    return {"kind": class_name(kind), "parts": [[key, structure_as_json(part)] for key, part in structure.parts.items()]}


def structure_from_json(description: Any) -> Any:
    """The structure that :func:`structure_as_json` gave.

    Raises:
        ArgumentError: for a description that it does not give, and for a class that the program does not know.
    """
    if description is None:
        return None
    fields = dict(description) if isinstance(description, Mapping) else {}
    if set(fields) == {"output", "layout"} and isinstance(fields["output"], str) and fields["layout"] in list(LAYOUTS):
        return Tensor(output=fields["output"], layout=fields["layout"])
    if set(fields) == {"absent"} and isinstance(fields["absent"], str):
        return Absent(fields["absent"])
    sides = fields.get("sides")
    axis = fields.get("axis")
    if set(fields) - {"axis"} == {"sides"} and axis in (None, 0, 1) and isinstance(sides, list) and all(isinstance(name, str) for name in sides):
        return Sides(outputs=tuple(sides), axis=axis)
    if set(fields) == {"kind", "parts"} and isinstance(fields["parts"], list):
        kind = class_named(fields["kind"])
        if not _is_of_outputs(kind):
            raise ArgumentError(f"`{fields['kind']}` is no class of outputs")
        return Structure(kind, {_key(part): structure_from_json(part[1]) for part in fields["parts"]})
    raise ArgumentError(f"`{description}` describes no output of a Swin")


def arguments_as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the calls of a Swin as JSON. Of an object the class alone is kept, which is all that calls are compared by."""
    return {name: _argument(value) for name, value in arguments.items()}


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"class": class_name(value.kind if isinstance(value, OfClass) else type(value))}


def arguments_from_json(description: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that :func:`arguments_as_json` gave."""
    found = {}
    for name, value in description.items():
        if isinstance(value, Mapping) and set(value) == {"class"}:
            value = OfClass(class_named(value["class"]))
        elif isinstance(value, Mapping | list):
            raise ArgumentError(f"`{name}: {value}` is no argument of a Swin")
        found[name] = value
    return found


def class_name(kind: type) -> str:
    """The name by which :func:`class_named` finds a class.

    Raises:
        ArgumentError: for a class inside of a function or of another class.
    """
    for name, plain in PLAIN.items():
        if kind is plain:
            return name
    name = f"{kind.__module__}.{kind.__qualname__}"
    module = sys.modules.get(kind.__module__)
    if module is None or vars(module).get(kind.__qualname__) is not kind:
        raise ArgumentError(
            f"a {kind.__name__}, which a Swin of this model gives or takes, cannot be saved: it is not found as `{name}`; define the "
            "class at the top level of a module"
        )
    return name


def class_named(name: Any) -> type:
    """The class of a name, in a module that is imported already.

    Raises:
        ArgumentError: if there is none.
    """
    if name in list(PLAIN):
        return PLAIN[name]
    module, _, last = str(name).rpartition(".")
    kind = vars(sys.modules[module]).get(last) if module in sys.modules else None
    if isinstance(kind, type):
        return kind
    raise ArgumentError(
        f"`{name}` is no class of outputs or arguments that this program has imported; import the module that defines it, in the version "
        "that wrote the model"
    )


def _is_of_outputs(kind: type) -> bool:
    """Whether a class is a container, or a batch with a mask: nothing else is called to make outputs."""
    return issubclass(kind, tuple | list | dict) or callable(getattr(kind, "decompose", None))


def _key(part: Any) -> str | int:
    if isinstance(part, list) and len(part) == 2 and isinstance(part[0], str | int):
        return part[0]
    raise ArgumentError(f"`{part}` is no part of the outputs of a Swin")
