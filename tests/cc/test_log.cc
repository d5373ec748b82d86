#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"

namespace riftco {
namespace {

TEST(Log, GoesToTheCallbackFromItsLevelOn) {
  std::vector<std::string> seen;
  auto take = [](void* user, int32_t level, const char* message, uint64_t size) {
    static_cast<std::vector<std::string>*>(user)->push_back(std::to_string(level) + " " +
                                                            std::string(message, size));
  };
  log(LogLevel::warning, "nobody listens");
  set_log_callback(take, &seen, LogLevel::info);
  log(LogLevel::debug, "too fine");
  log(LogLevel::info, "%d tokens", 3);
  log(LogLevel::warning, "%s", std::string(2000, 'x').c_str());
  set_log_callback(nullptr, nullptr, LogLevel::debug);
  log(LogLevel::warning, "nobody listens");
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0], "1 3 tokens");
  EXPECT_EQ(seen[1], "2 " + std::string(511, 'x'));
}

}  // namespace
}  // namespace riftco
