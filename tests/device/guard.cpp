// What torch needs of every device: streams, events, hooks.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace emulated {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Stream named(int number) {
  return Stream(Stream::UNSAFE, Device(KEY, 0), number);
}

int number(const Stream& stream) {
  return static_cast<int>(stream.id());
}

// An event owns the mark of its last recording.
MarkPtr& place(void* event) {
  return *static_cast<MarkPtr*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return KEY;
  }
  Device exchangeDevice(Device) const override {
    return Device(KEY, 0);
  }
  Device getDevice() const override {
    return Device(KEY, 0);
  }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  Stream getStream(Device) const override {
    return named(current_stream());
  }
  Stream getDefaultStream(Device) const override {
    return named(0);
  }
  Stream getStreamFromGlobalPool(Device, bool) const override {
    return named(new_stream());
  }
  Stream getNewStream(Device, int) const override {
    return named(new_stream());
  }
  Stream exchangeStream(Stream stream) const override {
    return named(exchange_stream(number(stream)));
  }
  bool queryStream(const Stream& stream) const override {
    check_process();
    check_capture("asking a stream");
    return idle(number(stream));
  }
  void synchronizeStream(const Stream& stream) const override {
    drain(number(stream), "synchronize a stream");
  }
  // Without "override", because torch before 2.13 has no such method.
  bool isStreamCapturing(const Stream& stream) const {
    return capturing(number(stream));
  }
  void synchronizeDevice(const DeviceIndex) const override {
    for (int stream = 0; stream < STREAMS; ++stream) {
      if (stream == 0 || !idle(stream)) {
        drain(stream, "synchronize the device");
      }
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    use_on(data.get(), number(stream));
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) {
      check_process();
      *event = new MarkPtr;
    }
    place(*event) = mark(number(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr && place(event)) {
      wait_on_stream(number(stream), place(event));
    }
  }
  bool queryEvent(void* event) const override {
    check_process();
    check_capture("asking an event");
    return event == nullptr || !place(event) || place(event)->passed;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr && place(event)) {
      wait_on_host(place(event), "synchronize an event");
    }
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    check_process();
    TORCH_CHECK(
        begin != nullptr && end != nullptr && place(begin)->passed && place(end)->passed,
        "both events must have come to pass");
    return static_cast<double>(place(end)->ns - place(begin)->ns) / 1e6;
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event == nullptr) {
      return;
    }
    if (in_forked_child()) {
      std::fputs("emulated device: an event is destroyed in a forked child\n", stderr);
      std::abort();  // like a real driver, whose error escapes a destructor here
    }
    delete static_cast<MarkPtr*>(event);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return 1;
  }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  DeviceIndex exchangeDevice(DeviceIndex) const override {
    return 0;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override {
    return 0;
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
};

c10::impl::DeviceGuardImplRegistrar registered_guard(KEY, new Guard);

const bool registered_hooks = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(KEY, device_allocator());
  return true;
}();

}  // namespace
}  // namespace emulated
