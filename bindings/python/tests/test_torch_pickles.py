"""The names that pickles of quantized and prepared Swins hold: those of public modules only, so that private files may move."""

import pickle
import pickletools
import unittest
import warnings

from needed import need

need("timm", "torch", "transformers")

import torch
from torch_models import SWINS, images
from torch_saved import X, Case, quantized, small, values
from torch_support import Inside

import swinq.pickled
import swinq.torch

#: The public modules of the package that have classes.
PUBLIC = {"swinq", "swinq.torch", "swinq.transformers", "swinq.pickled"}


def names_in(data: bytes) -> set[tuple[str, str]]:
    """The modules and the names of a pickle of protocol 2, which ``torch.save`` writes."""
    return {tuple(argument.split(" ")) for op, argument, _ in pickletools.genops(data) if op.name == "GLOBAL"}


class Pickles(Case):
    def own_names(self, value) -> set[str]:
        """The names of swinq in a pickle of ``value``, all of public modules."""
        own = {(module, name) for module, name in names_in(pickle.dumps(value, protocol=2)) if module.partition(".")[0] == "swinq"}
        self.assertEqual({module for module, _ in own} - PUBLIC, set())
        return {name for _, name in own}

    def test_a_quantized_program(self):
        program = quantized()
        self.assertEqual(self.own_names(program), {"Engines", "swin_module", "Structure", "Tensor"})
        self.assert_equal(values(pickle.loads(pickle.dumps(program)), X), values(program, X))

    def test_a_prepared_program(self):
        program = small()
        report = swinq.torch.prepare(program, [X], learned="all")
        scales = {"Codes", "Scale", "Scales", "WeightScale"}
        self.assertEqual(self.own_names(program), {"PreparedSwin", "ParameterPart", "template", "Structure", "Tensor"} | scales)
        self.assert_equal(values(pickle.loads(pickle.dumps(program)).eval(), X), values(program.eval(), X))
        report.model = None
        self.assertEqual(self.own_names(report), {"Report", "Replaced"})

    def test_the_parts_of_a_program_of_transformers(self):
        # The module itself was called, and has hooks of transformers that cannot be pickled.
        program = Inside(SWINS["transformers backbone"]())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            swinq.torch.quantize(program, lambda model: model.backbone(images(1), output_hidden_states=True))
        swin = program.backbone
        self.assertEqual(self.own_names([swin._outputs, swin.save_pretrained]), {"Structure", "Tensor", "Absent", "Unsaved"})

    def test_every_name_is_found(self):
        for module in (swinq.torch, swinq.pickled):
            for name in module.__all__:
                value = getattr(module, name)
                self.assertEqual((value.__module__, value.__qualname__), (module.__name__, name))
                self.assertIs(pickle.loads(pickle.dumps(value)), value)
        modules = [kind for kind in vars(swinq.pickled).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
        self.assertEqual({kind.__name__ for kind in modules}, {"Codes", "Scale", "Scales", "WeightScale"})


if __name__ == "__main__":
    unittest.main()
