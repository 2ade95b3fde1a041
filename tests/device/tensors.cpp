// Makes, views, copies and reads tensors of the device, and sets autocast's rules for them.
#include "tensors.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace emulated {

using at::Tensor;

bool on_device(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == KEY;
}

Tensor as_host(const Tensor& tensor) {
  const auto* base = static_cast<const char*>(tensor.storage().data());
  auto* at = static_cast<char*>(host_address(base));
  const auto offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return at::from_blob(
      at == nullptr ? nullptr : at + offset, tensor.sizes(), tensor.strides(),
      tensor.options().device(c10::kCPU).requires_grad(false));
}

Tensor make(const Tensor& like) {
  return at::detail::empty_strided_generic(
      like.sizes(), like.strides(), device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      like.scalar_type());
}

void resize(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides);
  const auto bytes = at::detail::computeStorageNbytes(
      sizes, strides, tensor.itemsize(), static_cast<size_t>(tensor.storage_offset()));
  const auto& storage = tensor.storage();
  if (bytes > storage.nbytes()) {
    auto larger = device_allocator()->allocate(bytes);
    const auto old = storage.nbytes();
    enqueue(current_stream(), [to = host_address(larger.get()), from = host_address(storage.data()), old] {
      std::memcpy(to, from, old);
    });
    storage.set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
}

namespace {

constexpr int64_t STAGED = 64 << 10;  // bytes of pageable memory that a driver stages without waiting

void run_copy(const Tensor& to, const Tensor& from) {
  enqueue(current_stream(), [to, from] { to.copy_(from); });
}

void to_host(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (non_blocking && is_pinned(to.data_ptr())) {
    // Not owned, as with a real driver: freeing the buffer waits for the mark.
    run_copy(at::from_blob(to.data_ptr(), to.sizes(), to.strides(), to.options()), as_host(from));
    hold_pinned(to.data_ptr(), mark(current_stream()));
    return;
  }
  drain(current_stream(), non_blocking ? "copy to pageable memory" : "copy to the host");
  to.copy_(as_host(from));
}

void to_device(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (non_blocking && is_pinned(from.data_ptr())) {
    run_copy(as_host(to), at::from_blob(from.data_ptr(), from.sizes(), from.strides(), from.options()));
    hold_pinned(from.data_ptr(), mark(current_stream()));
    return;
  }
  if (!non_blocking || static_cast<int64_t>(from.nbytes()) > STAGED) {
    drain(current_stream(), "copy from pageable memory");
  }
  run_copy(as_host(to), from.clone());
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  check_process();
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor source = from.expand_as(to);
  if (on_device(from) && on_device(to)) {
    run_copy(as_host(to), as_host(source));
  } else if (on_device(from)) {
    to_host(source, to, non_blocking);
  } else {
    to_device(source, to, non_blocking);
  }
  return to;
}

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  if (self.sizes() != size) {
    resize(self, size, at::detail::defaultStrides(size));
  }
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  drain(current_stream(), "read a value");
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(as_host(self));
}

void record_stream(Tensor& self, c10::Stream stream) {
  use_on(self.storage().data(), static_cast<int>(stream.id()));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", resize_);
  library.impl("_copy_from", copy_from);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("record_stream", record_stream);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the name that the macro expects
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

}  // namespace emulated
