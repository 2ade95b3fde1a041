// Tensor helpers for the device's operators and copies.
#pragma once

#include "device.h"

#include <ATen/core/Tensor.h>

namespace emulated {

bool on_device(const at::Tensor& tensor);
// The same memory at its host address. Not owned, because blocks are freed in the stream's order.
at::Tensor as_host(const at::Tensor& tensor);
// Memory for a tensor of this size, layout and dtype.
at::Tensor make(const at::Tensor& like);
// Resizes the tensor, with more memory if needed.
void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace emulated
