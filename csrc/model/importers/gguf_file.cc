// GGUF files of the architectures gpt2, llama, qwen2 and qwen3.
#include <algorithm>
#include <cinttypes>
#include <optional>
#include <set>

#include "core/math.h"
#include "io/gguf.h"
#include "model/importers/model_file.h"
#include "model/importers/tensor_names.h"

namespace riftco {
namespace {

enum class Architecture { gpt2, llama, qwen2, qwen3 };
constexpr std::pair<const char*, Architecture> kArchitectures[] = {{"gpt2", Architecture::gpt2},
                                                                   {"llama", Architecture::llama},
                                                                   {"qwen2", Architecture::qwen2},
                                                                   {"qwen3", Architecture::qwen3}};

// Rows of whole heads from interleaved to half-split order.
void unpermute(std::byte* rows, uint32_t count, uint32_t head_width, size_t row_bytes) {
  std::vector<std::byte> head(head_width * row_bytes);
  for (uint32_t first = 0; first < count; first += head_width) {
    std::byte* const at = rows + first * row_bytes;
    std::copy(at, at + head.size(), head.begin());
    for (uint32_t row = 0; row < head_width; row++) {
      const uint32_t half = head_width / 2, from = 2 * (row % half) + row / half;
      std::copy_n(head.begin() + ptrdiff_t(from * row_bytes), row_bytes, at + row * row_bytes);
    }
  }
}

class GgufFile : public ModelFile {
 public:
  explicit GgufFile(std::shared_ptr<const File> file) : reader_(std::move(file)) {}

  const char* format() const noexcept override { return "gguf"; }
  const std::string& path() const noexcept override { return reader_.file().path(); }

  std::vector<FileTensor> tensors() const override {
    std::vector<FileTensor> list;
    for (const GgufTensor& t : reader_.tensors())
      list.push_back({std::string(t.name), ggml_type_name(t.type), t.shape, t.bytes});
    return list;
  }

  ModelConfig config() const override {
    const Architecture architecture = this->architecture();
    ModelConfig c;
    c.layer_count = u32("block_count");
    c.maximum_context = u32("context_length");
    c.width = u32("embedding_length");
    c.mlp_width = u32("feed_forward_length");
    c.head_count = u32("attention.head_count");
    if (c.head_count == 0)
      fail(Status::corrupt_data, "%s: %s is 0", path().c_str(), key("attention.head_count").c_str());
    c.head_width = c.width / c.head_count;
    if (architecture == Architecture::gpt2) {
      read_gpt2(c);
    } else {
      read_rotary_family(c, architecture);
    }
    c.tied_head = !reader_.find_tensor("output.weight");
    const GgufTensor* embedding = reader_.find_tensor("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2 || embedding->shape[0] > UINT32_MAX)
      fail(Status::corrupt_data, "%s: there is no matrix token_embd.weight", path().c_str());
    c.vocabulary_size = uint32_t(embedding->shape[0]);
    validate(c, Status::corrupt_data, path());
    return c;
  }

  std::shared_ptr<const Tokenizer> tokenizer() const override {
    if (!reader_.find("tokenizer.ggml.model")) return nullptr;
    GgufTokenizerMetadata m;
    m.model = reader_.get_string("tokenizer.ggml.model");
    if (m.model == "none") return nullptr;
    if (reader_.find("tokenizer.ggml.pre")) m.pre = reader_.get_string("tokenizer.ggml.pre");
    m.tokens = reader_.get_strings("tokenizer.ggml.tokens");
    if (reader_.find("tokenizer.ggml.merges")) m.merges = reader_.get_strings("tokenizer.ggml.merges");
    if (reader_.find("tokenizer.ggml.token_type"))
      m.token_types = reader_.get_integers("tokenizer.ggml.token_type");
    if (reader_.find("tokenizer.ggml.scores"))
      for (const double score : reader_.get_floats("tokenizer.ggml.scores")) m.scores.push_back(float(score));
    const std::pair<const char*, std::optional<uint64_t>*> ids[] = {
        {"bos", &m.bos_token_id}, {"eos", &m.eos_token_id},         {"eot", &m.eot_token_id},
        {"eom", &m.eom_token_id}, {"unknown", &m.unknown_token_id}, {"padding", &m.padding_token_id}};
    for (const auto& [name, id] : ids) {
      const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
      if (reader_.find(key)) *id = reader_.get_u64(key);
    }
    const std::pair<const char*, std::optional<bool>*> flags[] = {{"add_bos_token", &m.add_bos_token},
                                                                  {"add_eos_token", &m.add_eos_token},
                                                                  {"add_space_prefix", &m.add_space_prefix}};
    for (const auto& [name, flag] : flags) {
      const std::string key = std::string("tokenizer.ggml.") + name;
      if (reader_.find(key)) *flag = reader_.get_bool(key);
    }
    if (reader_.find("tokenizer.chat_template"))
      m.chat_template = reader_.get_string("tokenizer.chat_template");
    return tokenizer_from_gguf(m, path());
  }

  ModelMetadata metadata() const override {
    constexpr uint64_t kMostListed = 256;
    ModelMetadata all;
    for (const GgufEntry& entry : reader_.metadata())
      if (entry.count <= kMostListed) all.emplace(entry.key, gguf_value_text(entry));
    return all;
  }

  ParameterSource open(const ParameterInfo& p) const override {
    if (!config_) config_ = config();
    const TensorName mapping = gguf_tensor(reader_.get_string("general.architecture"), p.name);
    const GgufTensor* tensor = reader_.find_tensor(mapping.name);
    if (!tensor)
      fail(Status::corrupt_data, "%s: there is no tensor %s", path().c_str(), mapping.name.c_str());
    const uint64_t units = p.is_vector ? p.columns : p.rows, all = units * mapping.parts;
    check_shape(path(), mapping.name, tensor->shape,
                p.is_vector ? std::vector<uint64_t>{all} : std::vector<uint64_t>{all, p.columns});
    read_.insert(mapping.name);
    const DType type = reader_.dtype(*tensor);
    const size_t unit = row_bytes(type, p.is_vector ? dtype_info(type).block : p.columns);
    const uint32_t head = mapping.interleaved ? config_->head_width : 0;
    const uint64_t skipped = mapping.part * units;
    return {type, head ? head : 1,
            [this, tensor, unit, head, skipped](uint32_t first, uint32_t count, std::byte* out) {
              reader_.read(*tensor, (skipped + first) * unit, {out, count * unit});
              if (head) unpermute(out, count, head, unit);
            }};
  }

  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    for (const GgufTensor& t : reader_.tensors())
      if (!read_.contains(std::string(t.name))) names.emplace_back(t.name);
    return names;
  }

 private:
  Architecture architecture() const {
    const std::string_view name = reader_.get_string("general.architecture");
    for (const auto& [known, architecture] : kArchitectures)
      if (name == known) return architecture;
    fail(Status::unsupported, "%s: architecture %s is not supported (gpt2, llama, qwen2 and qwen3 are)",
         path().c_str(), quoted(std::string(name)).c_str());
  }

  // Keys of the architecture, "llama.block_count".
  std::string key(const char* name) const {
    return std::string(reader_.get_string("general.architecture")) + "." + name;
  }
  bool has(const char* name) const { return reader_.find(key(name)); }
  uint32_t u32(const char* name) const {
    const uint64_t value = reader_.get_u64(key(name));
    if (value > UINT32_MAX)
      fail(Status::corrupt_data, "%s: %s is %" PRIu64, path().c_str(), key(name).c_str(), value);
    return uint32_t(value);
  }
  uint32_t u32(const char* name, uint32_t otherwise) const { return has(name) ? u32(name) : otherwise; }
  double number(const char* name, double otherwise) const {
    return has(name) ? reader_.get_f64(key(name)) : otherwise;
  }
  void require(const char* name, double only) const {
    if (number(name, only) != only)
      fail(Status::unsupported, "%s: %s = %g is not supported", path().c_str(), key(name).c_str(),
           number(name, only));
  }

  void read_gpt2(ModelConfig& c) const {
    c.kv_head_count = c.head_count;
    if (c.width % c.head_count != 0)
      fail(Status::corrupt_data, "%s: %s %u does not divide %u", path().c_str(),
           key("attention.head_count").c_str(), c.head_count, c.width);
    c.norm_epsilon = reader_.get_f64(key("attention.layer_norm_epsilon"));
    c.activation = Activation::gelu_tanh;
    c.biases = biases();
    if (c.biases & kBiasQ) c.biases |= kBiasK | kBiasV;
    if (reader_.find_tensor("output_norm.bias")) c.biases |= kBiasNorms;
  }

  void read_rotary_family(ModelConfig& c, Architecture architecture) const {
    const char* const from = path().c_str();
    c.kv_head_count = u32("attention.head_count_kv", c.head_count);
    c.head_width = u32("attention.key_length", c.head_width);
    if (u32("attention.value_length", c.head_width) != c.head_width)
      fail(Status::unsupported, "%s: keys of %u and values of %u dims are not supported", from, c.head_width,
           u32("attention.value_length"));
    if (u32("expert_count", 0) != 0)
      fail(Status::unsupported, "%s: %s = %u is not supported", from, key("expert_count").c_str(),
           u32("expert_count"));
    c.position = PositionKind::rotary;
    c.rotary_width = u32("rope.dimension_count", c.head_width);
    if (c.rotary_width != c.head_width)
      fail(Status::unsupported, "%s: %s %u of heads of %u dims is not supported", from,
           key("rope.dimension_count").c_str(), c.rotary_width, c.head_width);
    c.rotary_base = number("rope.freq_base", 10000.0);
    read_rotary_scaling(c);
    read_window(c, architecture);
    c.norm = NormKind::rms;
    c.norm_epsilon = reader_.get_f64(key("attention.layer_norm_rms_epsilon"));
    c.activation = Activation::silu_gated;
    c.qk_norm = architecture == Architecture::qwen3;
    c.biases = biases();
  }

  // As the format's other readers take it: a factor without a type is linear, 0 or 1 is none.
  void read_rotary_scaling(ModelConfig& c) const {
    std::string type = has("rope.scaling.type") ? std::string(reader_.get_string(key("rope.scaling.type")))
                                                : std::string("linear");
    double factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0));
    if (factor == 0) factor = 1;
    if (type == "linear" && factor == 1) type = "none";
    const bool by_pair = reader_.find_tensor("rope_freqs.weight");
    if ((type != "none" && type != "linear" && type != "yarn") || (by_pair && type != "none"))
      fail(Status::unsupported, "%s: rotary scaling %s%s is not supported", path().c_str(),
           quoted(type).c_str(), by_pair ? " with rope_freqs.weight" : "");
    if (type != "yarn") require("rope.scaling.attn_factor", 1);
    if (by_pair) c.rotary_scaling = RotaryScaling::factors;
    if (type == "none") return;
    c.rotary_scaling = type == "linear" ? RotaryScaling::linear : RotaryScaling::yarn;
    c.rotary_factor = factor;
    if (type == "linear") return;
    require("rope.scaling.yarn_ext_factor", 1);
    require("rope.scaling.yarn_attn_factor", 1);
    require("rope.scaling.yarn_log_multiplier", 0);
    c.rotary_original_context = u32("rope.scaling.original_context_length", c.maximum_context);
    c.rotary_fast_rotations = number("rope.scaling.yarn_beta_fast", 32);
    c.rotary_slow_rotations = number("rope.scaling.yarn_beta_slow", 1);
    c.rotary_attention_factor =
        (factor > 1 ? 0.1 * math::log(factor) + 1 : 1) * number("rope.scaling.attn_factor", 1);
  }

  // Which layers have the window is for the pattern to say (true: it has), but in llama, where all have.
  void read_window(ModelConfig& c, Architecture architecture) const {
    const uint32_t window = u32("attention.sliding_window", 0);
    const std::string pattern = key("attention.sliding_window_pattern");
    if (window == 0) return;
    std::vector<bool> windowed(1, true);
    if (reader_.find(pattern)) {
      windowed = reader_.get_bools(pattern);
      if (windowed.size() != c.layer_count)
        fail(Status::corrupt_data, "%s: %s has %zu values for %u layers", path().c_str(), pattern.c_str(),
             windowed.size(), c.layer_count);
    } else if (architecture != Architecture::llama) {
      fail(Status::unsupported, "%s: %s = %u without %s is not supported", path().c_str(),
           key("attention.sliding_window").c_str(), window, pattern.c_str());
    }
    const auto first = std::find(windowed.begin(), windowed.end(), true);
    if (std::find(first, windowed.end(), false) != windowed.end())
      fail(Status::unsupported, "%s: %s: a layer without the window behind one with it is not supported",
           path().c_str(), pattern.c_str());
    if (first == windowed.end()) return;
    c.sliding_window = window;
    c.first_window_layer = uint32_t(first - windowed.begin());
  }

  // A projection has a bias when the first layer's has; a layer that differs is found when its tensors are read.
  uint32_t biases() const {
    const std::pair<const char*, uint32_t> projections[] = {
        {"blk.0.attn_qkv.bias", kBiasQ},    {"blk.0.attn_q.bias", kBiasQ},
        {"blk.0.attn_k.bias", kBiasK},      {"blk.0.attn_v.bias", kBiasV},
        {"blk.0.attn_output.bias", kBiasO}, {"blk.0.ffn_up.bias", kBiasUp},
        {"blk.0.ffn_gate.bias", kBiasGate}, {"blk.0.ffn_down.bias", kBiasDown}};
    uint32_t found = 0;
    for (const auto& [tensor, bias] : projections)
      if (reader_.find_tensor(tensor)) found |= bias;
    return found;
  }

  GgufReader reader_;
  mutable std::optional<ModelConfig> config_;
  mutable std::set<std::string> read_;
};

}  // namespace

std::unique_ptr<ModelFile> open_gguf(std::shared_ptr<const File> file) {
  return std::make_unique<GgufFile>(std::move(file));
}

}  // namespace riftco
