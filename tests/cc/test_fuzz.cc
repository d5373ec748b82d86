// The fuzzer's targets over the kept corpus (tests/fuzz/corpus): what once led somewhere new still gets its answer.
#include <gtest/gtest.h>

#include "../fuzz/targets.h"
#include "io_support.h"

namespace riftco {
namespace {

TEST(Fuzz, EveryTargetAnswersItsCorpus) {
  const std::filesystem::path corpus =
      std::filesystem::path(std::getenv("RIFTCO_TEST_DATA")) / "../fuzz/corpus";
  for (const FuzzTarget& target : fuzz_targets()) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(corpus / target.name)) {
      SCOPED_TRACE(entry.path().string());
      const std::string bytes = read_bytes(entry.path().string());
      EXPECT_NO_THROW(target.run(as_span(bytes)));
      count++;
    }
    EXPECT_GT(count, 0u) << target.name;
  }
}

}  // namespace
}  // namespace riftco
