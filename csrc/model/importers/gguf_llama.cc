// GGUF files of architecture llama.
#include <cinttypes>
#include <set>

#include "io/gguf.h"
#include "model/importers/model_file.h"
#include "model/importers/tensor_names.h"

namespace riftco {
namespace {

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
    const std::string_view architecture = reader_.get_string("general.architecture");
    if (architecture != "llama")
      fail(Status::unsupported, "%s: architecture %s is not supported (llama is)", path().c_str(),
           quoted(std::string(architecture)).c_str());
    refuse_unsupported();
    ModelConfig c;
    c.layer_count = u32("llama.block_count");
    c.maximum_context = u32("llama.context_length");
    c.width = u32("llama.embedding_length");
    c.mlp_width = u32("llama.feed_forward_length");
    c.head_count = u32("llama.attention.head_count");
    c.kv_head_count = u32("llama.attention.head_count_kv", c.head_count);
    if (c.head_count == 0) fail(Status::corrupt_data, "%s: llama.attention.head_count is 0", path().c_str());
    c.head_width = u32("llama.attention.key_length", c.width / c.head_count);
    if (u32("llama.attention.value_length", c.head_width) != c.head_width)
      fail(Status::unsupported, "%s: keys of %u and values of %u dims are not supported", path().c_str(),
           c.head_width, u32("llama.attention.value_length", 0));
    c.position = PositionKind::rotary;
    c.rotary_width = u32("llama.rope.dimension_count", c.head_width);
    if (c.rotary_width != c.head_width)
      fail(Status::unsupported, "%s: llama.rope.dimension_count %u of heads of %u dims is not supported",
           path().c_str(), c.rotary_width, c.head_width);
    c.rotary_base = reader_.find("llama.rope.freq_base") ? reader_.get_f64("llama.rope.freq_base") : 10000.0;
    c.norm = NormKind::rms;
    c.norm_epsilon = reader_.get_f64("llama.attention.layer_norm_rms_epsilon");
    c.activation = Activation::silu_gated;
    c.tied_head = !reader_.find_tensor("output.weight");
    c.biases = biases();
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
    const TensorName mapping = gguf_tensor("llama", p.name);
    const GgufTensor* tensor = reader_.find_tensor(mapping.name);
    if (!tensor)
      fail(Status::corrupt_data, "%s: there is no tensor %s", path().c_str(), mapping.name.c_str());
    check_shape(path(), mapping.name, tensor->shape,
                p.is_vector ? std::vector<uint64_t>{p.columns} : std::vector<uint64_t>{p.rows, p.columns});
    read_.insert(mapping.name);
    const DType type = reader_.dtype(*tensor);
    const size_t unit = row_bytes(type, p.is_vector ? 1 : p.columns);
    const uint32_t head = mapping.interleaved ? config_->head_width : 0;
    return {type, head ? head : 1,
            [this, tensor, unit, head](uint32_t first, uint32_t units, std::byte* out) {
              reader_.read(*tensor, first * unit, {out, units * unit});
              if (head) unpermute(out, units, head, unit);
            }};
  }

  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    for (const GgufTensor& t : reader_.tensors())
      if (!read_.contains(std::string(t.name))) names.emplace_back(t.name);
    return names;
  }

 private:
  uint32_t u32(const char* key) const {
    const uint64_t value = reader_.get_u64(key);
    if (value > UINT32_MAX) fail(Status::corrupt_data, "%s: %s is %" PRIu64, path().c_str(), key, value);
    return uint32_t(value);
  }
  uint32_t u32(const char* key, uint32_t otherwise) const { return reader_.find(key) ? u32(key) : otherwise; }

  // What changes the computation and is not built.
  void refuse_unsupported() const {
    const char* const from = path().c_str();
    if (reader_.find("llama.rope.scaling.type") && reader_.get_string("llama.rope.scaling.type") != "none")
      fail(Status::unsupported, "%s: rotary scaling %s is not supported", from,
           quoted(std::string(reader_.get_string("llama.rope.scaling.type"))).c_str());
    for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"})
      if (reader_.find(key) && reader_.get_f64(key) != 1.0)
        fail(Status::unsupported, "%s: rotary scaling (%s = %g) is not supported", from, key,
             reader_.get_f64(key));
    for (const char* key : {"llama.attention.sliding_window", "llama.expert_count"})
      if (reader_.find(key) && reader_.get_u64(key) != 0)
        fail(Status::unsupported, "%s: %s = %" PRIu64 " is not supported", from, key, reader_.get_u64(key));
  }

  // A projection has a bias when the first layer's has; a layer that differs is found when its tensors are read.
  uint32_t biases() const {
    const std::pair<const char*, uint32_t> projections[] = {
        {"blk.0.attn_q.bias", kBiasQ},     {"blk.0.attn_k.bias", kBiasK},
        {"blk.0.attn_v.bias", kBiasV},     {"blk.0.attn_output.bias", kBiasO},
        {"blk.0.ffn_up.bias", kBiasUp},    {"blk.0.ffn_gate.bias", kBiasGate},
        {"blk.0.ffn_down.bias", kBiasDown}};
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
