// Reads fields of JSON that a file brings; errors name the file and the field.
#pragma once
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace riftco {

class JsonFields {
 public:
  explicit JsonFields(const std::string& where) : where_(where) {}

 protected:
  using json = nlohmann::json;

  [[noreturn]] void corrupt(const std::string& message) const {
    fail(Status::corrupt_data, "%s: %s", where_.c_str(), message.c_str());
  }
  [[noreturn]] void unsupported(const std::string& message) const {
    fail(Status::unsupported, "%s: %s", where_.c_str(), message.c_str());
  }

  const json& optional_field(const json& object, const char* name) const {  // null when absent
    static const json null;
    const auto entry = object.find(name);
    return entry == object.end() ? null : *entry;
  }
  const json& field(const json& object, const char* name, json::value_t type) const {
    const json& value = optional_field(object, name);
    if (value.type() != type)
      corrupt(format("%s is %s, not %s", name, value.type_name(), json(type).type_name()));
    return value;
  }
  const std::string& string_of(const json& value, const char* name) const {
    if (!value.is_string()) corrupt(format("%s is %s, not a string", name, value.type_name()));
    return value.get_ref<const std::string&>();
  }
  bool flag(const json& object, const char* name, bool otherwise) const {
    const json& value = optional_field(object, name);
    if (!value.is_null() && !value.is_boolean())
      corrupt(format("%s is %s, not a boolean", name, value.type_name()));
    return value.is_null() ? otherwise : value.get<bool>();
  }
  // The "type" of a normalizer, pre-tokenizer and so on.
  std::string type_of(const json& part, const char* name) const {
    if (!part.is_object()) corrupt(format("%s is %s, not an object", name, part.type_name()));
    return string_of(optional_field(part, "type"), "type");
  }

  const std::string& where_;
};

}  // namespace riftco
