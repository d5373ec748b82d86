// Encoding and decoding by class Tokenizer, on vocabularies made here; files are in test_tokenizer_files.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/tokenizer.h"

namespace riftco {
namespace {

using Ids = std::vector<uint32_t>;

template <class Call>
Status status_of(const Call& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.status();
  }
  return Status::ok;
}

// All bytes by themselves, then what the merges (by bytes) make, then the added tokens.
struct Added {
  std::string content;
  int flags;
};
TokenizerSpec make_spec(const std::vector<std::pair<std::string, std::string>>& merges,
                        const std::vector<Added>& added = {}) {
  TokenizerSpec spec;
  std::map<std::string, uint32_t> ids;
  const auto add = [&](const std::string& bytes) {
    if (!ids.emplace(bytes, spec.tokens.size()).second) return;
    spec.tokens.push_back(spell_bytes(bytes));
    spec.flags.push_back(kModelToken);
  };
  for (int byte = 0; byte < 256; byte++) add(std::string(1, char(byte)));
  for (const auto& [left, right] : merges) {
    add(left + right);
    spec.merges.push_back({ids.at(left), ids.at(right)});
  }
  for (const Added& token : added) {
    spec.tokens.push_back(token.content);
    spec.flags.push_back(uint8_t(token.flags | kAddedToken));
  }
  return spec;
}

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(uint8_t(c));
  return ids;
}

std::string random_bytes(std::mt19937& random, size_t size, bool any_byte) {
  std::string text(size, '\0');
  for (char& c : text) c = any_byte ? char(random() % 256) : "abc "[random() % 4];
  return text;
}

TEST(Tokenizer, BytesAreTheirOwnIds) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->kind(), "byte");
  EXPECT_EQ(tokenizer->vocabulary_size(), 256u);
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  EXPECT_EQ(tokenizer->encode(all, {.add_special = true, .parse_special = true, .strict = true}),
            bytes_of(all));
  EXPECT_EQ(tokenizer->decode(bytes_of(all)), all);
  EXPECT_EQ(tokenizer->encode(""), Ids());
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer_from_json(tokenizer->to_json(), "test")->encode("h\xFF"), (Ids{'h', 0xFF}));
}

TEST(Tokenizer, IdsOutOfTheVocabularyAreRefusedWithValues) {
  const auto tokenizer = byte_tokenizer();
  std::string message;
  EXPECT_EQ(status_of([&] { tokenizer->token_bytes(256); }, &message), Status::out_of_range);
  EXPECT_EQ(message, "token 256 is not below the vocabulary size 256");
  EXPECT_EQ(status_of([&] { tokenizer->is_special(UINT32_MAX); }), Status::out_of_range);
  EXPECT_EQ(status_of([&] { tokenizer->decode(Ids{1, 999}); }), Status::out_of_range);
  EXPECT_FALSE(tokenizer->is_end_of_generation(999));
}

TEST(Tokenizer, AnyBytesComeBack) {
  const auto spec = make_spec({{"a", "b"}, {"ab", "c"}, {" ", "ab"}, {"\xC3", "\xA9"}, {"\xFF", "\xFE"}});
  for (const auto& stages : {std::vector<PreTokenizerStage>{},
                             {PreTokenizerStage::gpt2},
                             {PreTokenizerStage::llama3},
                             {PreTokenizerStage::digits, PreTokenizerStage::gpt2}}) {
    auto copy = spec;
    copy.stages = stages;
    const Tokenizer tokenizer("bpe", copy);
    std::mt19937 random(7);
    for (int i = 0; i < 300; i++) {
      const std::string text = random_bytes(random, random() % 64, true);
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {.strict = true})), text);
    }
    // Whatever follows: not UTF-8, so the two bytes are pieces of their own and never merge.
    EXPECT_EQ(tokenizer.encode("\xFF\xFE"), (Ids{0xFF, 0xFE}));
    EXPECT_EQ(tokenizer.encode("\xC3\xA9").size(), 1u);
  }
}

TEST(Tokenizer, BytesWithoutATokenAreDroppedOrRefused) {
  TokenizerSpec spec;
  spec.tokens = {"a", "b", "ab"};
  spec.flags = {1, 1, 1};
  spec.merges = {{0, 1}};
  spec.stages = {PreTokenizerStage::gpt2};
  const Tokenizer tokenizer("bpe", spec);
  EXPECT_EQ(tokenizer.encode("axb"), (Ids{2}));  // the neighbours of what is dropped may join
  EXPECT_EQ(tokenizer.encode("a xb"), (Ids{0, 1}));
  std::string message;
  EXPECT_EQ(status_of([&] { tokenizer.encode("ab\xF0", {.strict = true}); }, &message),
            Status::invalid_argument);
  EXPECT_EQ(message, "the vocabulary has no token for \"\\xf0\" at offset 2 of the text");
  spec.missing_byte = 1;
  EXPECT_EQ(Tokenizer("bpe", spec).encode("axxa"), (Ids{2, 1, 0}));
  spec.fuse_missing_bytes = true;
  EXPECT_EQ(Tokenizer("bpe", spec).encode("axxa"), (Ids{2, 0}));
}

// The definition: again and again the leftmost of the best-ranked neighbours.
Ids naive_bpe(const TokenizerSpec& spec, Ids ids) {
  std::map<std::string, uint32_t> id_of;
  for (uint32_t id = 0; id < spec.tokens.size(); id++) id_of[spec.tokens[id]] = id;
  std::map<std::pair<uint32_t, uint32_t>, size_t> ranks;
  for (const auto [left, right] : spec.merges) ranks.emplace(std::pair(left, right), ranks.size());
  for (;;) {
    size_t best_rank = spec.merges.size(), best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); at++)
      if (const auto found = ranks.find({ids[at], ids[at + 1]});
          found != ranks.end() && found->second < best_rank) {
        best_rank = found->second;
        best_at = at;
      }
    if (best_rank == spec.merges.size()) return ids;
    ids[best_at] = id_of.at(spec.tokens[ids[best_at]] + spec.tokens[ids[best_at + 1]]);
    ids.erase(ids.begin() + ptrdiff_t(best_at) + 1);
  }
}

TEST(Tokenizer, MergesEqualTheDefinition) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; round++) {
    std::vector<std::string> words = {"a", "b", "c", " "};
    std::set<std::pair<std::string, std::string>> seen;
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 40; i++) {
      const auto pair = std::pair(words[random() % words.size()], words[random() % words.size()]);
      if (!seen.insert(pair).second) continue;
      merges.push_back(pair);
      words.push_back(pair.first + pair.second);
    }
    TokenizerSpec spec = make_spec(merges);
    if (round % 2) std::ranges::shuffle(spec.merges, random);  // a list that no training would give
    const Tokenizer tokenizer("bpe", spec);
    for (int i = 0; i < 20; i++) {
      const std::string text = random_bytes(random, random() % 60, false);
      EXPECT_EQ(tokenizer.encode(text), naive_bpe(spec, bytes_of(text))) << text;
    }
  }
}

TEST(Tokenizer, OneGiantPieceTakesLinearlyManySteps) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string run = "a"; run.size() < 1024; run += run) merges.emplace_back(run, run);
  merges.insert(merges.end(), {{"b", "a"}, {"a", "b"}, {"ab", "ab"}, {"ba", "ba"}});
  const TokenizerSpec spec = make_spec(merges);
  const Vocabulary vocabulary(spec.tokens, spec.flags, Spelling::byte_level);
  const MergeTable table(vocabulary, spec.merges);
  std::mt19937 random(3);
  std::string mixed(1 << 20, 'a');
  for (char& c : mixed) c = "ab"[random() % 8 == 0];
  for (const std::string& text : {std::string(1 << 20, 'a'), mixed}) {
    Ids ids = bytes_of(text);
    BpeMerger merger(table, nullptr);
    ids.resize(merger.merge(ids));
    EXPECT_LE(merger.steps(), 3 * text.size());
    std::string joined;
    for (const uint32_t id : ids) joined += vocabulary.bytes(id);
    EXPECT_EQ(joined, text);
  }
  EXPECT_EQ(Tokenizer("bpe", spec).encode(std::string(1 << 20, 'a')).size(), 1024u);
}

TEST(Tokenizer, RepeatedPiecesGiveTheSameIds) {
  auto spec = make_spec({{"a", "b"}, {"c", "a"}, {" ", "ca"}, {"ab", "ab"}});
  spec.stages = {PreTokenizerStage::gpt2};
  const Tokenizer tokenizer("bpe", spec);
  std::mt19937 random(5);
  const std::string text = random_bytes(random, 200'000, false);
  Ids by_word;
  for (size_t begin = 0; begin < text.size();) {  // a letter and then a space ends a piece
    size_t end = begin + 1;
    while (end < text.size() && !(text[end] == ' ' && text[end - 1] != ' ')) end++;
    for (const uint32_t id : tokenizer.encode(text.substr(begin, end - begin))) by_word.push_back(id);
    begin = end;
  }
  EXPECT_EQ(tokenizer.encode(text), by_word);
}

TEST(Tokenizer, SpecialTokensOnlyWhereAsked) {
  auto spec = make_spec({{"<", "|"}},
                        {{"<|end|>", kSpecialToken}, {"<|e", kSpecialToken}, {"[x]", kAfterNormalizer}});
  const uint32_t end = 257, e = 258, x = 259;
  spec.prefix = {end};
  spec.suffix = {e, e};
  spec.special.bos = end;
  const Tokenizer tokenizer("bpe", spec);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_FALSE(tokenizer.is_special(x));
  EXPECT_EQ(tokenizer.encode("<|end|>"), (Ids{256, 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(tokenizer.encode("<|end|><|e<|[x]", {.parse_special = true}), (Ids{end, e, 256, x}));
  EXPECT_EQ(tokenizer.encode("a[x]", {.add_special = true}), (Ids{end, 'a', x, e, e}));
  EXPECT_EQ(tokenizer.decode(Ids{end, 'a', x}), "<|end|>a[x]");
  EXPECT_EQ(tokenizer.decode(Ids{end, 'a', x}, true), "a[x]");
  EXPECT_EQ(tokenizer.find("<|end|>"), end);
  EXPECT_EQ(tokenizer.find("[x]"), x);
  EXPECT_EQ(tokenizer.find("<|"), 256u);
  EXPECT_EQ(tokenizer.find("<|en"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
}

TEST(Tokenizer, IgnoreMergesNeverMakesASpecialTokenFromText) {
  TokenizerSpec spec = make_spec({{"h", "i"}}, {{"PAD", kModelToken | kSpecialToken}});
  spec.tokens.push_back("bye");
  spec.flags.push_back(kModelToken);
  spec.stages = {PreTokenizerStage::llama3};
  EXPECT_EQ(Tokenizer("bpe", spec).encode("bye"), (Ids{'b', 'y', 'e'}));
  spec.ignore_merges = true;
  const Tokenizer tokenizer("bpe", spec);
  EXPECT_EQ(tokenizer.encode("bye"), (Ids{258}));
  EXPECT_EQ(tokenizer.encode("PAD"), (Ids{'P', 'A', 'D'}));
  EXPECT_EQ(tokenizer.encode("PAD", {.parse_special = true}), (Ids{257}));
}

TEST(Tokenizer, ContradictingPartsAreCorrupt) {
  const auto refuse = [](const char* part, const auto& change) {
    TokenizerSpec spec = make_spec({{"a", "b"}}, {{"<s>", kSpecialToken}});
    change(spec);
    std::string message;
    EXPECT_EQ(status_of([&] { Tokenizer("bpe", spec); }, &message), Status::corrupt_data) << part;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refuse("a vocabulary of 0", [](auto& s) { s.tokens.clear(), s.flags.clear(); });
  refuse("flags of 257", [](auto& s) { s.flags.pop_back(); });
  refuse("tokens 97 and 98 are both \"a\"", [](auto& s) { s.tokens[98] = "a"; });
  refuse("not UTF-8", [](auto& s) { s.tokens[5] = "\xFF"; });
  refuse("has the flags 130", [](auto& s) { s.flags[5] = 130; });
  refuse("has the flags 5", [](auto& s) { s.flags[5] = 5; });
  refuse("has 0 bytes", [](auto& s) { s.tokens[257] = ""; });
  refuse("has 1025 bytes", [](auto& s) { s.tokens[257].assign(1025, 'x'); });
  refuse("merge 0 names the tokens 258 and 1", [](auto& s) { s.merges[0] = {258, 1}; });
  refuse("merge 0 makes \"ba\"", [](auto& s) { s.merges[0] = {98, 97}; });
  refuse("added tokens 256 and 257 are both",
         [](auto& s) { s.tokens[256] = "<s>", s.flags[256] = kAddedToken, s.merges.clear(); });
  refuse("added tokens 257 and 256 are both", [](auto& s) {
    s.tokens[256] = "<s>", s.flags[256] = kAddedToken | kAfterNormalizer, s.merges.clear();
  });
  refuse("the end-of-sequence token is 258", [](auto& s) { s.special.eos = 258; });
  refuse("the end-of-generation token is 999", [](auto& s) { s.special.end_of_generation = {1, 999}; });
  refuse("the first token is 258", [](auto& s) { s.prefix = {258}; });
  refuse("the chat template", [](auto& s) { s.chat_template = "\xC0"; });
}

TEST(Tokenizer, CancelAndSizeLimitStopEncoding) {
  const auto tokenizer = byte_tokenizer();
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(status_of([&] { tokenizer->encode("x", {.cancel = &cancel}); }), Status::cancelled);
  cancel.reset();
  EXPECT_EQ(tokenizer->encode("x", {.cancel = &cancel}), (Ids{'x'}));
  const char byte = 'x';
  const std::string_view too_long(&byte, (size_t(1) << 31) + 1);  // refused before it is read
  EXPECT_EQ(status_of([&] { tokenizer->encode(too_long); }), Status::overflow);

  const TokenizerSpec spec = make_spec({{"a", "a"}});
  const Vocabulary vocabulary(spec.tokens, spec.flags, Spelling::byte_level);
  const MergeTable table(vocabulary, spec.merges);
  cancel.set();
  Ids ids(1 << 20, 'a');
  EXPECT_EQ(status_of([&] { BpeMerger(table, &cancel).merge(ids); }), Status::cancelled);  // inside one piece
}

TEST(TokenizerThreads, OneTokenizerServesManyThreads) {
  auto spec = make_spec({{"a", "b"}, {"ab", "c"}, {" ", "a"}}, {{"<s>", kSpecialToken | kSingleWord}});
  spec.stages = {PreTokenizerStage::digits, PreTokenizerStage::gpt2};
  const Tokenizer tokenizer("bpe", spec);
  const std::string text = "abc 12 <s> abcab\n\xFF ab <s>";
  const Ids expected = tokenizer.encode(text, {.parse_special = true});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++)
        if (tokenizer.encode(text, {.parse_special = true}) != expected) wrong++;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, PlainRangesKeepSpecialTokensText) {
  TokenizerSpec spec;
  for (const char* token : {"<", "s", ">", "[x]", "<s>"}) spec.tokens.emplace_back(token);
  spec.flags = {kModelToken, kModelToken, kModelToken, kAddedToken, kAddedToken | kSpecialToken};
  const Tokenizer tokenizer("bpe", spec);
  const auto encode = [&](std::vector<PlainRange> plain) {
    return tokenizer.encode("<s><s>[x]", {.parse_special = true, .plain = plain});
  };
  EXPECT_EQ(encode({}), (Ids{4, 4, 3}));
  EXPECT_EQ(encode({{0, 9}}), (Ids{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(encode({{2, 3}}), (Ids{0, 1, 2, 4, 3}));
  EXPECT_EQ(encode({{0, 1}, {3, 4}}), (Ids{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(encode({{6, 9}}), (Ids{4, 4, 3}));
  for (const std::vector<PlainRange>& wrong :
       {std::vector<PlainRange>{{3, 3}}, {{0, 10}}, {{0, 2}, {1, 3}}}) {
    try {
      encode(wrong);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::out_of_range);
    }
  }
}

}  // namespace
}  // namespace riftco
