#include <gtest/gtest.h>

#include "base/error.h"

namespace riftco {
namespace {

TEST(Error, CarriesStatusAndValues) {
  try {
    fail(Status::out_of_range, "token %u is not below %s", 7u, "5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_range);
    EXPECT_STREQ(error.what(), "token 7 is not below 5");
  }
}

TEST(Error, QuotedTextIsPrintableAndShort) {
  EXPECT_EQ(quoted("a\"b\\c\n\x80"), "\"a\\\"b\\\\c\\x0a\\x80\"");
  const std::string text = quoted(std::string(1000, 'x'));
  EXPECT_EQ(text, "\"" + std::string(64, 'x') + "...\"");
}

TEST(Error, FormatTakesLongText) {
  const std::string longer(5000, 'y');
  EXPECT_EQ(format("<%s>", longer.c_str()), "<" + longer + ">");
  EXPECT_EQ(format("%s", ""), "");
}

}  // namespace
}  // namespace riftco
