// Streaming: whole characters as soon as possible, exact bytes in the end. And UTF-8 itself.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/error.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace riftco {
namespace {

TEST(StreamDecoder, HoldsBackWhatIsIncomplete) {
  StreamDecoder decoder(byte_tokenizer());
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x99), "");
  EXPECT_EQ(decoder.held_bytes(), 3u);
  EXPECT_EQ(decoder.push(0x82), "\xF0\x9F\x99\x82");
  EXPECT_EQ(decoder.held_bytes(), 0u);
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, InvalidBytesPassThrough) {
  StreamDecoder decoder(byte_tokenizer());
  EXPECT_EQ(decoder.push(0xFF), "\xFF");
  EXPECT_EQ(decoder.push(0x80), "\x80");
  EXPECT_EQ(decoder.push(0xC0), "\xC0");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push('x'), "\xE2x");  // can no longer become a character
  EXPECT_EQ(decoder.push(0xE0), "");
  EXPECT_EQ(decoder.push(0x80), "\xE0\x80");  // would be overlong
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0xC3), "\xE2");  // the new start is held, the old one is not
  EXPECT_EQ(decoder.flush(), "\xC3");
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_EQ(decoder.push('y'), "y");
}

TEST(StreamDecoder, UnknownIdsChangeNothing) {
  StreamDecoder decoder(byte_tokenizer());
  decoder.push(0xC3);
  EXPECT_THROW(decoder.push(256), Error);
  EXPECT_EQ(decoder.push(0xA9), "\u00E9");
}

TEST(StreamDecoder, SkipsSpecialTokensUnlessAsked) {
  TokenizerSpec spec;
  spec.tokens = {"\u00C3", "\u00A9", "<s>"};  // the first two spell bytes C3 and A9
  spec.flags = {kModelToken, kModelToken, kAddedToken | kSpecialToken};
  const auto tokenizer = std::make_shared<const Tokenizer>("bpe", spec);
  StreamDecoder skipping(tokenizer), keeping(tokenizer, false);
  EXPECT_EQ(skipping.push(0), "");
  EXPECT_EQ(skipping.push(2), "");
  EXPECT_EQ(skipping.push(1), "\u00E9");
  EXPECT_EQ(keeping.push(0), "");
  EXPECT_EQ(keeping.push(2), "\xC3<s>");
}

TEST(StreamDecoder, PiecesPutTogetherAreTheBytes) {
  const auto tokenizer = byte_tokenizer();
  StreamDecoder decoder(tokenizer);
  std::mt19937 random(2);
  for (int round = 0; round < 200; round++) {
    std::string bytes, joined;
    while (bytes.size() < 60) {
      const auto code = uint32_t(random() % 0x11'0000);
      if (random() % 3 == 0) {
        bytes += char(random() % 256);
      } else if (code < 0xD800 || code > 0xDFFF) {
        append_utf8(bytes, code);
      }
    }
    for (const uint32_t id : tokenizer->encode(bytes)) {
      joined += decoder.push(id);
      const std::string_view so_far = std::string_view(bytes).substr(0, joined.size() + decoder.held_bytes());
      EXPECT_EQ(decoder.held_bytes(), incomplete_tail(so_far));
    }
    joined += decoder.flush();
    EXPECT_EQ(joined, bytes);
  }
}

TEST(Utf8, EveryCharacterAndNothingElse) {
  for (uint32_t code = 0; code < 0x11'0000; code++) {
    if (code == 0xD800) code = 0xE000;
    std::string text;
    append_utf8(text, code);
    const Utf8Character c = first_character(text);
    ASSERT_TRUE(c.is_whole && c.code == code && c.length == text.size()) << code;
    ASSERT_EQ(last_character("a" + text), text);
    for (size_t cut = 1; cut < text.size(); cut++) ASSERT_EQ(incomplete_tail(text.substr(0, cut)), cut);
  }
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3(", "\xE2\x82(", "\xFF"}) {
    EXPECT_EQ(valid_utf8_prefix(bad), 0u) << bad;
    EXPECT_EQ(valid_utf8_prefix(std::string("abcdefghijk\u00E9") + bad), 13u) << bad;
  }
  EXPECT_EQ(last_character("\x80"), "");
  EXPECT_EQ(last_character(""), "");
}

}  // namespace
}  // namespace riftco
