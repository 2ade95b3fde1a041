// Tensors of the device as both its operators and its copies need them.
#pragma once

#include "device.h"

#include <ATen/core/Tensor.h>

namespace emulated {

bool on_device(const at::Tensor& tensor);
// The same memory as the host reaches it. Without an owner: blocks are given back in the stream's order.
at::Tensor as_host(const at::Tensor& tensor);
// Memory for a tensor of this size, layout and dtype.
at::Tensor make(const at::Tensor& like);
// Give the tensor another size, with more memory where it needs that.
void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace emulated
