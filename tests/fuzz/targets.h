// What the fuzzer feeds and the unit test replays: each target reads bytes as if a stranger had written them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace riftco {

struct FuzzTarget {
  const char* name;  // also of the folder in corpus/
  // Returns for good and bad input alike; anything but riftco::Error and std::bad_alloc escapes.
  void (*run)(std::span<const std::byte> bytes);
};

std::span<const FuzzTarget> fuzz_targets();

}  // namespace riftco
