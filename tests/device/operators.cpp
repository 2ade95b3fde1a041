// Operators: one fallback for all of them, which enqueues the CPU's.
#include "tensors.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

namespace emulated {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Moves the arguments of one call to another device. The same tensor maps to one result: in-place work shows by that.
class Elsewhere {
 public:
  explicit Elsewhere(c10::DeviceType place) : place_(place) {}

  IValue operator()(const IValue& value) {
    if (value.isTensor()) {
      return IValue((*this)(value.toTensor()));
    }
    if (value.isDevice() && value.toDevice().type() == KEY) {
      return IValue(c10::Device(place_));
    }
    if (value.isTensorList()) {
      c10::List<Tensor> moved;
      for (const Tensor& each : value.toTensorVector()) {
        moved.push_back((*this)(each));
      }
      return IValue(std::move(moved));
    }
    if (value.isList() && value.toListRef().size() > 0) {  // lists of optional tensors or of numbers
      if (!value.isOptionalTensorList()) {
        return value;
      }
      c10::List<std::optional<Tensor>> moved;
      for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) {
        moved.push_back(each ? std::optional<Tensor>((*this)(*each)) : std::nullopt);
      }
      return IValue(std::move(moved));
    }
    return value;
  }

  Tensor operator()(const Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    auto& known = known_[tensor.unsafeGetTensorImpl()];
    if (!known.defined()) {
      known = moved(tensor);
    }
    return known;
  }

 private:
  Tensor moved(const Tensor& tensor) const {
    // A wrapped number stays one, because it promotes the result's dtype by other rules.
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return tensor;
    }
    if (place_ == c10::kMeta) {
      const auto options = tensor.options().device(c10::kMeta).requires_grad(false);
      return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    }
    // A host tensor is read now, as a launch reads its arguments.
    return on_device(tensor) ? as_host(tensor) : tensor.clone();
  }

  c10::DeviceType place_;
  std::map<const c10::TensorImpl*, Tensor> known_;
};

template <typename Items>
void list(std::string& key, const Items& items) {
  for (const auto& each : items) {
    key += std::to_string(each) + ',';
  }
  key += ';';
}

void describe(std::string& key, const Tensor& tensor) {
  if (!tensor.defined()) {
    key += '-';
    return;
  }
  const int wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  key += std::string(c10::toString(tensor.scalar_type())) + (wrapped ? "w" : tensor.is_cpu() ? "c" : "d");
  list(key, tensor.sizes());
  list(key, tensor.strides());
}

// Adds all values that a shape can depend on. False if there may be others.
bool describe(std::string& key, const IValue& value) {
  key += '|';
  if (value.isTensor()) {
    describe(key, value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& each : value.toTensorVector()) {
      describe(key, each);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) {
      describe(key, each.value_or(Tensor()));
    }
  } else if (value.isIntList()) {
    list(key, value.toIntVector());
  } else if (value.isBoolList()) {
    list(key, value.toBoolList().vec());
  } else if (value.isInt()) {
    key += std::to_string(value.toInt());
  } else if (value.isDouble()) {
    key += 'f';  // no shape depends on a floating-point number
  } else if (value.isBool()) {
    key += value.toBool() ? 't' : 'b';
  } else if (value.isString()) {
    key += value.toStringRef();
  } else {
    return value.isNone();
  }
  return true;
}

// One call of an operator with tensors of the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), schema_(op.schema()), stack_(stack),
        arguments_(torch::jit::last(*stack, schema_.arguments().size()).vec()) {}

  void run() {
    if (!gives_tensors() || !find_shapes()) {
      now();
      return;
    }
    std::vector<IValue> results;
    std::vector<Tensor> fresh;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      results.push_back(result(i, fresh));
    }
    if (!is_view()) {
      later(fresh);
    }
    leave(std::move(results));
  }

 private:
  bool gives_tensors() const {
    for (const auto& each : schema_.returns()) {
      const auto kind = each.type()->kind();
      const bool list = kind == c10::TypeKind::ListType &&
          each.type()->containedType(0)->kind() == c10::TypeKind::TensorType;
      if (kind != c10::TypeKind::TensorType && !list) {
        return false;
      }
    }
    return true;
  }

  bool is_view() const {
    for (const auto& each : schema_.returns()) {
      if (each.alias_info() != nullptr && !each.alias_info()->isWrite()) {
        return true;
      }
    }
    return false;
  }

  // Whether the call makes and resizes no tensor.
  bool in_place() const {
    for (const auto& each : schema_.arguments()) {
      if (each.is_out()) {
        return false;
      }
    }
    for (const auto& each : schema_.returns()) {
      if (each.alias_info() == nullptr || !each.alias_info()->isWrite()) {
        return false;
      }
    }
    return true;
  }

  // The shapes of each call, by its operator and all that they can depend on. Torch takes 100 us for one in Python.
  static std::map<std::string, Stack>& known_shapes() {
    thread_local auto* known = new std::map<std::string, Stack>;
    return *known;
  }

  // Runs the call on the meta device. In-place calls keep their shapes. False if shapes cannot be found.
  bool find_shapes() {
    if (in_place()) {
      return true;
    }
    if (!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
      return false;
    }
    std::string key = schema_.name() + '.' + schema_.overload_name();
    bool keyed = true;
    for (const auto& each : arguments_) {
      keyed = keyed && describe(key, each);
    }
    if (auto found = known_shapes().find(key); keyed && found != known_shapes().end()) {
      shapes_ = found->second;
      return true;
    }
    Elsewhere to_meta(c10::kMeta);
    for (const auto& each : arguments_) {
      shapes_.push_back(to_meta(each));
    }
    try {
      op_.callBoxed(&shapes_);
    } catch (const std::exception&) {
      return false;  // shapes depend on data, or the CPU's operator will report the error
    }
    if (keyed) {
      known_shapes()[key] = shapes_;
    }
    return true;
  }

  IValue result(size_t i, std::vector<Tensor>& fresh) {
    const auto* alias = schema_.returns()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      const auto& given = written(*alias);
      if (!shapes_.empty() && given.isTensor() && shapes_[i].isTensor()) {
        const Tensor& wanted = shapes_[i].toTensor();
        if (given.toTensor().sizes() != wanted.sizes()) {
          resize(given.toTensor(), wanted.sizes(), wanted.strides());
        }
      }
      return given;
    }
    if (alias != nullptr) {
      const Tensor& view = shapes_[i].toTensor();
      return at::native::as_strided_tensorimpl(
          arguments_[0].toTensor(), view.sizes(), view.strides(),
          arguments_[0].toTensor().storage_offset() + view.storage_offset());
    }
    if (!shapes_[i].isTensorList()) {
      if (!shapes_[i].toTensor().defined()) {
        fresh.emplace_back();
        return Tensor();
      }
      fresh.push_back(make(shapes_[i].toTensor()));
      return fresh.back();
    }
    c10::List<Tensor> made;
    for (const Tensor& each : shapes_[i].toTensorVector()) {
      fresh.push_back(make(each));
      made.push_back(fresh.back());
    }
    return made;
  }

  const IValue& written(const c10::AliasInfo& alias) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* own = schema_.arguments()[i].alias_info();
      if (own != nullptr && own->beforeSets() == alias.beforeSets()) {
        return arguments_[i];
      }
    }
    TORCH_CHECK(false, "the emulated device cannot tell what ", schema_.name(), " returns");
  }

  Stack on_host() {
    Elsewhere to_host(c10::kCPU);
    Stack moved;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* alias = schema_.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && arguments_[i].isTensor()) {
        const Tensor& tensor = arguments_[i].toTensor();
        TORCH_CHECK(!tensor.defined() || on_device(tensor), schema_.name(), " would write to the host's memory");
      }
      moved.push_back(to_host(arguments_[i]));
    }
    return moved;
  }

  void later(const std::vector<Tensor>& fresh) {
    std::vector<Tensor> outputs;
    for (const Tensor& each : fresh) {
      outputs.push_back(each.defined() ? as_host(each) : each);
    }
    enqueue(current_stream(), [op = op_, arguments = on_host(), outputs = std::move(outputs)] {
      Stack stack = arguments;  // copied, because a graph runs it again
      op.callBoxed(&stack);
      size_t next = 0;
      for (const IValue& value : stack) {
        if (next == outputs.size()) {
          break;
        }
        for (const Tensor& each : value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>{value.toTensor()}) {
          if (each.defined() && outputs[next].defined()) {
            outputs[next].copy_(each);
          }
          ++next;
        }
      }
    });
  }

  // Waits on the host, because values decide shapes or are returned.
  void now() {
    drain(current_stream(), schema_.name());
    Stack stack = on_host();
    op_.callBoxed(&stack);
    std::vector<IValue> results;
    for (size_t i = 0; i < stack.size(); ++i) {
      const auto* alias = schema_.returns()[i].alias_info();
      if (alias != nullptr) {
        const auto& given = written(*alias);
        if (given.toTensor().sizes() != stack[i].toTensor().sizes()) {
          resize(given.toTensor(), stack[i].toTensor().sizes(), stack[i].toTensor().strides());
          as_host(given.toTensor()).copy_(stack[i].toTensor());
        }
        results.push_back(given);
      } else if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        results.push_back(sent(stack[i].toTensor()));
      } else {
        results.push_back(stack[i]);
      }
    }
    leave(std::move(results));
  }

  static Tensor sent(const Tensor& tensor) {
    Tensor made = make(tensor);
    enqueue(current_stream(), [to = as_host(made), tensor] { to.copy_(tensor); });
    return made;
  }

  void leave(std::vector<IValue> results) {
    torch::jit::drop(*stack_, arguments_.size());
    for (auto& each : results) {
      stack_->push_back(std::move(each));
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  std::vector<IValue> arguments_;
  Stack shapes_;
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  check_process();
  at::AutoDispatchBelowADInplaceOrView below;
  Call(op, stack).run();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Torch's own kernels resize their output while they run, which a task must not do.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  library.impl("smooth_l1_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace emulated
