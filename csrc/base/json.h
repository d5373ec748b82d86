// Strict JSON for text that came from a file: UTF-8, no duplicate keys, bounded depth, no exceptions of its
// own.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace riftco {

// Fails with corrupt_data; `where` names the file and field in the message. Memory is about 16 bytes a value.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// The same without building values: calls the handler, which may throw.
void sax_parse_json(std::string_view text, const std::string& where,
                    nlohmann::json_sax<nlohmann::json>& handler);

// `text` as a JSON string with its quotes; invalid_argument when it is not UTF-8.
std::string json_string(std::string_view text);
// An object of strings, in the map's order.
std::string json_object(const std::map<std::string, std::string, std::less<>>& members);

}  // namespace riftco
