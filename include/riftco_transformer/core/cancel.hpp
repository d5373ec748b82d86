// Stops a call of the library from another thread or a signal handler.
#pragma once
#include "riftco_transformer/core/error.hpp"

namespace riftco_transformer {

// Latched: calls that were given it throw RT_CANCELLED, and leave everything as before, until reset(). Keep
// it alive while a call, session or running generation has it.
class CancelFlag {
 public:
  CancelFlag() : handle_(detail::make<Handle>(rt_cancel_create)) {}

  void set() noexcept { rt_cancel_set(handle_.get()); }
  void reset() noexcept { rt_cancel_reset(handle_.get()); }
  rt_cancel* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<rt_cancel, rt_cancel_release>;
  Handle handle_;
};

}  // namespace riftco_transformer
