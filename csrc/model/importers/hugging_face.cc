// Hugging Face folders: config.json and safetensors, families gpt2 and llama with its kin.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/json.h"
#include "io/safetensors.h"
#include "model/importers/hugging_face_config.h"
#include "model/importers/model_file.h"

namespace riftco {
namespace {

using nlohmann::json;

constexpr uint64_t kMostConfigBytes = 16 << 20;
constexpr uint64_t kMostTokenizerBytes = 256 << 20;

// Buffers that some checkpoints carry and that hold no parameter: causal masks, inverse frequencies.
bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

class HuggingFaceFolder : public ModelFile {
 public:
  explicit HuggingFaceFolder(std::string_view path) : path_(path) {
    config_json_ = parse_json(read_small_file(file("config.json"), kMostConfigBytes), file("config.json"));
    family_ = hugging_face_family(config_json_, file("config.json"));
    open_shards();
    const char* const prefix = hugging_face_prefix(family_);
    for (const auto& [name, at] : tensors_)
      if (name.starts_with(prefix)) prefix_ = prefix;
  }

  const char* format() const noexcept override { return "huggingface"; }
  const std::string& path() const noexcept override { return path_; }

  std::vector<FileTensor> tensors() const override {
    std::vector<FileTensor> list;
    for (const auto& shard : shards_)
      for (const SafetensorsTensor& t : shard->tensors()) list.push_back({t.name, t.dtype, t.shape, t.bytes});
    return list;
  }

  ModelConfig config() const override {
    ModelConfig config = hugging_face_config(family_, config_json_, file("config.json"));
    // As transformers does: a head that is in the file and differs from the embedding is used, whatever config.json says.
    const std::string embedding = hugging_face_tensor(family_, "embedding.token", prefix_).name;
    if (config.tied_head && !same_tensor(embedding, "lm_head.weight")) config.tied_head = false;
    return config;
  }

  std::shared_ptr<const Tokenizer> tokenizer() const override {
    const std::string tokenizer_json = optional_text("tokenizer.json", kMostTokenizerBytes);
    if (tokenizer_json.empty()) return nullptr;
    const std::string tokenizer_config = optional_text("tokenizer_config.json", kMostConfigBytes),
                      special = optional_text("special_tokens_map.json", kMostConfigBytes),
                      chat = optional_text("chat_template.jinja", kMostConfigBytes);
    std::string generation = optional_text("generation_config.json", kMostConfigBytes);
    if (generation.empty()) generation = config_json_.dump();
    return tokenizer_from_hugging_face({tokenizer_json, tokenizer_config, special, generation, chat}, path_);
  }

  ModelMetadata metadata() const override {
    ModelMetadata all;
    for (const auto& [key, value] : config_json_.items())
      all[key] = value.is_string() ? value.get<std::string>() : value.dump();
    return all;
  }

  ParameterSource open(const ParameterInfo& p) const override {
    const TensorName mapping = hugging_face_tensor(family_, p.name, prefix_);
    const auto found = tensors_.find(mapping.name);
    if (found == tensors_.end())
      fail(Status::corrupt_data, "%s: there is no tensor %s", path_.c_str(), mapping.name.c_str());
    const SafetensorsReader& shard = *shards_[found->second];
    const SafetensorsTensor& tensor = *shard.find(mapping.name);
    read_.insert(mapping.name);
    const uint64_t units = uint64_t(p.is_vector ? p.columns : p.rows), all = units * mapping.parts;
    if (p.is_vector) {
      check_shape(path_, mapping.name, tensor.shape, {all});
    } else {
      check_shape(
          path_, mapping.name, tensor.shape,
          mapping.transposed ? std::vector<uint64_t>{p.columns, all} : std::vector<uint64_t>{all, p.columns});
    }
    const DType type = shard.dtype(tensor);
    const size_t element = dtype_info(type).bytes, unit = element * (p.is_vector ? 1 : p.columns);
    const uint64_t skipped = mapping.part * units;
    if (mapping.transposed) return transposed(shard, tensor, type, skipped, all, p.columns);
    return {type, 1, [&shard, &tensor, unit, skipped](uint32_t first, uint32_t count, std::byte* out) {
              shard.read(tensor, (skipped + first) * unit, {out, count * unit});
            }};
  }

  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    for (const auto& [name, shard] : tensors_) {
      const bool copy_of_embedding =
          name == "lm_head.weight";  // else config() says that the head is not tied
      if (!read_.contains(name) && !is_buffer(name) && !copy_of_embedding) names.push_back(name);
    }
    return names;
  }

 private:
  std::string file(const char* name) const { return path_ + "/" + name; }

  std::string optional_text(const char* name, uint64_t most) const {
    return exists(file(name)) ? read_small_file(file(name), most) : std::string();
  }

  // False when both are there and differ.
  bool same_tensor(const std::string& a_name, const std::string& b_name) const {
    const auto a = tensors_.find(a_name), b = tensors_.find(b_name);
    if (a == tensors_.end() || b == tensors_.end()) return true;
    const SafetensorsTensor &left = *shards_[a->second]->find(a_name),
                            &right = *shards_[b->second]->find(b_name);
    if (left.dtype != right.dtype || left.shape != right.shape) return false;
    constexpr uint64_t kPiece = 1 << 20;
    std::vector<std::byte> x(std::min(kPiece, left.bytes)), y(x.size());
    for (uint64_t at = 0; at < left.bytes; at += kPiece) {
      const size_t n = size_t(std::min(kPiece, left.bytes - at));
      shards_[a->second]->read(left, at, std::span(x).first(n));
      shards_[b->second]->read(right, at, std::span(y).first(n));
      if (!std::equal(x.begin(), x.begin() + ptrdiff_t(n), y.begin())) return false;
    }
    return true;
  }

  void open_shards() {
    const std::string index = file("model.safetensors.index.json");
    std::vector<std::string> names;
    if (exists(file("model.safetensors"))) {
      names.push_back("model.safetensors");
    } else if (exists(index)) {
      const json document = parse_json(read_small_file(index, kMostTokenizerBytes), index);
      const auto map = document.is_object() ? document.find("weight_map") : document.end();
      if (map == document.end() || !map->is_object())
        fail(Status::corrupt_data, "%s: there is no weight_map", index.c_str());
      std::set<std::string> unique;
      for (const auto& [tensor, shard] : map->items()) {
        const std::string name = shard.is_string() ? shard.get<std::string>() : std::string();
        if (name.empty() || name.find('/') != std::string::npos)
          fail(Status::corrupt_data, "%s: the file of %s is %s", index.c_str(), quoted(tensor).c_str(),
               quoted(shard.dump()).c_str());
        unique.insert(name);
      }
      names.assign(unique.begin(), unique.end());
    } else {
      fail(Status::input_output, "%s: there is neither model.safetensors nor model.safetensors.index.json",
           path_.c_str());
    }
    for (const std::string& name : names) {
      shards_.push_back(std::make_unique<SafetensorsReader>(std::make_shared<File>(file(name.c_str()))));
      for (const SafetensorsTensor& t : shards_.back()->tensors())
        if (!tensors_.emplace(t.name, shards_.size() - 1).second)
          fail(Status::corrupt_data, "%s: two files have a tensor %s", path_.c_str(), quoted(t.name).c_str());
    }
  }

  // A tensor [inputs, all outputs] in memory from the first read of its rows to the last.
  struct Whole {
    std::mutex mutex;
    std::vector<std::byte> bytes;
    uint64_t rows_left = 0;
  };

  // Rows of W from such a tensor.
  ParameterSource transposed(const SafetensorsReader& shard, const SafetensorsTensor& tensor, DType type,
                             uint64_t skipped, uint64_t all, uint32_t inputs) const {
    const size_t element = dtype_info(type).bytes;
    Whole& whole = whole_[tensor.name];
    return {type, 1,
            [&whole, &shard, &tensor, element, skipped, all, inputs](uint32_t first, uint32_t count,
                                                                     std::byte* out) {
              {
                const std::lock_guard lock(whole.mutex);
                if (whole.rows_left == 0) {
                  whole.bytes.resize(tensor.bytes);
                  shard.read(tensor, 0, whole.bytes);
                  whole.rows_left = all;
                }
              }
              for (uint32_t i = 0; i < inputs; i++) {
                const std::byte* from = whole.bytes.data() + (i * all + skipped + first) * element;
                for (uint32_t o = 0; o < count; o++, from += element)
                  std::copy_n(from, element, out + (size_t(o) * inputs + i) * element);
              }
              const std::lock_guard lock(whole.mutex);
              whole.rows_left -= count;
              if (whole.rows_left == 0) whole.bytes = {};
            }};
  }

  std::string path_;
  json config_json_;
  HuggingFaceFamily family_;
  std::string prefix_;
  std::vector<std::unique_ptr<SafetensorsReader>> shards_;
  std::map<std::string, size_t> tensors_;  // name -> index into shards_
  mutable std::set<std::string> read_;
  mutable std::map<std::string, Whole> whole_;
};

}  // namespace

std::unique_ptr<ModelFile> open_hugging_face(std::string_view path) {
  return std::make_unique<HuggingFaceFolder>(path);
}

}  // namespace riftco
