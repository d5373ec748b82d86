// Composition by example (equality with the `tokenizers` package is in test_tokenizer_files.cc) and long runs of marks.
#include <gtest/gtest.h>

#include <string>

#include "text/normalizer.h"

namespace riftco {
namespace {

using enum NormalizerStep::Kind;

TEST(Normalizer, Composes) {
  EXPECT_EQ(normalize({{nfc}}, "e\u0301 A\u030A \u1100\u1161\u11A8 \u212B"), "\u00E9 \u00C5 \uAC01 \u00C5");
  EXPECT_EQ(normalize({{nfc}}, "a\u0323\u0302"), "\u1EAD");
  EXPECT_EQ(normalize({{nfc}}, "a\u0302\u0323"), "\u1EAD");  // marks in another order
  EXPECT_EQ(normalize({{nfc}},
                      "e\u0301\xFF"
                      "e\u0301\xE2\x80"),
            "\u00E9\xFF\u00E9\xE2\x80");
  EXPECT_EQ(normalize({{nfc}}, ""), "");
}

TEST(Normalizer, StepsComeInOrder) {
  EXPECT_EQ(normalize({{prepend, "", " "}, {replace, " ", "_"}}, "a b "), "_a_b_");
  EXPECT_EQ(normalize({{prepend, "", " "}}, ""), "");
  EXPECT_EQ(replace_all("aaa", "aa", "b"), "ba");
}

TEST(Normalizer, LongRunsOfMarksAreSorted) {
  std::string text = "a", sorted = "a";
  for (int i = 0; i < 200'000; i++) text += "\u0344\u0331";  // classes 230 and 220
  const std::string composed = normalize({{nfc}}, text);
  EXPECT_EQ(composed.substr(0, 6), "\u00E4\u0331\u0331");
  EXPECT_EQ(normalize({{nfc}}, composed), composed);
}

}  // namespace
}  // namespace riftco
