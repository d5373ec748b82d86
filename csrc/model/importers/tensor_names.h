// What files call the parameters of each family: one table for reading and for writing.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace riftco {

// The tensor of a file that holds a parameter.
struct TensorName {
  std::string name;
  uint32_t part = 0, parts = 1;  // this one of `parts` equal parts of its outputs (q, k and v side by side)
  bool transposed = false;       // a matrix kept as [inputs, outputs]
  bool interleaved = false;      // rows of each head in the order of interleaved rotary pairs, not half-split
};

// `parameter` is a native name (model/weights.h).
TensorName gguf_tensor(std::string_view architecture, const std::string& parameter);

enum class HuggingFaceFamily { gpt2, llama, mistral, qwen2, qwen3 };
// "transformer." or "model.", before the names of all but the head.
const char* hugging_face_prefix(HuggingFaceFamily family) noexcept;
TensorName hugging_face_tensor(HuggingFaceFamily family, const std::string& parameter,
                               const std::string& prefix);

// The tensors of a linear's adapter: A [rank, inputs], and B, of which this linear has one of `parts` equal parts of the rows.
struct LoraTensors {
  std::string a, b;
  uint32_t part = 0, parts = 1;
};
// The PEFT package's, of "layers.3.q" or "head".
LoraTensors peft_tensors(HuggingFaceFamily family, const std::string& linear);

}  // namespace riftco
