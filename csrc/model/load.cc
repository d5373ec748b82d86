#include "model/load.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/registry.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/log.h"
#include "base/tasks.h"
#include "model/element_type.h"
#include "model/importers/model_file.h"

namespace riftco {
namespace {

constexpr size_t kPieceBytes = 256 << 10;  // of a tensor, read and packed: what a second-level cache holds
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

// Rows of a parameter that are read and packed in one go.
struct Piece {
  size_t parameter;
  uint32_t first, rows;
};

std::vector<Piece> pieces_of(const std::vector<ParameterInfo>& parameters,
                             const std::vector<ParameterSource>& sources) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < parameters.size(); i++) {
    const ParameterInfo& p = parameters[i];
    const size_t unit = p.is_vector ? 1 : std::lcm<size_t>(sources[i].granularity, 16);  // whole panels
    const size_t units = std::max<size_t>(1, kPieceBytes / row_bytes(p.type, p.columns) / unit);
    const uint32_t rows = uint32_t(std::min<size_t>(p.rows, units * unit));
    for (uint32_t first = 0; first < p.rows; first += rows)
      pieces.push_back({i, first, std::min(rows, p.rows - first)});
  }
  return pieces;
}

// What a worker keeps from piece to piece.
struct Scratch {
  std::vector<std::byte> rows, converted;
};

void read_piece(Weights& weights, const ParameterSource& source, const Piece& piece, Scratch& scratch) {
  const ParameterInfo& p = weights.parameters()[piece.parameter];
  scratch.rows.resize(piece.rows * row_bytes(source.type, p.columns));
  source.read(piece.first, p.is_vector ? p.columns : piece.rows, scratch.rows.data());
  if (source.type == p.type)
    return weights.set_rows(piece.parameter, piece.first, piece.rows, scratch.rows.data());
  check_finite(p, piece.first, piece.rows, source.type, scratch.rows.data());
  scratch.converted.resize(piece.rows * row_bytes(p.type, p.columns));
  convert_rows(p, piece.first, piece.rows, source.type, scratch.rows.data(), p.type,
               scratch.converted.data());
  weights.set_rows(piece.parameter, piece.first, piece.rows, scratch.converted.data());
}

// The parameters with the types that the file has, or matrices with this one.
std::vector<ParameterInfo> typed_parameters(const ModelFile& file, const ModelConfig& config,
                                            std::optional<DType> wanted = {}) {
  std::vector<ParameterInfo> parameters = parameter_list(config, DType::f32);
  for (ParameterInfo& p : parameters) {
    const DType type = file.open(p).type;
    if (!p.is_vector) {
      p.type = type;
      p.type = element_type(p, wanted);
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

// The tokenizer and the pieces of the weights, on all threads at once.
std::shared_ptr<DecoderOnlyTransformer> load(const Device& device, const ModelFile& file,
                                             LoadOptions& options) {
  const ModelConfig config = file.config();
  auto account = std::make_shared<MemoryAccount>(options.memory_limit);
  auto weights = std::make_unique<Weights>(device, config, typed_parameters(file, config, options.type),
                                           account, options.compute);
  const std::vector<ParameterInfo>& parameters = weights->parameters();
  std::vector<ParameterSource> sources;
  for (const ParameterInfo& p : parameters) sources.push_back(file.open(p));
  const std::vector<Piece> pieces = pieces_of(parameters, sources);
  const auto bytes_of = [&](const Piece& piece) {
    const ParameterInfo& p = parameters[piece.parameter];
    return uint64_t(piece.rows) * row_bytes(p.type, p.columns);
  };
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += bytes_of(piece);
  options.progress.begin(total);

  const auto threads = std::make_shared<ThreadPool>(options.threads);
  std::vector<Scratch> scratch(threads->threads());
  std::shared_ptr<const Tokenizer> tokenizer;
  const auto task = [&](uint32_t i, uint32_t worker) {
    if (i > 0) return read_piece(*weights, sources[pieces[i - 1].parameter], pieces[i - 1], scratch[worker]);
    tokenizer = file.tokenizer();
    check_vocabulary(file, tokenizer.get(), config);
  };
  // Told in order, in whatever order they are done.
  const auto done = [&](uint32_t tasks) {
    options.progress.advance(tasks == 1 ? 0 : bytes_of(pieces[tasks - 2]));
  };
  run_tasks(*threads, uint32_t(1 + pieces.size()), task, done);
  log(LogLevel::info, "loaded %s: %s, %zu bytes of weights, kernels %s", file.path().c_str(), file.format(),
      weights->bytes(), device.kernels->name);
  auto model = std::make_shared<DecoderOnlyTransformer>(std::move(weights), std::move(tokenizer),
                                                        std::move(account), threads, file.metadata());
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
