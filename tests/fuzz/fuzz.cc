// libFuzzer's entry points. RIFTCO_FUZZ_TARGET names the target.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "targets.h"

namespace {

const riftco::FuzzTarget* chosen() {
  const char* name = std::getenv("RIFTCO_FUZZ_TARGET");
  for (const riftco::FuzzTarget& target : riftco::fuzz_targets())
    if (name && std::strcmp(name, target.name) == 0) return &target;
  std::fprintf(stderr, "RIFTCO_FUZZ_TARGET must be one of:");
  for (const riftco::FuzzTarget& target : riftco::fuzz_targets()) std::fprintf(stderr, " %s", target.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const riftco::FuzzTarget* const target = chosen();
  target->run(std::as_bytes(std::span(data, size)));
  return 0;
}
