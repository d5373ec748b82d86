// Runs a model that is in memory, as it would be in a program that carries one, in C++.
//
//   c++ -std=c++20 examples/load_from_buffer.cpp $(pkg-config --cflags --libs riftco) -o load_from_buffer
//   ./load_from_buffer model.gguf "The capital of France is" 8
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "riftco_transformer/stages/serving/stack.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace serve = riftco_transformer::stages::serving;

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: load_from_buffer MODEL PROMPT [MAX_NEW_TOKENS]\n";
    return 2;
  }
  try {
    std::ifstream file(argv[1], std::ios::binary);
    if (!file) {
      std::cerr << "load_from_buffer: cannot read " << argv[1] << '\n';
      return 1;
    }
    std::optional<std::vector<char>> bytes(std::in_place, std::istreambuf_iterator<char>(file),
                                           std::istreambuf_iterator<char>());
    const artifacts::Model model(std::as_bytes(std::span(*bytes)));
    bytes.reset();  // the model has copied what it needs

    serve::GenerationEngine engine(model, model.tokenizer(), serve::PagedKvCachePool(model));
    serve::GenerationConfig config;
    if (argc == 4) config.max_new_tokens = std::strtoull(argv[3], nullptr, 10);
    engine.start(argv[2], config);
    serve::GenerationPiece piece;
    do {
      piece = engine.next();
      std::cout << piece.text << std::flush;
    } while (piece.finish == serve::FinishReason::None);
    std::cout << '\n';
  } catch (const riftco_transformer::Error& error) {
    std::cerr << "load_from_buffer: " << argv[1] << ": " << error.what() << '\n';
    return 1;
  }
  return 0;
}
