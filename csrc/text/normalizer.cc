#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "text/utf8.h"

namespace riftco {
namespace {

// Nothing below U+0300, whose first byte is 0xCC, composes or is composed otherwise.
bool may_change(std::string_view text) noexcept {
  for (const char c : text)
    if (static_cast<uint8_t>(c) >= 0xCC) return true;
  return false;
}

// Each character's canonical parts, marks after a base in the order of their classes. Sorted here, as
// utf8proc takes quadratic time for a long run of marks.
std::vector<utf8proc_int32_t> decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(first_character(text).length)) {
    utf8proc_int32_t parts[8];  // canonical decompositions have at most four
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(utf8proc_int32_t(first_character(text).code), parts, std::ssize(parts),
                                utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), nullptr);
    if (count < 0 || count > std::ssize(parts)) fail(Status::internal, "utf8proc: error %td", count);
    codes.insert(codes.end(), parts, parts + count);
  }
  const auto mark_class = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto is_base = [&](utf8proc_int32_t code) { return mark_class(code) == 0; };
    begin = std::find_if_not(begin, codes.end(), is_base);
    const auto end = std::find_if(begin, codes.end(), is_base);
    std::ranges::stable_sort(begin, end, {}, mark_class);
    begin = end;
  }
  return codes;
}

void append_composed(std::string& out, std::string_view text) {
  if (!may_change(text)) {
    out += text;
    return;
  }
  std::vector<utf8proc_int32_t> codes = decompose(text);
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      codes.data(), std::ssize(codes), utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (count < 0) fail(Status::internal, "utf8proc: %s", utf8proc_errmsg(count));
  codes.resize(size_t(count));
  for (const utf8proc_int32_t code : codes) append_utf8(out, uint32_t(code));
}

std::string compose(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    append_composed(out, text.substr(0, valid));
    text.remove_prefix(valid);
    const size_t invalid = text.empty() ? 0 : 1;
    out += text.substr(0, invalid);
    text.remove_prefix(invalid);
  }
  return out;
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at; (at = text.find(from)) != std::string_view::npos; text.remove_prefix(at + from.size()))
    out.append(text.substr(0, at)).append(to);
  return out.append(text);
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::nfc:
        out = compose(out);
        break;
      case NormalizerStep::Kind::prepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
      case NormalizerStep::Kind::replace:
        out = replace_all(out, step.from, step.to);
        break;
    }
  }
  return out;
}

}  // namespace riftco
