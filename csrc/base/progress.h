// What long work looks at between its pieces: it tells how far it is, and ends when it shall.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/cancel.h"

namespace riftco {

class Progress {
 public:
  using Report = void (*)(void* user_data, uint64_t done, uint64_t total);

  // `what` names the work in the message. cancel and report may be null.
  explicit Progress(const char* what, const CancelFlag* cancel = nullptr, Report report = nullptr,
                    void* user_data = nullptr) noexcept
      : what_(what), cancel_(cancel), report_(report), user_data_(user_data) {}

  // The bytes that will be advanced by; the first call counts.
  void begin(uint64_t total) {
    if (total_ == 0) total_ = total;
    advance(0);
  }
  // Fails with `cancelled` when the flag is set.
  void advance(uint64_t bytes) {
    done_ += bytes;
    tell(std::min(done_, total_));
    check_cancel(cancel_, what_);
  }
  void finish() {
    tell(total_);
    check_cancel(cancel_, what_);
  }

 private:
  void tell(uint64_t done) const {
    if (report_) report_(user_data_, done, total_);
  }

  const char* what_;
  const CancelFlag* cancel_;
  Report report_;
  void* user_data_;
  uint64_t total_ = 0, done_ = 0;
};

}  // namespace riftco
