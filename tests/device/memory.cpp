// Device memory that the host cannot read, and pinned memory that copies use when they run.
#include "device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace emulated {
namespace {

constexpr size_t ROOM = size_t{8} << 30;  // address space only: pages are allocated when written
constexpr size_t SMALLEST = 512;
constexpr int POISON = 0xFB;  // large and negative in fp32 and fp16, but not NaN, which would look like a skip

struct Block {
  char* device;
  size_t size;
  int stream;
  std::set<int> also_on;
};

struct Pinned {
  char* address;
  size_t size;
  std::vector<MarkPtr> marks;
};

struct Memory {
  std::mutex lock;
  char* device = nullptr;
  char* host = nullptr;
  size_t used = 0;
  std::map<std::pair<int, size_t>, std::vector<Block*>> free;
  std::vector<std::pair<Block*, std::vector<MarkPtr>>> in_use_elsewhere;
  std::map<const char*, Block*> blocks;
  std::map<const char*, Pinned*> pinned;
  std::vector<Pinned*> freed;

  Memory() {
    const int file = memfd_create("emulated", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, ROOM) == 0, "no memory for the emulated device");
    const int flags = MAP_SHARED | MAP_NORESERVE;
    device = static_cast<char*>(mmap(nullptr, ROOM, PROT_NONE, flags, file, 0));
    host = static_cast<char*>(mmap(nullptr, ROOM, PROT_READ | PROT_WRITE, flags, file, 0));
    TORCH_CHECK(device != MAP_FAILED && host != MAP_FAILED, "no addresses for the emulated device");
    close(file);
  }
};

Memory& memory() {
  static Memory* it = new Memory;
  return *it;
}

bool all_passed(const std::vector<MarkPtr>& marks) {
  for (const auto& mark : marks) {
    if (!mark->passed) {
      return false;
    }
  }
  return true;
}

void poison(Block* block) {
  enqueue(block->stream, [at = host_address(block->device), size = block->size] {
    std::memset(at, POISON, size);
  });
}

Block* carve(size_t size, int stream) {
  auto& own = memory();
  TORCH_CHECK(own.used + size <= ROOM, "the emulated device is out of memory");
  auto* block = new Block{own.device + own.used, size, stream, {}};
  own.used += size;
  own.blocks[block->device] = block;
  poison(block);
  return block;
}

// Free the blocks that other streams have finished using.
void reclaim() {
  auto& waiting = memory().in_use_elsewhere;
  for (size_t at = 0; at < waiting.size();) {
    auto [block, marks] = waiting[at];
    if (!all_passed(marks)) {
      ++at;
      continue;
    }
    poison(block);
    memory().free[{block->stream, block->size}].push_back(block);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

void release(void* context) {
  if (in_forked_child()) {
    return;
  }
  auto& own = memory();
  auto* block = static_cast<Block*>(context);
  std::lock_guard<std::mutex> held(own.lock);
  if (any_capture()) {
    return;  // a graph may use it in each replay
  }
  if (!block->also_on.empty()) {
    std::vector<MarkPtr> marks;
    for (int stream : std::exchange(block->also_on, {})) {
      marks.push_back(mark(stream));
    }
    own.in_use_elsewhere.emplace_back(block, std::move(marks));
    return;
  }
  poison(block);
  own.free[{block->stream, block->size}].push_back(block);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t wanted) override {
    check_process();
    auto& own = memory();
    std::lock_guard<std::mutex> held(own.lock);
    size_t size = SMALLEST;
    while (size < wanted) {
      size *= 2;
    }
    const int stream = current_stream();
    reclaim();
    auto& free = own.free[{stream, size}];
    Block* block;
    if (free.empty() || any_capture()) {
      block = carve(size, stream);
    } else {
      block = free.back();  // the last one freed, so that a stale reader sees it change
      free.pop_back();
    }
    return {block->device, block, &release, c10::Device(KEY, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the emulated device copies tensors only");
  }
};

void sweep() {
  auto& freed = memory().freed;
  for (size_t at = 0; at < freed.size();) {
    if (!all_passed(freed[at]->marks)) {
      ++at;
      continue;
    }
    std::memset(freed[at]->address, POISON, freed[at]->size);
    std::free(freed[at]->address);
    delete freed[at];
    freed.erase(freed.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

void release_pinned(void* context) {
  auto* pinned = static_cast<Pinned*>(context);
  if (in_forked_child()) {
    if (!pinned->marks.empty()) {
      std::fputs("emulated device: pinned memory that copies used is freed in a forked child\n", stderr);
      std::abort();  // like a real driver, whose error escapes a destructor here
    }
    return;
  }
  if (!pinned->marks.empty()) {
    tell_capture("freeing pinned memory");  // torch records an event for it, on the stream that used it
  }
  std::lock_guard<std::mutex> held(memory().lock);
  memory().pinned.erase(pinned->address);
  memory().freed.push_back(pinned);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    check_process();
    check_capture("allocating pinned memory");
    auto& own = memory();
    std::lock_guard<std::mutex> held(own.lock);
    sweep();
    auto* pinned = new Pinned{nullptr, size, {}};
    pinned->address = static_cast<char*>(std::aligned_alloc(64, (size / 64 + 1) * 64));
    own.pinned[pinned->address] = pinned;
    return {pinned->address, pinned, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};

template <typename Item>
Item* containing(const std::map<const char*, Item*>& items, const void* address) {
  const auto* at = static_cast<const char*>(address);
  auto after = items.upper_bound(at);
  if (after == items.begin()) {
    return nullptr;
  }
  const auto& [start, item] = *--after;
  return at < start + item->size ? item : nullptr;
}

}  // namespace

c10::Allocator* device_allocator() {
  static DeviceAllocator it;
  return &it;
}

c10::Allocator* pinned_allocator() {
  static PinnedAllocator it;
  return &it;
}

void* host_address(const void* device) {
  auto& own = memory();
  return device == nullptr ? nullptr : own.host + (static_cast<const char*>(device) - own.device);
}

bool is_pinned(const void* address) {
  if (in_forked_child()) {
    return false;
  }
  std::lock_guard<std::mutex> held(memory().lock);
  return containing(memory().pinned, address) != nullptr;
}

void hold_pinned(const void* address, MarkPtr until) {
  std::lock_guard<std::mutex> held(memory().lock);
  if (auto* pinned = containing(memory().pinned, address)) {
    if (all_passed(pinned->marks)) {
      pinned->marks.clear();
    }
    pinned->marks.push_back(std::move(until));
  }
}

void use_on(const void* device, int stream) {
  std::lock_guard<std::mutex> held(memory().lock);
  auto* block = containing(memory().blocks, device);
  if (block != nullptr && block->stream != stream) {
    block->also_on.insert(stream);
  }
}

}  // namespace emulated

extern "C" void* emulated_host_address(const void* device) {
  return emulated::host_address(device);
}
