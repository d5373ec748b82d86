#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <mutex>
#include <new>

namespace riftco {
namespace {

constexpr int32_t kSilent = std::numeric_limits<int32_t>::max();

struct Sink {
  std::mutex mutex;  // held while the callback runs
  LogCallback callback = nullptr;
  void* user_data = nullptr;
  std::atomic<int32_t> level{kSilent};  // read without the mutex, so that silence costs nothing
};
Sink sink;

}  // namespace

void reset_log_after_fork() noexcept { new (&sink.mutex) std::mutex; }

void set_log_callback(LogCallback callback, void* user_data, LogLevel level) {
  const std::lock_guard lock(sink.mutex);
  sink.callback = callback;
  sink.user_data = user_data;
  sink.level.store(callback ? int32_t(level) : kSilent, std::memory_order_relaxed);
}

void log(LogLevel level, const char* format, ...) {
  if (int32_t(level) < sink.level.load(std::memory_order_relaxed)) return;
  char message[512];
  va_list args;
  va_start(args, format);
  const int written = std::vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (written < 0) return;
  const std::lock_guard lock(sink.mutex);
  if (int32_t(level) < sink.level.load(std::memory_order_relaxed)) return;  // changed meanwhile
  const uint64_t size = uint64_t(written) < sizeof message ? uint64_t(written) : sizeof message - 1;
  sink.callback(sink.user_data, int32_t(level), message, size);
}

}  // namespace riftco
