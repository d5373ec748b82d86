// Strict JSON for text that came from a file: UTF-8, no duplicate keys, bounded depth, no exceptions of its
// own.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_text.h"

namespace riftco {

// Fails with corrupt_data; `where` names the file and field in the message. Memory is about 16 bytes a value.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// The same without building values: calls the handler, which may throw.
void sax_parse_json(std::string_view text, const std::string& where,
                    nlohmann::json_sax<nlohmann::json>& handler);

}  // namespace riftco
