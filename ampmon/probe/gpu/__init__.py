"""Triton kernels that measure gradients on a GPU, compiled in another process and launched through the GPU's driver."""
