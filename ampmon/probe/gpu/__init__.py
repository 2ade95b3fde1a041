"""The kernels that measure gradients on a GPU: written in Triton, compiled elsewhere, launched by the GPU's driver."""
