#include "model/load.h"

#include <algorithm>
#include <cstring>

#include "backend/registry.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"
#include "model/importers/model_file.h"

namespace riftco {
namespace {

constexpr size_t kPieceBytes = 1 << 20;  // of a tensor in memory while it is packed
constexpr uint64_t kMostTokenizerBytes = 256 << 20;

enum class Kind { gguf, json, safetensors };

// By what the file begins with, never by its name.
Kind kind_of(const File& file) {
  char start[4] = {};
  file.read_at(0, std::as_writable_bytes(std::span(start).first(std::min<uint64_t>(4, file.size()))));
  if (std::memcmp(start, "GGUF", 4) == 0) return Kind::gguf;
  // A safetensors file begins with the length of its header, less than 2^32; no JSON text has zero bytes.
  return std::memchr(start, 0, 4) ? Kind::safetensors : Kind::json;
}

std::unique_ptr<ModelFile> open_model_file(std::shared_ptr<const File> file, Progress& progress) {
  return kind_of(*file) == Kind::gguf ? open_gguf(std::move(file)) : open_rift(std::move(file), progress);
}

std::unique_ptr<ModelFile> open_model_file(std::string_view path, Progress& progress) {
  return is_folder(path) ? open_hugging_face(path)
                         : open_model_file(std::make_shared<const File>(path), progress);
}

uint64_t file_bytes(const ParameterInfo& p) { return uint64_t(p.rows) * row_bytes(p.type, p.columns); }

void fill(Weights& weights, const ModelFile& file, Progress& progress) {
  uint64_t total = 0;
  for (const ParameterInfo& p : weights.parameters()) total += file_bytes(p);
  progress.begin(total);
  std::vector<std::byte> piece;
  std::vector<float> values;
  for (size_t i = 0; i < weights.parameters().size(); i++) {
    const ParameterInfo& p = weights.parameters()[i];
    const ParameterSource source = file.open(p);
    if (p.is_vector) {
      piece.resize(row_bytes(source.type, p.columns));
      values.resize(p.columns);
      source.read(0, p.columns, piece.data());
      dequantise(source.type, piece.data(), values);
      weights.set_rows(i, 0, 1, reinterpret_cast<const std::byte*>(values.data()));
      progress.advance(file_bytes(p));
      continue;
    }
    const size_t row = row_bytes(p.type, p.columns);
    const size_t groups = std::max<size_t>(1, kPieceBytes / row / std::max<uint32_t>(source.granularity, 16));
    const uint32_t step =
        uint32_t(std::min<size_t>(p.rows, groups * std::max<uint32_t>(source.granularity, 16)));
    const uint32_t rows = step / source.granularity * source.granularity;
    piece.resize(rows * row);
    for (uint32_t first = 0; first < p.rows; first += rows) {
      const uint32_t count = std::min(rows, p.rows - first);
      source.read(first, count, piece.data());
      weights.set_rows(i, first, count, piece.data());
      progress.advance(count * row);
    }
  }
}

// The parameters with the types that the file has.
std::vector<ParameterInfo> typed_parameters(const ModelFile& file, const ModelConfig& config) {
  std::vector<ParameterInfo> parameters = parameter_list(config, DType::f32);
  for (ParameterInfo& p : parameters) {
    const DType type = file.open(p).type;
    if (!p.is_vector) {
      p.type = type;
    } else if (is_quantised(type)) {
      fail(Status::unsupported, "%s: %s is of type %s; vectors must be f32, f16 or bf16", file.path().c_str(),
           p.name.c_str(), dtype_info(type).name);
    }
  }
  const std::vector<std::string> unread = file.unread();
  if (!unread.empty())
    fail(Status::unsupported, "%s: %zu tensors are of no use to the architecture it names, the first is %s",
         file.path().c_str(), unread.size(), quoted(unread.front()).c_str());
  return parameters;
}

void check_vocabulary(const ModelFile& file, const Tokenizer* tokenizer, const ModelConfig& config) {
  if (tokenizer && tokenizer->vocabulary_size() > config.vocabulary_size)
    fail(Status::corrupt_data, "%s: the tokenizer has %u tokens, the model %u", file.path().c_str(),
         tokenizer->vocabulary_size(), config.vocabulary_size);
}

nlohmann::ordered_json describe(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  out["kind"] = tokenizer.kind();
  out["vocabulary_size"] = tokenizer.vocabulary_size();
  out["bos_token"] = special.bos ? nlohmann::ordered_json(*special.bos) : nlohmann::ordered_json();
  out["end_of_generation_tokens"] = special.end_of_generation;
  out["adds_bos"] = tokenizer.adds_bos();
  out["has_chat_template"] = !tokenizer.chat_template().empty();
  return out;
}

void describe_computation(nlohmann::ordered_json& out, const ModelFile& file) {
  const ModelConfig config = file.config();
  out["config"] = nlohmann::ordered_json::parse(config_to_json(config));
  out["parameter_count"] = parameter_count(config);
  const std::shared_ptr<const Tokenizer> tokenizer = file.tokenizer();
  check_vocabulary(file, tokenizer.get(), config);
  if (tokenizer) out["tokenizer"] = describe(*tokenizer);
  const Device& device = find_device(int32_t(Backend::cpu));
  constexpr uint32_t kPage = 16;  // tokens; the default of caches
  const auto page_bytes = [&](DType element) {
    return device.kernels->kv_page_bytes(
        {config.layer_count, config.kv_head_count, config.head_width, kPage, element});
  };
  const size_t page = page_bytes(DType::f32);
  out["memory"] = {
      {"weight_bytes", Weights::packed_bytes(device, typed_parameters(file, config))},
      {"kv_cache_bytes_per_token", page / kPage},
      {"kv_cache_bytes_per_page", page},
      {"kv_cache_bytes_per_page_16_bit", page_bytes(DType::f16)},
      {"kv_cache_bytes_full_context", (uint64_t(config.maximum_context) + kPage - 1) / kPage * page}};
}

std::shared_ptr<DecoderOnlyTransformer> load(const Device& device, const ModelFile& file,
                                             LoadOptions& options) {
  const ModelConfig config = file.config();
  std::shared_ptr<const Tokenizer> tokenizer = file.tokenizer();
  check_vocabulary(file, tokenizer.get(), config);
  auto account = std::make_shared<MemoryAccount>(options.memory_limit);
  auto weights = std::make_unique<Weights>(device, config, typed_parameters(file, config), account);
  fill(*weights, file, options.progress);
  log(LogLevel::info, "loaded %s: %s, %zu bytes of weights, kernels %s", file.path().c_str(), file.format(),
      weights->bytes(), device.kernels->name);
  auto model = std::make_shared<DecoderOnlyTransformer>(std::move(weights), std::move(tokenizer),
                                                        std::move(account), options.threads, file.metadata());
  options.progress.finish();
  return model;
}

std::string inspect(const ModelFile& file) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  out["path"] = file.path();
  out["format"] = file.format();
  out["supported"] = true;
  out["reason"] = nullptr;
  out["tokenizer"] = nullptr;
  try {
    describe_computation(out, file);
  } catch (const Error& error) {  // still worth listing
    if (error.status() != Status::unsupported) throw;
    out["supported"] = false;
    out["reason"] = error.what();
  }
  out["metadata"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : file.metadata()) out["metadata"][key] = value;
  out["tensors"] = nlohmann::ordered_json::array();
  for (const FileTensor& t : file.tensors())
    out["tensors"].push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void check_shape(const std::string& path, std::string_view tensor, const std::vector<uint64_t>& shape,
                 const std::vector<uint64_t>& expected) {
  if (shape == expected) return;
  auto text = [](const std::vector<uint64_t>& dims) {
    std::string out = "[";
    for (uint64_t d : dims) out += (out.size() > 1 ? ", " : "") + std::to_string(d);
    return out + "]";
  };
  fail(Status::corrupt_data, "%s: tensor %s has shape %s, not %s", path.c_str(),
       quoted(std::string(tensor)).c_str(), text(shape).c_str(), text(expected).c_str());
}

std::shared_ptr<DecoderOnlyTransformer> load_model(std::string_view path, LoadOptions options) {
  const Device& device = find_device(options.backend);
  return load(device, *open_model_file(path, options.progress), options);
}

std::shared_ptr<DecoderOnlyTransformer> load_model(std::shared_ptr<const File> file, LoadOptions options) {
  const Device& device = find_device(options.backend);
  return load(device, *open_model_file(std::move(file), options.progress), options);
}

std::string inspect_model(std::string_view path) {
  Progress progress("inspecting");
  return inspect(*open_model_file(path, progress));
}

std::string inspect_model(std::shared_ptr<const File> file) {
  Progress progress("inspecting");
  return inspect(*open_model_file(std::move(file), progress));
}

std::shared_ptr<const Tokenizer> load_tokenizer(std::string_view path) {
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!is_folder(path) && kind_of(File(path)) == Kind::json) {
    tokenizer = tokenizer_from_hugging_face({read_small_file(path, kMostTokenizerBytes), {}, {}, {}, {}},
                                            std::string(path));
  } else {
    Progress progress("loading");
    tokenizer = open_model_file(path, progress)->tokenizer();
  }
  if (!tokenizer) fail(Status::invalid_state, "%s has no tokenizer", std::string(path).c_str());
  return tokenizer;
}

}  // namespace riftco
