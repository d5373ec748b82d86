#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "base/error.h"

namespace riftco {
namespace {

constexpr size_t kMaxPatternBytes = 4096;

// Sets that the two engines read differently, as ranges for use inside a class.
constexpr char kSpace[] =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr char kWord[] = R"(\p{L}\p{M}\p{Nd}\p{Pc})";

[[noreturn]] void unsupported_pattern(const std::string& pattern, const char* what) {
  fail(Status::unsupported, "the pattern %s: %s", quoted(pattern).c_str(), what);
}

// One escape, its letter being c.
std::string translated_escape(char c, bool in_class, const std::string& pattern) {
  const auto set = [&](const char* ranges, bool negated) {
    if (in_class && negated) unsupported_pattern(pattern, "a negated set inside a class");
    return in_class ? std::string(ranges) : std::string(negated ? "[^" : "[") + ranges + "]";
  };
  switch (c) {
    case 's':
    case 'S':
      return set(kSpace, c == 'S');
    case 'w':
    case 'W':
      return set(kWord, c == 'W');
    case 'b':  // a word boundary, of another set of words; a backspace inside a class
    case 'B':
    case 'h':
    case 'H':
    case 'K':
    case 'R':
    case 'X':
    case 'G':
    case 'g':
    case 'k':
      unsupported_pattern(pattern, (std::string("the escape \\") + c).c_str());
    default:
      return {'\\', c};
  }
}

// Oniguruma's syntax to PCRE2's. The two agree on most of what tokenizers use.
std::string from_oniguruma(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes)
    fail(Status::unsupported, "a pattern of %zu bytes; at most %zu are read", pattern.size(),
         kMaxPatternBytes);
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); i++) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      out += translated_escape(pattern[++i], in_class, pattern);
      continue;
    }
    if (c == '(' && !in_class && i + 1 < pattern.size() && pattern[i + 1] == '*')
      unsupported_pattern(pattern, "a verb");
    if (in_class && c == '[') unsupported_pattern(pattern, "a class inside a class");
    if (in_class && pattern.compare(i, 2, "&&") == 0) unsupported_pattern(pattern, "an intersection");
    out += c;
    if (c == '[' && !in_class) {
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']')
        unsupported_pattern(pattern, "a class that begins with ]");
    } else if (c == ']') {
      in_class = false;
    }
  }
  return out;
}

}  // namespace

void Regex::Free::operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
void RegexMatcher::Free::operator()(pcre2_match_context* context) const noexcept {
  pcre2_match_context_free(context);
}
void RegexMatcher::Free::operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }

Regex::Regex(const char* pattern) : Regex(pattern, 0, Status::internal) {}

Regex Regex::from_file(const std::string& pattern) {
  return Regex(from_oniguruma(pattern), PCRE2_UCP | PCRE2_MULTILINE, Status::unsupported);
}

Regex::Regex(const std::string& pattern, uint32_t options, Status status) {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | options, &error, &at, nullptr));
  if (code_) return;
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  PCRE2_UCHAR message[120] = {};
  pcre2_get_error_message(error, message, sizeof message);
  fail(status, "the pattern %s: %s (at %zu)", quoted(pattern).c_str(), reinterpret_cast<const char*>(message),
       size_t(at));
}

RegexMatcher::RegexMatcher(size_t longest_text)
    : work_left_((1u << 22) + 256 * uint64_t(longest_text)),
      context_(pcre2_match_context_create(nullptr)),
      search_context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create(1, nullptr)) {
  if (!context_ || !search_context_ || !data_) throw std::bad_alloc();
  // Our patterns give back a run of spaces one by one, so a few steps per byte are honest work.
  const uint64_t steps = 10'000 + 4 * uint64_t(longest_text);
  pcre2_set_match_limit(context_.get(), uint32_t(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_depth_limit(context_.get(), 1000);
  pcre2_set_heap_limit(context_.get(), 4096);               // KiB
  pcre2_set_depth_limit(search_context_.get(), 1'000'000);  // a group that repeats nests once a repetition
  pcre2_set_heap_limit(search_context_.get(), 65536);
}

int RegexMatcher::match(const Regex& regex, std::string_view text, size_t from, uint32_t options,
                        pcre2_match_context* context) {
  const int rc = pcre2_match(regex.code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                             PCRE2_NO_UTF_CHECK | options, data_.get(), context);
  if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  return rc;
}

size_t RegexMatcher::match_start(const Regex& regex, std::string_view text) {
  const int rc = match(regex, text, 0, PCRE2_ANCHORED, context_.get());
  if (rc >= 0) return pcre2_get_ovector_pointer(data_.get())[1];
  if (rc == PCRE2_ERROR_NOMATCH) return 0;
  fail(Status::runtime_error, "PCRE2 gives up on %zu bytes of text: error %d", text.size(), rc);
}

void RegexMatcher::charge(uint64_t work) {
  if (work > work_left_)
    fail(Status::runtime_error, "the tokenizer's pattern takes too many steps on this text");
  work_left_ -= work;
}

// PCRE2 bounds the steps of one match, not those of all, and scanning costs no step. So each match starts with
// a short window and few steps, both grow where they do not suffice, and all that was tried is charged.
RegexMatcher::Match RegexMatcher::search(const Regex& regex, std::string_view text, size_t from) {
  size_t window = 32;
  uint32_t steps = 64;
  for (;;) {
    size_t end = window < text.size() - from ? from + window : text.size();
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) end++;
    // A step may scan a part of the window.
    charge(steps * std::min<uint64_t>(64, 1 + (end - from) / 256) + (end - from));
    pcre2_set_match_limit(search_context_.get(), steps);
    const int rc = match(regex, text.substr(0, end), from, end < text.size() ? PCRE2_PARTIAL_HARD : 0,
                         search_context_.get());
    if (rc >= 0) {
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer(data_.get());
      return {std::min<size_t>(at[0], at[1]), at[1]};  // \K may put the beginning behind the end
    }
    if (rc == PCRE2_ERROR_PARTIAL) {
      window *= 4;
    } else if (rc == PCRE2_ERROR_MATCHLIMIT && steps < UINT32_MAX / 4) {
      steps *= 4;
    } else if (rc == PCRE2_ERROR_NOMATCH && end < text.size()) {
      from = end;
    } else if (rc == PCRE2_ERROR_NOMATCH) {
      return {text.size(), text.size()};
    } else {
      fail(Status::runtime_error, "PCRE2 gives up on %zu bytes of text: error %d", text.size(), rc);
    }
  }
}

}  // namespace riftco
