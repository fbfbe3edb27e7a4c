"""The functions of the package that need no PyTorch: open, quantize, evaluate."""
