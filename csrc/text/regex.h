// A thin owner of PCRE2: one compiled pattern, matched at the start of valid UTF-8, without its JIT.
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace riftco {

class Regex {
 public:
  explicit Regex(const char* pattern);

 private:
  friend class RegexMatcher;
  struct Free {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// The scratch memory of one thread, for any number of patterns.
class RegexMatcher {
 public:
  // Limits on backtracking follow from the longest text that will be matched.
  explicit RegexMatcher(size_t longest_text);
  // Bytes of the match that begins where `text`, which must be UTF-8, begins; 0 when there is none.
  size_t match_start(const Regex& regex, std::string_view text);

 private:
  struct Free {
    void operator()(pcre2_real_match_context_8* context) const noexcept;
    void operator()(pcre2_real_match_data_8* data) const noexcept;
  };
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
};

}  // namespace riftco
