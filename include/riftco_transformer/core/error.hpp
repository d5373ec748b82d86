// Failures of the library as an exception. Everything in riftco_transformer is header-only over the C ABI
// (riftco/*.h).
#pragma once
#include <memory>
#include <stdexcept>

#include "riftco/base.h"

namespace riftco_transformer {

// what() is the library's message, "[rt_decode_session_step] token 300 is not below ...".
class Error : public std::runtime_error {
 public:
  Error(rt_status status, const char* message) : std::runtime_error(message), status_(status) {}
  rt_status status() const noexcept { return status_; }  // RT_*

 private:
  rt_status status_;
};

namespace detail {

inline void check(rt_status status) {
  if (status != RT_OK) throw Error(status, rt_last_error());
}

// Owns a handle of the C ABI. Children keep alive what they need, so handles may be destroyed in any order.
template <auto release>
struct Release {
  template <class Handle>
  void operator()(Handle* handle) const noexcept {
    release(handle);
  }
};
template <class Handle, auto release>
using Owned = std::unique_ptr<Handle, Release<release>>;

// Makes a handle with a call whose last argument receives it.
template <class OwnedHandle, class Create, class... Arguments>
OwnedHandle make(Create create, Arguments... arguments) {
  typename OwnedHandle::pointer handle = nullptr;
  check(create(arguments..., &handle));
  return OwnedHandle(handle);
}

// A struct of the C ABI with its defaults.
template <class Struct, class Init>
Struct defaults(Init init) {
  Struct value;
  check(init(&value, sizeof value));
  return value;
}

}  // namespace detail
}  // namespace riftco_transformer
