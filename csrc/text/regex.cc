#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "base/error.h"

namespace riftco {

void Regex::Free::operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
void RegexMatcher::Free::operator()(pcre2_match_context* context) const noexcept {
  pcre2_match_context_free(context);
}
void RegexMatcher::Free::operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }

Regex::Regex(const char* pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
  if (code_) return;
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  fail(Status::internal, "PCRE2 refuses the pattern %s at %zu: error %d", pattern, size_t(at), error);
}

RegexMatcher::RegexMatcher(size_t longest_text)
    : context_(pcre2_match_context_create(nullptr)), data_(pcre2_match_data_create(1, nullptr)) {
  if (!context_ || !data_) throw std::bad_alloc();
  // The patterns give back a run of spaces one by one, so a few steps per byte are honest work.
  const uint64_t steps = 10'000 + 4 * uint64_t(longest_text);
  pcre2_set_match_limit(context_.get(), uint32_t(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_depth_limit(context_.get(), 1000);
  pcre2_set_heap_limit(context_.get(), 4096);  // KiB
}

size_t RegexMatcher::match_start(const Regex& regex, std::string_view text) {
  const int rc = pcre2_match(regex.code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                             PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  if (rc >= 0) return pcre2_get_ovector_pointer(data_.get())[1];
  if (rc == PCRE2_ERROR_NOMATCH) return 0;
  if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  fail(Status::runtime_error, "PCRE2 gives up on %zu bytes of text: error %d", text.size(), rc);
}

}  // namespace riftco
