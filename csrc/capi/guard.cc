#include "capi/guard.h"

#include <cstdio>
#include <cstring>

namespace riftco::capi {
namespace {

thread_local char last_error[1024];

}  // namespace

rt_status set_last_error(const char* function, Status status, const char* message) noexcept {
  const int needed = std::snprintf(last_error, sizeof last_error, "[%s] %s", function, message);
  if (needed >= int(sizeof last_error)) {  // cut before the last character, which may be incomplete UTF-8
    size_t end = sizeof last_error - 1;
    do {
      end--;
    } while ((last_error[end] & 0xC0) == 0x80);
    last_error[end] = '\0';
  }
  return rt_status(status);
}

void clear_last_error() noexcept { last_error[0] = '\0'; }

}  // namespace riftco::capi

const char* rt_last_error(void) { return riftco::capi::last_error; }
