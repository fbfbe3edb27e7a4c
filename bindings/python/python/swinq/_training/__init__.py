"""Quantization-aware training in PyTorch: the module in the place of a Swin, fake quantization, scales, export."""
