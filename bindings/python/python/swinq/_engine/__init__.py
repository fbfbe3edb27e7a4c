"""Models and engines: calls with images in host memory or on a GPU."""
