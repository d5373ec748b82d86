// Entries of a safetensors file's metadata in the project's own formats. `what` names the format in messages: "a checkpoint".
#pragma once
#include <cstdint>
#include <string>

#include "io/safetensors.h"

namespace riftco {

// The text under a key; corrupt_data where it is missing.
const std::string& required_entry(const SafetensorsReader& reader, const char* key, const char* what);

// The decimal number under a key; corrupt_data where it is none or above `largest`.
uint64_t number_entry(const SafetensorsReader& reader, const char* key, const char* what, uint64_t largest);

// "MAJOR.MINOR" under a key: corrupt_data where it is no version, version_mismatch for a major above `newest`.
void check_format_version(const SafetensorsReader& reader, const char* key, const char* what,
                          uint32_t newest);

}  // namespace riftco
