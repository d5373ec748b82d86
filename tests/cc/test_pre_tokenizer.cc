// Cuts of the pre-tokenizer by example and by property; equality with the `tokenizers` package is in
// test_tokenizer_files.cc.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"

namespace riftco {
namespace {

using enum PreTokenizerStage::Kind;
using Texts = std::vector<std::string>;

Texts cut(const std::vector<PreTokenizerStage>& stages, std::string_view text) {
  const PreTokenizer pre_tokenizer(stages);
  Pieces pieces(pre_tokenizer, text.size());
  pieces.start(text);
  Texts all;
  for (std::string_view piece; pieces.next(piece);) all.emplace_back(piece);
  return all;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_EQ(cut({gpt2}, "Hello world"), (Texts{"Hello", " world"}));
  EXPECT_EQ(cut({gpt2}, "we'll don't I'M"), (Texts{"we", "'ll", " don", "'t", " I", "'", "M"}));
  EXPECT_EQ(cut({gpt2}, "x=12345 +3"), (Texts{"x", "=", "12345", " +", "3"}));
  EXPECT_EQ(cut({gpt2}, "a   b  "), (Texts{"a", "  ", " b", "  "}));
  EXPECT_EQ(cut({gpt2}, "a\r\n\tb"), (Texts{"a", "\r\n", "\t", "b"}));
}

TEST(PreTokenizer, Llama3) {
  EXPECT_EQ(cut({llama3}, "I'M 12345"), (Texts{"I", "'M", " ", "123", "45"}));
  EXPECT_EQ(cut({llama3}, "(word) ok!\n\nx"), (Texts{"(word", ")", " ok", "!\n\n", "x"}));
  EXPECT_EQ(cut({llama3}, "a  \n \n  b"), (Texts{"a", "  \n \n", " ", " b"}));
  EXPECT_EQ(cut({llama3}, "'\u017F"), (Texts{"'\u017F"}));  // the long s is an s, whatever its case
}

TEST(PreTokenizer, SmolLm) {
  EXPECT_EQ(cut({digits, gpt2}, "in 1984, x2"), (Texts{"in", " ", "1", "9", "8", "4", ",", " x", "2"}));
  EXPECT_EQ(cut({digits, gpt2}, "\u0663\u00BD\u2167"), (Texts{"\u0663", "\u00BD", "\u2167"}));
  EXPECT_EQ(cut({digits, gpt2}, "a   1"), (Texts{"a", "   ", "1"}));  // a cut ends the look-ahead
}

TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  EXPECT_EQ(cut({gpt2}, "\u3000\u0085\u2028\v"), (Texts{"\u3000\u0085\u2028\v"}));
  EXPECT_EQ(cut({gpt2}, " \u180E"), (Texts{" \u180E"}));  // a mark: no longer white space
  EXPECT_EQ(cut({gpt2}, " \u200B"), (Texts{" \u200B"}));
  EXPECT_EQ(cut({gpt2}, "\u00A0\u1C80"), (Texts{"\u00A0", "\u1C80"}));
}

TEST(PreTokenizer, WithoutStagesOnePiece) {
  EXPECT_EQ(cut({}, "a b 1"), (Texts{"a b 1"}));
  EXPECT_EQ(cut({}, ""), Texts());
  EXPECT_EQ(cut({gpt2}, ""), Texts());
}

TEST(PreTokenizer, PiecesPutTogetherAreTheText) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; i++) {
    std::string text;
    for (int j = 0; j < 50; j++) {
      const auto code = uint32_t(random() % 2 ? random() % 0x80 : random() % 0x11'0000);
      if (code < 0xD800 || code > 0xDFFF) append_utf8(text, code);
    }
    const PreTokenizerStage found{pattern, "\\s+|[a-m]*|\\p{N}"};
    for (const std::vector<PreTokenizerStage>& stages : {std::vector<PreTokenizerStage>{gpt2},
                                                         {llama3},
                                                         {qwen2},
                                                         {tekken},
                                                         {digits, gpt2},
                                                         {found},
                                                         {digits, found}}) {
      std::string joined;
      for (const std::string& piece : cut(stages, text)) {
        EXPECT_FALSE(piece.empty());
        EXPECT_TRUE(is_utf8(piece));
        joined += piece;
      }
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, LongRunsStayWithinTheLimits) {
  const std::string spaces(1 << 22, ' ');
  EXPECT_EQ(cut({llama3}, spaces).size(), 1u);
  EXPECT_EQ(cut({llama3}, spaces + "a").size(), 2u);
  EXPECT_EQ(cut({gpt2}, spaces + "a").size(), 2u);
  EXPECT_EQ(cut({gpt2}, std::string(1 << 22, 'a')).size(), 1u);
  EXPECT_EQ(cut({llama3}, std::string(1 << 22, '\n') + " x").size(), 2u);
}

TEST(PreTokenizer, LongMatchesOfAFilesPattern) {
  const PreTokenizerStage words{pattern, "(?:\\p{L}\\p{M}?)+|\\s+(?!\\S)|\\s"};
  const std::string letters(100'000, 'a'), spaces(1 << 20, ' ');
  EXPECT_EQ(cut({words}, letters), (Texts{letters}));
  EXPECT_EQ(cut({words}, spaces + "a").size(), 3u);
  EXPECT_EQ(cut({words, digits}, letters + spaces), (Texts{letters, spaces}));
  EXPECT_EQ(cut({words, gpt2}, spaces).size(), 1u);  // limits of the one are not those of the other
}

TEST(PreTokenizer, HostilePatternsEndInErrors) {
  const std::string text(1 << 17, 'a');
  for (const char* hostile :
       {"(?:a+)+[bc]", "(?:a|aa)+[bc]", "a*+[bc]|a", "(?:a*)*[bc]|.", "(a{1,500}){1,500}[bc]"}) {
    try {
      cut({{pattern, hostile}}, text);
      FAIL() << hostile;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::runtime_error) << hostile << ": " << error.what();
    }
  }
}

TEST(PreTokenizer, PatternsReadOtherwiseAreRefused) {
  for (const std::string other : {"\\bword", "[a&&b]", "[a[bc]]", "[]a]", "(*COMMIT)a", "\\Ka", "(unclosed",
                                  "[^\\S]", "(?<n>a)\\k<n>"}) {
    try {
      cut({{pattern, other}}, "a");
      FAIL() << other;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::unsupported) << other << ": " << error.what();
    }
  }
  EXPECT_THROW(cut({{pattern, std::string(5000, 'a')}}, "a"), Error);
}

TEST(PreTokenizer, StageNames) {
  for (const auto stage : {digits, digit_runs, gpt2, llama3, qwen2, tekken, space_marks})
    EXPECT_EQ(stage_from_name(stage_name(stage)), stage);
  try {
    stage_from_name("qwen");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_STREQ(error.what(), "there is no pre-tokenizer stage named \"qwen\"");
  }
}

}  // namespace
}  // namespace riftco
