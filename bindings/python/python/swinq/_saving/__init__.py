"""Models with quantized or prepared Swins as folders."""
