"""Classes and functions by which a pickle holds a model with quantized or prepared Swins, beside those of :mod:`swinq.torch`.

A pickle names this module, so that its names stay. Programs have no other use for them.
"""

from ._calls.arguments import OfClass
from ._calls.matching import Masked
from ._calls.outputs import Absent, Sides, Structure, Tensor
from ._common.public import name_by
from ._replacing.in_place import Applied, InPlace
from ._replacing.module import Engines, swin_module
from ._replacing.replacement import Unsaved
from ._training.parameters import ParameterPart
from ._training.prepared import Template, template
from ._training.scales import Codes, Scale, Scales, WeightScale

__all__ = [
    "Absent",
    "Applied",
    "Codes",
    "Engines",
    "InPlace",
    "Masked",
    "OfClass",
    "ParameterPart",
    "Scale",
    "Scales",
    "Sides",
    "Structure",
    "Template",
    "Tensor",
    "Unsaved",
    "WeightScale",
    "swin_module",
    "template",
]

name_by(__name__, [globals()[name] for name in __all__])
