// Messages for the host's log callback; silent without one. Nothing in the library writes to stdout or stderr.
#pragma once
#include <cstdint>

namespace riftco {

// Numbers are those of RT_LOG_* (include/riftco/base.h).
enum class LogLevel : int32_t { debug = 0, info = 1, warning = 2 };

using LogCallback = void (*)(void* user_data, int32_t level, const char* message, uint64_t message_size);

// Process-wide; null silences. On return no other thread is inside the callback that was set before.
void set_log_callback(LogCallback callback, void* user_data, LogLevel level);

// Hands a printf-style message to the callback when it wants this level; one thread at a time.
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

// In a child of fork(): the thread that held the log's lock may not exist here.
void reset_log_after_fork() noexcept;

}  // namespace riftco
