// What every call of the operating system on files needs. For .cc files of base only.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace riftco {

// input_output: "WHAT PATH: what errno says".
[[noreturn]] inline void fail_errno(const char* what, const std::string& path) {
  const int code = errno;
  fail(Status::input_output, "%s %s: %s", what, path.c_str(), std::generic_category().message(code).c_str());
}

// `call` until no signal interrupts it.
template <class Call>
auto retry(Call call) {
  decltype(call()) result;
  do result = call();
  while (result == -1 && errno == EINTR);
  return result;
}

inline std::string checked_path(std::string_view path) {
  if (path.find('\0') != path.npos)
    fail(Status::invalid_argument, "the path %s holds a NUL byte", quoted(path.data(), path.size()).c_str());
  return std::string(path);
}

// Makes the entries of an open folder durable; false with errno.
inline bool sync_folder(const Descriptor& folder) {
  // EINVAL: a file system that cannot sync a folder.
  return folder.get() >= 0 && (retry([&] { return ::fsync(folder.get()); }) == 0 || errno == EINVAL);
}

}  // namespace riftco
