// The parts of the emulated device, and what each offers the others. Not for use outside this folder.
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

// A place in a stream's queue: passed once everything before it has run. What an event records.
struct Mark {
  std::atomic<bool> passed{false};
  int64_t ns = 0;
};
using MarkPtr = std::shared_ptr<Mark>;

// streams.cpp: work, the order it is done in, and who waits for it.

// Raises in a child of fork(), where a real driver works no more.
void check_process();
bool in_forked_child();
// Raises what an earlier task raised, as a real device tells of errors later.
void enqueue(int stream, Task task);
MarkPtr mark(int stream);
void wait_on_stream(int stream, MarkPtr mark);
// These count a wait. They raise in strict mode, while paused, and during a capture.
void wait_on_host(const MarkPtr& mark, const std::string& what);
void drain(int stream, const std::string& what);
// Raises during a capture, and is counted: the call would invalidate the graph.
void check_capture(const std::string& what);
// The same for a destructor, which cannot raise: it is counted only.
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
// Where the host reaches what is at an address of the device. Only tasks may, and who has waited for them.
void* host_address(const void* device);
bool is_pinned(const void* address);
// A task that reads or writes this pinned memory ends before the mark: it is not given away earlier.
void hold_pinned(const void* address, MarkPtr until);
// The block is used on this stream too: it is not given away before the stream is done with it.
void use_on(const void* device, int stream);

}  // namespace emulated
