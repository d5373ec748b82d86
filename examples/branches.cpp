// Two continuations of one prompt, decoded as one batch: prefill, fork, step_many, final hidden states.
//
//   c++ -std=c++20 examples/branches.cpp $(pkg-config --cflags --libs riftco) -o branches
//   ./branches model.gguf "The capital of France is" 8
//
// The prompt is computed once; the second branch begins with the second most likely token. Decoding is greedy.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <numeric>
#include <span>
#include <vector>

#include "riftco_transformer/stages/serving/stack.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace serve = riftco_transformer::stages::serving;

namespace {

std::uint32_t best(std::span<const float> logits) {
  return static_cast<std::uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Decodes a branch's last token again for its final hidden state.
std::vector<float> hidden_state(serve::DecodeSession& session, std::uint32_t last) {
  session.truncate(session.size() - 1);
  return session.hidden_states(std::array{last});
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  const auto dot = [](const auto& x, const auto& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

void run(const char* path, const char* prompt, std::uint64_t count) {
  const artifacts::Model model = artifacts::ModelSnapshot(path).load();
  const artifacts::Tokenizer tokenizer = model.tokenizer();
  const std::size_t vocabulary = model.config().vocabulary_size;

  serve::DecodeSession first(model);
  std::vector<float> row = first.prefill(tokenizer.encode(prompt, {.add_special = true}));
  serve::DecodeSession second = first.fork();
  std::array<std::uint32_t, 2> next;
  next[0] = best(row);
  row[next[0]] = -INFINITY;
  next[1] = best(row);

  std::array<std::vector<std::uint32_t>, 2> tokens;
  std::vector<float> rows(2 * vocabulary);
  for (std::uint64_t i = 0; i < count; ++i) {
    for (const std::size_t b : {0u, 1u}) tokens[b].push_back(next[b]);
    serve::step_many(std::array{&first, &second}, next, rows);
    for (const std::size_t b : {0u, 1u}) next[b] = best(std::span(rows).subspan(b * vocabulary, vocabulary));
  }
  const double similarity =
      cosine(hidden_state(first, tokens[0].back()), hidden_state(second, tokens[1].back()));
  std::cout << "first:" << tokenizer.decode(tokens[0], true)
            << "\nsecond:" << tokenizer.decode(tokens[1], true) << '\n'
            << std::flush;
  std::printf("cosine of their final hidden states: %.4f\n", similarity);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t count = 16;
  if (argc == 4) {
    const char* end = argv[3] + std::strlen(argv[3]);
    if (std::from_chars(argv[3], end, count).ptr != end) count = 0;
  }
  if (argc < 3 || argc > 4 || count == 0) {
    std::cerr << "usage: branches MODEL PROMPT [NEW_TOKENS]\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], count);
  } catch (const std::exception& error) {
    std::cerr << "branches: " << argv[1] << ": " << error.what() << '\n';
    return 1;
  }
  return 0;
}
