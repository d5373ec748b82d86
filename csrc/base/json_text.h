// JSON as text, for those who only write it.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace riftco {

// `text` as a JSON string with its quotes; invalid_argument when it is not UTF-8.
std::string json_string(std::string_view text);
// The same with U+FFFD for what is not UTF-8.
std::string json_text(std::string_view text);
// An object of strings, in the map's order.
std::string json_object(const std::map<std::string, std::string, std::less<>>& members);

}  // namespace riftco
