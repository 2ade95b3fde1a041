// The interfaces between the parts of the emulated device. Not for use outside this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace emulated {

using Task = std::function<void()>;

constexpr auto KEY = c10::DeviceType::PrivateUse1;
constexpr int STREAMS = 32;

// A place in a stream's queue, passed once everything before it has run. An event records one.
struct Mark {
  std::atomic<bool> passed{false};
  int64_t ns = 0;
};
using MarkPtr = std::shared_ptr<Mark>;

// streams.cpp: work, its order, and waits.

// Raises in a forked child, where a real driver no longer works.
void check_process();
bool in_forked_child();
// Raises the error of an earlier task: like a real device's, errors are reported late.
void enqueue(int stream, Task task);
MarkPtr mark(int stream);
void wait_on_stream(int stream, MarkPtr mark);
// These count a wait. They raise in strict mode, while paused, and during a capture.
void wait_on_host(const MarkPtr& mark, const std::string& what);
void drain(int stream, const std::string& what);
// Counts a violation and raises during a capture, because the call would invalidate the graph.
void check_capture(const std::string& what);
// Only counts the violation, for destructors, which cannot raise.
void tell_capture(const std::string& what);
bool capturing(int stream);
bool any_capture();
int current_stream();
int exchange_stream(int stream);
int new_stream();
bool idle(int stream);

// memory.cpp: blocks of device memory and pinned memory.

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
// The host's address of device memory. For tasks, and for code that has waited for them.
void* host_address(const void* device);
bool is_pinned(const void* address);
// Keeps pinned memory until the mark, before which its last task ends.
void hold_pinned(const void* address, MarkPtr until);
// Keeps a block until this stream too is done with it.
void use_on(const void* device, int stream);

}  // namespace emulated
