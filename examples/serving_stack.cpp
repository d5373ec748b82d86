// Continues a prompt with a model from a file, in C++.
//
//   c++ -std=c++20 examples/serving_stack.cpp $(pkg-config --cflags --libs riftco) -o serving_stack
//   ./serving_stack model.gguf "The capital of France is" 8
//
// MODEL is a .gguf file, a .rift file or a Hugging Face folder. Decoding is greedy.
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iostream>

#include "riftco_transformer/stages/serving/stack.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace serve = riftco_transformer::stages::serving;

namespace {

void generate(const char* path, const char* prompt, std::uint64_t max_new_tokens) {
  const artifacts::ModelSnapshot snapshot(path);
  serve::ServingConfig config;
  config.maximum_new_tokens = max_new_tokens;
  config.kv_cache_kind = serve::KvCacheKind::Paged;  // with Contiguous the text is the same
  serve::ServingStack serving(snapshot, config);

  // Pieces as they become certain; serving.generate(prompt) gives everything at once.
  for (const serve::GenerationPiece& piece : serving.stream(prompt, {.max_new_tokens = max_new_tokens}))
    std::cout << piece.text << std::flush;
  std::cout << '\n';

  const auto statistics = serving.engine().statistics();
  const auto usage = serving.cache().usage();
  std::cerr << statistics.prompt_tokens << " prompt tokens in " << statistics.prefill_seconds << " s, "
            << statistics.new_tokens << " new tokens in " << statistics.decode_seconds << " s; "
            << usage.block_count - usage.free_count << " of " << usage.block_count << " pages of "
            << usage.block_size << " tokens used\n";
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t max_new_tokens = 64;
  if (argc == 4) {
    const char* end = argv[3] + std::strlen(argv[3]);
    const auto parsed = std::from_chars(argv[3], end, max_new_tokens);
    if (parsed.ec != std::errc() || parsed.ptr != end || max_new_tokens == 0) argc = 0;
  }
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: serving_stack MODEL PROMPT [MAX_NEW_TOKENS]\n";
    return 2;
  }
  try {
    generate(argv[1], argv[2], max_new_tokens);
  } catch (const riftco_transformer::Error& error) {
    std::cerr << "serving_stack: " << argv[1] << ": " << rt_status_name(error.status()) << ": "
              << error.what() << '\n';
    return 1;
  }
  return 0;
}
