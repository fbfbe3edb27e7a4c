"""Swins in models of PyTorch, and modules in their places that swinq's engine runs."""
