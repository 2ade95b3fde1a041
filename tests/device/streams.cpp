// Streams (a thread and a queue each), marks, waits, and flags that model a fork and a capture.
#include "device.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

namespace emulated {
namespace {

struct Lane {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<Task> queue;
  std::vector<Task>* capture = nullptr;
  bool busy = false;
  bool started = false;
};

// Lives as long as the process, because threads are never joined.
struct State {
  Lane streams[STREAMS];
  std::atomic<int> next_stream{1};
  std::atomic<bool> paused{false}, strict{false};
  std::atomic<int> jitter_us{0};
  std::mutex passing;
  std::condition_variable passed;
  std::mutex telling;
  std::vector<std::string> waits, violations;
  std::string failure, lines;
  std::atomic<bool> failed{false};
  std::atomic<int> captures{0};
  std::map<int, std::pair<int, std::vector<Task>>> graphs;
};

State& state() {
  static State* it = new State;
  return *it;
}

std::atomic<bool> forked{false};
thread_local int current = 0;

void in_child() {
  forked = true;
}
const int at_fork = pthread_atfork(nullptr, nullptr, in_child);

void delay(std::minstd_rand& random) {
  const int most = state().jitter_us;
  // Delay only one in sixteen: a sleep costs the scheduler more than most tasks take.
  if (most > 0 && random() % 16 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
  }
}

void run(Lane& stream, unsigned seed) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::NoGradGuard no_grad;
  std::minstd_rand random(seed + 1);
  std::unique_lock<std::mutex> held(stream.lock);
  while (true) {
    stream.changed.wait(held, [&] { return !stream.queue.empty() && !state().paused; });
    Task task = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    held.unlock();
    delay(random);
    try {
      task();
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> telling(state().telling);
      state().failure = error.what();
      state().failed = true;
    }
    task = nullptr;
    held.lock();
    stream.busy = false;
  }
}

void tell(std::vector<std::string>& list, const std::string& what) {
  std::lock_guard<std::mutex> telling(state().telling);
  list.push_back(what);
}

void check_failure() {
  if (state().failed) {
    std::lock_guard<std::mutex> telling(state().telling);
    state().failed = false;
    TORCH_CHECK(false, "an operator failed on the emulated device: ", state().failure);
  }
}

}  // namespace

bool in_forked_child() {
  return forked;
}

void check_process() {
  TORCH_CHECK(!forked, "the emulated device cannot be used in a forked subprocess");
}

void enqueue(int number, Task task) {
  check_process();
  Lane& stream = state().streams[number];
  std::lock_guard<std::mutex> held(stream.lock);
  if (stream.capture != nullptr) {
    stream.capture->push_back(std::move(task));
    return;
  }
  if (!stream.started) {
    stream.started = true;
    std::thread([&stream, number] { run(stream, number); }).detach();
  }
  stream.queue.push_back(std::move(task));
  if (stream.queue.size() == 1) {
    stream.changed.notify_one();
  }
}

MarkPtr mark(int stream) {
  auto made = std::make_shared<Mark>();
  enqueue(stream, [made] {
    made->ns = std::chrono::steady_clock::now().time_since_epoch().count();
    std::lock_guard<std::mutex> held(state().passing);
    made->passed = true;
    state().passed.notify_all();
  });
  return made;
}

static void until(const MarkPtr& mark) {
  std::unique_lock<std::mutex> held(state().passing);
  state().passed.wait(held, [&] { return mark->passed.load(); });
}

void wait_on_stream(int stream, MarkPtr mark) {
  enqueue(stream, [mark] { until(mark); });
}

void tell_capture(const std::string& what) {
  if (state().captures > 0) {
    tell(state().violations, what);
  }
}

void check_capture(const std::string& what) {
  if (state().captures > 0) {
    tell_capture(what);
    TORCH_CHECK(false, what, " is not permitted while a stream is capturing");
  }
}

static void count_wait(const std::string& what) {
  check_process();
  tell(state().waits, what);
  check_capture(what);
  TORCH_CHECK(!state().strict, "the host would wait for the device: ", what);
  TORCH_CHECK(!state().paused, "the host would wait for a paused device: ", what);
}

void wait_on_host(const MarkPtr& mark, const std::string& what) {
  count_wait(what);
  until(mark);
  check_failure();
}

void drain(int stream, const std::string& what) {
  count_wait(what);
  until(mark(stream));
  check_failure();
}

bool capturing(int stream) {
  return state().streams[stream].capture != nullptr;
}

bool any_capture() {
  return state().captures > 0;
}

int current_stream() {
  return current;
}

int exchange_stream(int stream) {
  return std::exchange(current, stream);
}

int new_stream() {
  check_process();
  // Starts over when all are taken, like a real device's pool.
  return 1 + (state().next_stream++ - 1) % (STREAMS - 1);
}

bool idle(int number) {
  Lane& stream = state().streams[number];
  std::lock_guard<std::mutex> held(stream.lock);
  return stream.queue.empty() && !stream.busy;
}

}  // namespace emulated

// The controls for Python, called by ctypes, which releases the GIL for each call.
extern "C" {

void emulated_pause(int paused) {
  auto& state = emulated::state();
  state.paused = paused != 0;
  for (auto& stream : state.streams) {
    std::lock_guard<std::mutex> held(stream.lock);
    stream.changed.notify_one();
  }
}

void emulated_strict(int strict) {
  emulated::state().strict = strict != 0;
}

void emulated_jitter(int us) {
  emulated::state().jitter_us = us;
}

void emulated_forget() {
  auto& state = emulated::state();
  std::lock_guard<std::mutex> telling(state.telling);
  state.waits.clear();
  state.violations.clear();
  state.failed = false;
}

// Returns a line for each wait or violation since the last `emulated_forget`. Valid until the next call.
const char* emulated_lines(int violations) {
  auto& state = emulated::state();
  std::lock_guard<std::mutex> telling(state.telling);
  state.lines.clear();
  for (const auto& line : violations ? state.violations : state.waits) {
    state.lines += line + "\n";
  }
  return state.lines.c_str();
}

void emulated_enqueue(void (*work)()) {
  emulated::enqueue(emulated::current_stream(), work);
}

int emulated_capturing() {
  return !emulated::in_forked_child() && emulated::capturing(emulated::current_stream());
}

// Returns the graph's number. A graph keeps its memory until the process ends.
int emulated_capture() {
  auto& state = emulated::state();
  const int number = static_cast<int>(state.graphs.size());
  auto& graph = state.graphs[number];
  graph.first = emulated::current_stream();
  state.streams[graph.first].capture = &graph.second;
  state.captures++;
  return number;
}

void emulated_end_capture(int number) {
  auto& state = emulated::state();
  state.streams[state.graphs[number].first].capture = nullptr;
  state.captures--;
}

void emulated_replay(int number) {
  for (const auto& task : emulated::state().graphs[number].second) {
    emulated::enqueue(emulated::current_stream(), task);
  }
}

}  // extern "C"
