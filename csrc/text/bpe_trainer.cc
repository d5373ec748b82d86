#include "text/bpe_trainer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "text/byte_spelling.h"
#include "text/utf8.h"

namespace riftco {
namespace {

constexpr size_t kPieceBytes = 1 << 20;  // of a text between two looks at the cancel flag

struct HashText {
  using is_transparent = void;
  uint64_t seed;
  size_t operator()(std::string_view text) const noexcept {
    return size_t(XXH3_64bits_withSeed(text.data(), text.size(), seed));
  }
};
template <class T>
using ByText = std::unordered_map<std::string, T, HashText, std::equal_to<>>;

struct HashNumber {
  uint64_t seed;
  size_t operator()(uint64_t number) const noexcept {
    return size_t(XXH3_64bits_withSeed(&number, sizeof number, seed));
  }
};

// How often each piece comes.
class WordCounter {
 public:
  explicit WordCounter(const std::vector<PreTokenizerStage>& stages) : pre_tokenizer_(stages) {}

  void add(std::string_view text, Progress& progress) {
    Pieces pieces(pre_tokenizer_, text.size());
    size_t unreported = 0;
    const auto count = [&](std::string_view word) {
      const auto found = counts_.find(word);
      if (found == counts_.end()) {
        counts_.emplace(word, 1);
      } else {
        found->second++;
      }
      unreported += word.size();
      if (unreported >= kPieceBytes) {
        progress.advance(unreported);
        unreported = 0;
      }
    };
    while (!text.empty()) {
      const size_t valid = valid_utf8_prefix(text);
      pieces.start(text.substr(0, valid));
      for (std::string_view piece; pieces.next(piece);) count(piece);
      if (valid < text.size()) count(text.substr(valid, 1));  // as encoding does
      text.remove_prefix(std::min(valid + 1, text.size()));
    }
    progress.advance(unreported);
  }

  const ByText<uint64_t>& counts() const noexcept { return counts_; }

 private:
  const PreTokenizer pre_tokenizer_;
  ByText<uint64_t> counts_{0, HashText{hash_seed()}};
};

// Joins pairs one after another. Counts are corrected where a pair was joined, never taken anew; a pair knows
// the words that it is in.
class PairJoiner {
 public:
  PairJoiner(const ByText<uint64_t>& counts, const std::array<uint32_t, 256>& byte_ids) {
    words_.reserve(counts.size());
    for (const auto& [text, count] : counts) {
      if (text.size() > UINT32_MAX) fail(Status::overflow, "a word of %zu bytes", text.size());
      words_.push_back({symbols_.size(), uint32_t(text.size()), int64_t(count)});
      for (const char c : text) symbols_.push_back(byte_ids[static_cast<uint8_t>(c)]);
    }
    for (uint32_t w = 0; w < words_.size(); w++) {
      const uint32_t* symbols = symbols_.data() + words_[w].begin;
      for (uint32_t i = 0; i + 1 < words_[w].size; i++)
        change({symbols[i], symbols[i + 1]}, words_[w].count, w);
    }
    queue_new_pairs();
  }

  // Takes the best pair out; false when none comes at least so often.
  bool next(uint64_t minimum_count) {
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      current_ = std::move(queue_.back());
      queue_.pop_back();
      const int64_t count = counts_[key(current_.pair)];
      if (current_.count == count) return count >= 1 && uint64_t(count) >= minimum_count;
      current_.count = count;  // it has changed since
      push(std::move(current_));
    }
    return false;
  }
  MergePair pair() const noexcept { return current_.pair; }

  // Joins the pair in the words that it was found in.
  void join(uint32_t result) {
    for (const uint32_t w : current_.words) join_in(w, result);
    queue_new_pairs();
  }

 private:
  struct Word {
    size_t begin;  // in symbols_
    uint32_t size;
    int64_t count;
  };
  struct Entry {
    int64_t count;
    MergePair pair;
    std::vector<uint32_t> words;
    bool operator<(const Entry& other) const noexcept {
      return count != other.count ? count < other.count : key(other.pair) < key(pair);
    }
  };
  static uint64_t key(MergePair pair) noexcept { return uint64_t(pair.left) << 32 | pair.right; }

  void change(MergePair pair, int64_t by, uint32_t word) {
    counts_[key(pair)] += by;
    if (by < 0) return;
    std::vector<uint32_t>& words = found_[key(pair)];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void join_in(uint32_t w, uint32_t result) {
    Word& word = words_[w];
    uint32_t* symbols = symbols_.data() + word.begin;
    const auto [left, right] = current_.pair;
    uint32_t out = 0;
    for (uint32_t i = 0; i < word.size; i++) {
      if (symbols[i] != left || i + 1 == word.size || symbols[i + 1] != right) {
        symbols[out++] = symbols[i];
        continue;
      }
      if (out > 0) {
        change({symbols[out - 1], left}, -word.count, w);
        change({symbols[out - 1], result}, word.count, w);
      }
      if (i + 2 < word.size) {
        change({right, symbols[i + 2]}, -word.count, w);
        change({result, symbols[i + 2]}, word.count, w);
      }
      symbols[out++] = result;
      i++;
    }
    word.size = out;
  }

  void queue_new_pairs() {
    for (auto& [key, words] : found_) {
      const int64_t count = counts_[key];
      if (count > 0) push({count, {uint32_t(key >> 32), uint32_t(key)}, std::move(words)});
    }
    found_.clear();
  }

  void push(Entry entry) {
    queue_.push_back(std::move(entry));
    std::push_heap(queue_.begin(), queue_.end());
  }

  std::vector<Word> words_;
  std::vector<uint32_t> symbols_;                                                         // of all words
  std::unordered_map<uint64_t, int64_t, HashNumber> counts_{0, HashNumber{hash_seed()}};  // by key
  // Words in which pairs came up since they were queued last.
  std::unordered_map<uint64_t, std::vector<uint32_t>, HashNumber> found_{0, HashNumber{hash_seed()}};
  std::vector<Entry> queue_;  // a heap
  Entry current_;
};

// Tokens by id while they are learnt, spelled.
class TokenList {
 public:
  uint32_t add(const std::string& spelled) {  // its id, new or not
    const auto [entry, is_new] = ids_.emplace(spelled, uint32_t(tokens_.size()));
    if (is_new) tokens_.push_back(spelled);
    return entry->second;
  }
  const std::vector<std::string>& tokens() const noexcept { return tokens_; }

 private:
  std::vector<std::string> tokens_;
  ByText<uint32_t> ids_{0, HashText{hash_seed()}};
};

// The 256 bytes, in the order of their spelling.
std::array<uint32_t, 256> add_bytes(TokenList& list) {
  std::vector<std::pair<std::string, uint8_t>> bytes;
  for (uint32_t byte = 0; byte < 256; byte++)
    bytes.emplace_back(spell_bytes(std::string(1, char(byte))), uint8_t(byte));
  std::ranges::sort(bytes);
  std::array<uint32_t, 256> ids;
  for (const auto& [spelled, byte] : bytes) ids[byte] = list.add(spelled);
  return ids;
}

void check_options(const TrainOptions& options) {
  const size_t least = 256 + options.special_tokens.size();
  if (options.vocabulary_size < least || options.vocabulary_size > kMaxVocabulary)
    fail(Status::out_of_range, "a vocabulary_size of %u; %zu (bytes and special tokens) to %u are possible",
         options.vocabulary_size, least, kMaxVocabulary);
  for (const std::string& token : options.special_tokens)
    if (token.empty() || token.size() > kMaxAddedTokenBytes || !is_utf8(token))
      fail(Status::invalid_argument, "the special token %s is not 1 to %zu bytes of UTF-8",
           quoted(token).c_str(), kMaxAddedTokenBytes);
  if (options.eos_token && *options.eos_token >= options.special_tokens.size())
    fail(Status::out_of_range, "the end token %u is none of the %zu special tokens", *options.eos_token,
         options.special_tokens.size());
}

// A pair that joined twice, in words found at different times, counts where it came last.
std::vector<MergePair> without_repetition(std::vector<MergePair> merges) {
  std::unordered_map<uint64_t, size_t, HashNumber> last(0, HashNumber{hash_seed()});
  const auto key = [](MergePair merge) { return uint64_t(merge.left) << 32 | merge.right; };
  for (size_t i = 0; i < merges.size(); i++) last[key(merges[i])] = i;
  size_t i = 0;
  std::erase_if(merges, [&](MergePair merge) { return last[key(merge)] != i++; });
  return merges;
}

}  // namespace

std::shared_ptr<const Tokenizer> train_tokenizer(std::span<const std::string_view> texts,
                                                 const TrainOptions& options, Progress& progress) {
  check_options(options);
  uint64_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  progress.begin(2 * bytes);  // counting, then joining, told as if it went over the text again
  WordCounter words(options.stages);
  for (const std::string_view text : texts) words.add(text, progress);

  TokenList list;
  for (const std::string& token : options.special_tokens) {
    const size_t before = list.tokens().size();
    if (list.add(token) < before)
      fail(Status::invalid_argument, "the special token %s is there twice", quoted(token).c_str());
  }
  PairJoiner joiner(words.counts(), add_bytes(list));
  std::vector<MergePair> merges;
  const uint64_t bytes_per_token = bytes / options.vocabulary_size;
  while (list.tokens().size() < options.vocabulary_size && joiner.next(options.minimum_count)) {
    const MergePair pair = joiner.pair();
    merges.push_back(pair);
    joiner.join(list.add(list.tokens()[pair.left] + list.tokens()[pair.right]));
    progress.advance(bytes_per_token);
  }

  TokenizerSpec spec;
  spec.tokens = list.tokens();
  spec.flags.assign(spec.tokens.size(), kModelToken);
  std::fill_n(spec.flags.begin(), options.special_tokens.size(), kModelToken | kAddedToken | kSpecialToken);
  spec.special.eos = options.eos_token;
  if (options.eos_token) spec.special.end_of_generation = {*options.eos_token};
  spec.merges = without_repetition(std::move(merges));
  spec.stages = options.stages;
  progress.finish();
  return std::make_shared<const Tokenizer>("bpe", std::move(spec));
}

}  // namespace riftco
