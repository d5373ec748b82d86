#include "base/json.h"

#include <vector>

#include "base/error.h"

namespace riftco {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

// Builds the value; errors are thrown as riftco::Error through the parser, which holds no resource of its
// own.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const std::string& where) : where_(where) {}
  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [entry, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!is_new)
      fail(Status::corrupt_data, "%s: the JSON key %s is there twice", where_.c_str(),
           riftco::quoted(name).c_str());
    slot_ = &entry->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(Status::corrupt_data, "%s: not valid JSON at byte %zu", where_.c_str(), position);
  }

 private:
  // Where the next value goes.
  json* place(json&& value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*slot_ = std::move(value));
    return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
  }
  bool add(json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(json&& value) {
    if (open_.size() == kMaxDepth)
      fail(Status::corrupt_data, "%s: JSON nested deeper than %zu", where_.c_str(), kMaxDepth);
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& where_;
  json root_;
  std::vector<json*> open_;  // the containers around the next value
  json* slot_ = nullptr;     // of the latest key
};

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  Builder builder(where);
  sax_parse_json(text, where, builder);
  return builder.take();
}

void sax_parse_json(std::string_view text, const std::string& where, nlohmann::json_sax<json>& handler) {
  // The parser takes a NUL for the end and would not see what follows.
  if (const size_t nul = text.find('\0'); nul != text.npos)
    fail(Status::corrupt_data, "%s: a NUL byte in JSON at byte %zu", where.c_str(), nul);
  json::sax_parse(text, &handler);
}

std::string json_string(std::string_view text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail(Status::invalid_argument, "not UTF-8: %s", quoted(text.data(), text.size()).c_str());
  }
}

std::string json_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_object(const std::map<std::string, std::string, std::less<>>& members) {
  std::string text = "{";
  for (const auto& [key, value] : members) text += json_string(key) + ':' + json_string(value) + ',';
  if (text.size() > 1) text.pop_back();
  return text + '}';
}

}  // namespace riftco
