// A thin owner of PCRE2: one compiled pattern, matched against valid UTF-8, without its JIT.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace riftco {

class Regex {
 public:
  explicit Regex(const char* pattern);  // one of our own
  // One that a file brings, in Oniguruma's syntax: unsupported where PCRE2 would read it otherwise.
  static Regex from_file(const std::string& pattern);

 private:
  friend class RegexMatcher;
  struct Free {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  Regex(const std::string& pattern, uint32_t options, Status status);
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// The scratch memory of one thread, for any number of patterns.
class RegexMatcher {
 public:
  // Limits on backtracking follow from the longest text that will be matched.
  explicit RegexMatcher(size_t longest_text);
  // Bytes of the match that begins where `text`, which must be UTF-8, begins; 0 when there is none.
  size_t match_start(const Regex& regex, std::string_view text);

  struct Match {
    size_t begin, end;
  };
  // The first match at or after `from`; what is before it counts as context. Both are text.size() when there
  // is none. runtime_error when all searches together take more than linear time.
  Match search(const Regex& regex, std::string_view text, size_t from);

 private:
  struct Free {
    void operator()(pcre2_real_match_context_8* context) const noexcept;
    void operator()(pcre2_real_match_data_8* data) const noexcept;
  };
  int match(const Regex& regex, std::string_view text, size_t from, uint32_t options,
            pcre2_real_match_context_8* context);
  void charge(uint64_t work);

  uint64_t work_left_;  // of searches, in bytes and steps
  std::unique_ptr<pcre2_real_match_context_8, Free> context_, search_context_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
};

}  // namespace riftco
