// Whole files through the importers: logits against transformers' (tests/golden), .rift round trips, refusals by name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/load.h"
#include "model/save.h"
#include "serve/decode_session.h"

namespace riftco {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path golden() { return std::getenv("RIFTCO_TEST_DATA"); }

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / ("riftco-test-load-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Sequence {
  std::vector<uint32_t> ids;
  std::vector<float> logits;  // [ids, vocabulary]
};

// tests/golden/README.md has the layout.
std::vector<Sequence> read_golden(const fs::path& path) {
  const std::string bytes = read_text(path);
  size_t at = 0;
  auto read = [&](void* out, size_t size) {
    if (at + size > bytes.size()) throw std::runtime_error("short golden " + path.string());
    std::memcpy(out, bytes.data() + at, size);
    at += size;
  };
  uint32_t count, shape[2];
  read(&count, 4);
  std::vector<Sequence> sequences(count);
  for (Sequence& s : sequences) {
    read(shape, 8);
    s.ids.resize(shape[0]);
    s.logits.resize(size_t(shape[0]) * shape[1]);
    read(s.ids.data(), 4 * s.ids.size());
    read(s.logits.data(), 4 * s.logits.size());
  }
  return sequences;
}

std::vector<float> logits_of(const std::shared_ptr<DecoderOnlyTransformer>& model,
                             const std::vector<uint32_t>& ids) {
  std::vector<float> logits(ids.size() * model->config().vocabulary_size);
  sequence_logits(model, ids, nullptr, logits);
  return logits;
}

std::vector<fs::path> model_paths() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(golden() / "models"))
    if (entry.is_directory()) paths.push_back(entry.path());
  for (const auto& entry : fs::directory_iterator(golden() / "gguf"))
    if (entry.path().extension() == ".gguf") paths.push_back(entry.path());
  return paths;
}

TEST(Load, LogitsAreThoseOfTransformersAndRiftFilesKeepThemBitForBit) {
  const TemporaryFolder folder;
  const auto paths = model_paths();
  ASSERT_GT(paths.size(), 20u);
  for (const fs::path& path : paths) {
    SCOPED_TRACE(path.string());
    const bool is_folder = fs::is_directory(path);
    // int8 activations cost accuracy; transformers computes the dequantised weights in float32
    const bool quantised = path.filename().string().find("-q") != std::string::npos;
    const auto model = load_model(path.string(), {});
    fs::path truth = is_folder ? path / "golden.bin" : path;
    if (!is_folder) truth.replace_extension(".bin");
    const fs::path rift = folder.path() / "model.rift";
    save_model(*model, rift.string(), {});
    const auto again = load_model(rift.string(), {});
    EXPECT_EQ(again->config(), model->config());
    if (model->tokenizer()) {
      ASSERT_TRUE(again->tokenizer());
      EXPECT_EQ(again->tokenizer()->to_json(), model->tokenizer()->to_json());
    }
    for (const Sequence& s : read_golden(truth)) {
      const std::vector<float> logits = logits_of(model, s.ids);
      ASSERT_EQ(logits.size(), s.logits.size());
      double worst = 0, squares = 0;
      for (size_t i = 0; i < logits.size(); i++) {
        worst = std::max(worst, std::fabs(double(logits[i]) - double(s.logits[i])));
        squares += std::pow(double(logits[i]) - double(s.logits[i]), 2);
      }
      if (quantised) {
        EXPECT_LT(std::sqrt(squares / double(logits.size())), 0.15);
      } else {
        EXPECT_LT(worst, 1e-4);
      }
      EXPECT_EQ(logits_of(again, s.ids), logits);
    }
    const std::string first = read_text(rift);
    save_model(*again, rift.string(), {});
    EXPECT_EQ(read_text(rift), first);  // deterministic
  }
}

// How a call that may be refused ended: fingerprint or message.
std::string outcome(const std::function<std::shared_ptr<DecoderOnlyTransformer>()>& make) {
  try {
    return make()->fingerprint();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    return error.what();
  }
}

constexpr DType kConvertible[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};

TEST(Load, ConvertingGivesTheBitsOfAFileOfThatType) {
  const TemporaryFolder folder;
  const std::string rift = (folder.path() / "model.rift").string();
  size_t converted = 0;
  for (const fs::path& path : model_paths()) {
    const auto model = load_model(path.string(), {});
    for (const DType type : kConvertible) {
      SCOPED_TRACE(path.string() + " as " + dtype_info(type).name);
      const std::string expected = outcome([&] {
        save_model(*model, rift, {.type = type});
        return load_model(rift, {});
      });
      EXPECT_EQ(outcome([&] { return load_model(path.string(), {.threads = 3, .type = type}); }), expected);
      converted += expected != model->fingerprint() && expected.find("whole blocks") == expected.npos;
    }
  }
  EXPECT_GT(converted, 60u);
  const auto created = create_model({}, nullptr, 7, {});
  for (const DType type : kConvertible) {
    save_model(*created, rift, {.type = type});
    EXPECT_EQ(create_model({}, nullptr, 7, {.type = type})->fingerprint(),
              load_model(rift, {})->fingerprint());
  }
}

TEST(Load, ConvertingNeedsNoMemoryForWhatTheFileHas) {
  const std::string path = (golden() / "models/llama-gqa-untied").string();
  const size_t bytes = load_model(path, {.type = DType::bf16})->weights().bytes();
  EXPECT_LT(bytes, load_model(path, {})->weights().bytes());
  load_model(path, {.memory_limit = bytes, .type = DType::bf16});
  EXPECT_THROW(load_model(path, {.memory_limit = bytes - 1, .type = DType::bf16}), Error);
}

TEST(Load, ConvertingRefusesWhatTheTypeCannotHold) {
  const TemporaryFolder folder;
  const std::string rift = (folder.path() / "model.rift").string();
  const auto model = create_model({}, nullptr, 7, {});
  std::vector<float> values(size_t(model->config().width) * model->config().width);
  values[5] = 1e5f;
  ModelChange(*model, "a test").write_parameter("layers.1.q.weight", values);
  save_model(*model, rift, {});
  const auto message = [&](DType type, Status status) -> std::string {
    try {
      load_model(rift, {.type = type});
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), status);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(DType::bf16, Status::ok), "");
  EXPECT_EQ(message(DType::f16, Status::unsupported),
            "row 0 of layers.1.q.weight has a value that is too large for f16");
  // A value that no file may have is not the type's fault; .rift files have a checksum before it.
  const fs::path copy = folder.path() / "copy";
  fs::copy(golden() / "models/llama-gqa-untied", copy, fs::copy_options::recursive);
  std::string bytes = read_text(copy / "model.safetensors");
  uint64_t header;
  std::memcpy(&header, bytes.data(), 8);
  const uint32_t infinity = 0x7F800000;
  bytes.replace(8 + header, 4, reinterpret_cast<const char*>(&infinity), 4);
  write_text(copy / "model.safetensors", bytes);
  for (const DType type : {DType::f32, DType::bf16}) {
    try {
      load_model(copy.string(), {.type = type});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt_data);
    }
  }
}

TEST(Load, ComputeBf16IsAnotherModelOverTheSameWeights) {
  const std::string path = (golden() / "models/llama-bf16").string();
  const std::vector<uint32_t> ids = read_golden(path + "/golden.bin").back().ids;
  const auto exact = load_model(path, {}), rounding = load_model(path, {.compute = Compute::bf16});
  EXPECT_EQ(exact->weights().step_model().compute, Compute::exact);
  EXPECT_EQ(rounding->weights().step_model().compute, Compute::bf16);
  EXPECT_NE(logits_of(rounding, ids), logits_of(exact, ids));
  EXPECT_NE(rounding->fingerprint(), exact->fingerprint());
  EXPECT_EQ(rounding->weights_fingerprint(), exact->weights_fingerprint());
  for (const auto& model : {exact, rounding}) ModelChange(*model, "a test").widen();
  EXPECT_EQ(logits_of(rounding, ids), logits_of(exact, ids));
  EXPECT_EQ(rounding->fingerprint(), exact->fingerprint());

  const LoadOptions converting{.type = DType::bf16, .compute = Compute::bf16};
  EXPECT_EQ(create_model({}, nullptr, 7, converting)->weights().step_model().compute, Compute::bf16);
  const std::string floats = (golden() / "models/llama-gqa-untied").string();
  EXPECT_EQ(load_model(floats, converting)->weights().step_model().compute, Compute::bf16);
  for (const std::optional<DType> type : {std::optional<DType>(), std::optional(DType::q8_0)}) {
    const LoadOptions options{.type = type, .compute = Compute::bf16};
    const std::string expected =
        "compute bf16 needs matrices of bf16, and the model multiplies with none; load it with type bf16";
    EXPECT_EQ(outcome([&] { return load_model(floats, options); }), expected);
    EXPECT_EQ(outcome([&] { return create_model({}, nullptr, 7, options); }), expected);
  }
}

TEST(Load, InspectDescribesEveryFormat) {
  for (const fs::path& path : model_paths()) {
    const json info = json::parse(inspect_model(path.string()));
    EXPECT_EQ(info["supported"], true) << path;
    EXPECT_EQ(info["format"], fs::is_directory(path) ? "huggingface" : "gguf");
    const auto model = load_model(path.string(), {});
    EXPECT_EQ(info["memory"]["weight_bytes"], model->weights().bytes()) << path;
    EXPECT_EQ(config_from_json(info["config"].dump(), "inspect"), model->config());
    EXPECT_FALSE(info["tensors"].empty());
  }
}

// Copies a golden folder and changes its config.json, or another file.
void expect_refused(const std::string& source, const std::function<void(json&)>& change, Status status,
                    const std::string& message, const char* file = "config.json") {
  const TemporaryFolder folder;
  fs::copy(golden() / "models" / source, folder.path());
  json config = json::parse(read_text(folder.path() / file));
  change(config);
  write_text(folder.path() / file, config.dump());
  try {
    load_model(folder.path().string(), {});
    ADD_FAILURE() << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(Load, RefusesByNameWhatItDoesNotCompute) {
  const auto unsupported = Status::unsupported, corrupt = Status::corrupt_data;
  const std::string llama = "llama-gqa-untied", gpt2 = "gpt2-tied";
  expect_refused(
      llama, [](json& c) { c["model_type"] = "mamba"; }, unsupported,
      "model_type \"mamba\" is not supported");
  expect_refused(
      llama, [](json& c) { c["hidden_act"] = "relu"; }, unsupported, "hidden_act");
  expect_refused(
      llama, [](json& c) { c["sliding_window"] = 8; }, unsupported, "sliding_window = \"8\"");
  expect_refused(
      llama, [](json& c) { c["rope_parameters"]["rope_type"] = "dynamic"; }, unsupported, "rope_parameters");
  expect_refused(
      llama,
      [](json& c) {
        c["rope_scaling"] = {{"type", "su"}, {"factor", 2.0}};
      },
      unsupported, "rope_scaling");
  expect_refused(
      llama, [](json& c) { c["partial_rotary_factor"] = 0.5; }, unsupported, "partial_rotary_factor");
  expect_refused(
      llama,
      [](json& c) {
        c["quantization_config"] = {{"bits", 4}};
      },
      unsupported, "quantization_config");
  expect_refused(
      llama, [](json& c) { c["num_hidden_layers"] = 1; }, unsupported, "tensors are of no use");
  expect_refused(
      llama, [](json& c) { c["num_hidden_layers"] = 3; }, corrupt,
      "there is no tensor model.layers.2.input_layernorm.weight");
  expect_refused(
      llama, [](json& c) { c["hidden_size"] = "64"; }, corrupt, "hidden_size");
  expect_refused(
      llama, [](json& c) { c["hidden_size"] = 4096; }, corrupt, "has shape [");
  expect_refused(
      llama, [](json& c) { c["intermediate_size"] = 0; }, corrupt, "mlp_width is 0");
  expect_refused(
      llama, [](json& c) { c.erase("vocab_size"); }, corrupt, "there is no vocab_size");
  expect_refused(
      gpt2, [](json& c) { c["activation_function"] = "swish"; }, unsupported, "activation_function");
  expect_refused(
      gpt2, [](json& c) { c["scale_attn_weights"] = false; }, unsupported, "scale_attn_weights");
  expect_refused(
      gpt2, [](json& c) { c["n_head"] = 5; }, corrupt, "n_head 5 does not divide n_embd 48");
  expect_refused(
      gpt2, [](json& c) { c["vocab_size"] = 100; }, corrupt, "has shape [");
  expect_refused(
      gpt2,
      [](json& t) {
        json& vocabulary = t["model"]["vocab"];
        while (vocabulary.size() < 1000)
          vocabulary["z" + std::to_string(vocabulary.size())] = vocabulary.size();
      },
      corrupt, "the tokenizer has 1000 tokens, the model ", "tokenizer.json");
}

// The tokenizer and all weights are there, whoever has read them, and an error is the first one's of the file.
TEST(LoadThreads, DoNotChangeWhatIsLoadedOrWhatIsWrong) {
  const TemporaryFolder folder;
  for (const fs::path& path : model_paths()) {
    SCOPED_TRACE(path.string());
    const auto one = load_model(path.string(), {.threads = 1}),
               four = load_model(path.string(), {.threads = 4});
    EXPECT_EQ(one->fingerprint(), four->fingerprint());
    EXPECT_EQ(one->threads().threads(), 1u);
    EXPECT_EQ(four->threads().threads(), 4u);
    ASSERT_EQ(one->tokenizer() == nullptr, four->tokenizer() == nullptr);
    if (one->tokenizer()) {
      EXPECT_EQ(one->tokenizer()->to_json(), four->tokenizer()->to_json());
    }
  }
  std::string bytes = read_text(golden() / "gguf/llama-f16-yarn.gguf");
  std::fill(bytes.end() - ptrdiff_t(bytes.size() / 2), bytes.end(),
            char(0xFF));  // many rows that are not finite
  const std::string at = folder.path() / "wrong.gguf";
  write_text(at, bytes);
  const auto message = [&](uint32_t threads) {
    try {
      load_model(at, {.threads = threads});
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt_data);
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string expected = message(1);
  EXPECT_NE(expected.find("not finite"), std::string::npos) << expected;
  for (int turn = 0; turn < 20; turn++) EXPECT_EQ(message(4), expected);
}

TEST(Load, RefusesRotaryScalingAndWindowsThatItDoesNotCompute) {
  const auto unsupported = Status::unsupported, corrupt = Status::corrupt_data;
  for (const char* type : {"dynamic", "longrope", "su", "proportional", "axial"})
    expect_refused(
        "llama-llama3", [&](json& c) { c["rope_parameters"]["rope_type"] = type; }, unsupported, type);
  expect_refused(
      "llama-yarn", [](json& c) { c["rope_parameters"]["truncate"] = false; }, unsupported, "truncate");
  expect_refused(
      "llama-yarn",
      [](json& c) {
        c["rope_parameters"] = {{"full_attention", c["rope_parameters"]}};
      },
      unsupported, "rope_parameters");
  for (const char* field : {"factor", "low_freq_factor", "high_freq_factor"}) {
    expect_refused(
        "llama-llama3", [&](json& c) { c["rope_parameters"].erase(field); }, corrupt,
        std::string("rope_parameters: there is no ") + field);
    for (const json& value : {json(0), json(-1), json(1e300), json("4")})
      expect_refused(
          "llama-llama3", [&](json& c) { c["rope_parameters"][field] = value; }, corrupt, "config.json: ");
  }
  for (const json& value : {json(0), json(-1), json(4294967295u), json(1.5)})
    expect_refused(
        "llama-yarn", [&](json& c) { c["rope_parameters"]["original_max_position_embeddings"] = value; },
        corrupt, "original");
  expect_refused(
      "mistral-window", [](json& c) { c["sliding_window"] = 0; }, unsupported, "sliding_window = \"0\"");
  expect_refused(
      "mistral-window", [](json& c) { c["sliding_window"] = -1; }, corrupt, "sliding_window");
  expect_refused(
      "mistral-window", [](json& c) { c["sliding_window"] = 4294967295u; }, corrupt, "sliding_window");
  expect_refused(
      "mistral-window", [](json& c) { c["layer_types"] = json::array({"sliding_attention"}); }, unsupported,
      "layer_types");
  expect_refused(
      "mistral-window", [](json& c) { c.erase("num_key_value_heads"); }, corrupt, "num_key_value_heads");
  const std::vector<json> layers = {json::array({"sliding_attention", "full_attention", "sliding_attention"}),
                                    json::array({"full_attention", "sliding_attention"}),
                                    json::array({"full_attention", "full_attention", "chunked_attention"}),
                                    json::array()};
  for (const json& types : layers)
    expect_refused(
        "qwen2-window-layers", [&](json& c) { c["layer_types"] = types; }, unsupported, "layer_types");
  expect_refused(
      "qwen2-window-layers", [](json& c) { c["layer_types"] = 3; }, corrupt, "layer_types");
  expect_refused(
      "qwen2-window-layers", [](json& c) { c["use_sliding_window"] = false; }, unsupported, "layer_types");
  expect_refused(
      "qwen3", [](json& c) { c["model_type"] = "qwen2"; }, corrupt, "q_proj.bias");
}

TEST(Load, AnAbsentFieldIsTransformersDefault) {
  const TemporaryFolder folder;
  const auto window_of = [&](const char* source, const std::function<void(json&)>& change) {
    fs::remove_all(folder.path());
    fs::copy(golden() / "models" / source, folder.path());
    json config = json::parse(read_text(folder.path() / "config.json"));
    change(config);
    write_text(folder.path() / "config.json", config.dump());
    const ModelConfig c = load_model(folder.path().string(), {})->config();
    return std::pair(c.sliding_window, c.first_window_layer);
  };
  using Window = std::pair<uint32_t, uint32_t>;
  EXPECT_EQ(window_of("mistral-window", [](json& c) { c.erase("sliding_window"); }), Window(4096, 0));
  EXPECT_EQ(window_of("mistral-window", [](json& c) { c["sliding_window"] = nullptr; }), Window(0, 0));
  EXPECT_EQ(window_of("qwen2-window-layers", [](json& c) { c.erase("layer_types"); }), Window(9, 1));
  EXPECT_EQ(window_of("qwen2-window-layers",
                      [](json& c) {
                        c.erase("layer_types");
                        c.erase("max_window_layers");
                      }),
            Window(0, 0));
  EXPECT_EQ(window_of("qwen2-window-layers",
                      [](json& c) {
                        c.erase("layer_types");
                        c.erase("use_sliding_window");
                      }),
            Window(0, 0));
}

// As in transformers: rope_scaling counts before rope_parameters, unless it is empty.
TEST(Load, TheOldSpellingOfRotaryScalingCountsFirst) {
  const TemporaryFolder folder;
  const auto scaling_of = [&](const json& rope_scaling) {
    fs::remove_all(folder.path());
    fs::copy(golden() / "models/llama-yarn", folder.path());
    json config = json::parse(read_text(folder.path() / "config.json"));
    config["rope_scaling"] = rope_scaling;
    write_text(folder.path() / "config.json", config.dump());
    const ModelConfig c = load_model(folder.path().string(), {})->config();
    return std::pair(c.rotary_scaling, c.rotary_factor);
  };
  using Scaling = std::pair<RotaryScaling, double>;
  EXPECT_EQ(scaling_of(json::object()), Scaling(RotaryScaling::yarn, 2.0));
  EXPECT_EQ(scaling_of({{"type", "linear"}, {"factor", 3}}), Scaling(RotaryScaling::linear, 3.0));
  EXPECT_EQ(scaling_of({{"type", "default"}}), Scaling(RotaryScaling::none, 1.0));
  // yarn without a factor: the ratio of the contexts, 64 over 16
  EXPECT_EQ(scaling_of({{"rope_type", "yarn"}, {"original_max_position_embeddings", 16}}),
            Scaling(RotaryScaling::yarn, 4.0));
}

TEST(Load, AHeadInTheFileWinsOverTheTieThatConfigJsonClaims) {
  const TemporaryFolder folder;
  fs::copy(golden() / "models/llama-gqa-untied", folder.path());
  json config = json::parse(read_text(folder.path() / "config.json"));
  config["tie_word_embeddings"] = true;
  write_text(folder.path() / "config.json", config.dump());
  const auto model = load_model(folder.path().string(), {});
  EXPECT_FALSE(model->config().tied_head);
  const Sequence s = read_golden(golden() / "models/llama-gqa-untied/golden.bin").back();
  EXPECT_EQ(logits_of(model, s.ids),
            logits_of(load_model((golden() / "models/llama-gqa-untied").string(), {}), s.ids));
}

TEST(Load, RefusesWhatIsNoModel) {
  const TemporaryFolder folder;
  auto status_of = [&](const std::string& path) {
    try {
      load_model(path, {});
    } catch (const Error& error) {
      return error.status();
    }
    return Status::ok;
  };
  const std::string at = folder.path() / "file";
  EXPECT_EQ(status_of(at), Status::input_output);
  write_text(at, "");
  EXPECT_EQ(status_of(at), Status::corrupt_data);
  write_text(at, "{}");
  EXPECT_EQ(status_of(at), Status::corrupt_data);
  write_text(at, "GGUF");
  EXPECT_EQ(status_of(at), Status::corrupt_data);
  write_text(at, std::string(100, '\0'));
  EXPECT_EQ(status_of(at), Status::corrupt_data);
  EXPECT_EQ(status_of(folder.path()), Status::input_output);  // a folder without config.json
  EXPECT_EQ(status_of(golden() / "io/tiny.safetensors"), Status::corrupt_data);  // no config
  LoadOptions options;
  options.backend = 2;
  EXPECT_THROW(load_model((golden() / "models/gpt2-tied").string(), options), Error);
}

// Every truncation is refused, and the process lives.
TEST(Load, RefusesEveryTruncatedGgufFile) {
  const TemporaryFolder folder;
  const std::string at = folder.path() / "cut.gguf";
  for (const char* name : {"llama-q8_0-tied", "qwen3-bf16-window", "llama-f16-yarn"}) {
    const std::string whole = read_text(golden() / "gguf" / (std::string(name) + ".gguf"));
    for (size_t size = 0; size < whole.size(); size += 997) {
      write_text(at, whole.substr(0, size));
      EXPECT_THROW(load_model(at, {}), Error) << size;
    }
  }
}

// --- GGUF headers with other values

class GgufHeaders : public testing::Test {
 protected:
  static std::string file(const std::string& name) { return read_text(golden() / "gguf" / (name + ".gguf")); }

  // The 4 bytes at `skip` behind the type of a key replaced.
  template <class T>
  static std::string with(std::string bytes, const std::string& key, T value, size_t skip = 0) {
    const size_t at = bytes.find(key);
    EXPECT_NE(at, std::string::npos) << key;
    std::memcpy(bytes.data() + at + key.size() + 4 + skip, &value, sizeof value);
    return bytes;
  }
  // One f32 more, and one entry that keeps the data where its alignment wants it.
  static std::string with_entry(std::string bytes, const std::string& key, float value) {
    std::string added;
    const auto add = [&added](const std::string& name, uint32_t type, auto number) {
      const uint64_t size = name.size();
      added.append(reinterpret_cast<const char*>(&size), 8).append(name);
      added.append(reinterpret_cast<const char*>(&type), 4);
      added.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    add(key, 6, value);
    const size_t rest = 8 + 4 + 1;  // of an entry beside its name
    add(std::string(64 - (added.size() + rest) % 32, 'x'), 0, uint8_t(0));
    EXPECT_EQ(added.size() % 32, 0u);
    bytes[16] = char(bytes[16] + 2);
    return bytes.insert(24, added);
  }

  // The config that the bytes give; an error fails unless it is the expected one.
  ModelConfig load(const std::string& bytes, Status status = Status::ok, const std::string& part = "") {
    const std::string at = folder_.path() / "a.gguf";
    write_text(at, bytes);
    try {
      const ModelConfig config = load_model(at, {})->config();
      EXPECT_EQ(status, Status::ok) << part;
      return config;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), status) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return {};
    }
  }

  static constexpr Status unsupported = Status::unsupported, corrupt = Status::corrupt_data;

 private:
  TemporaryFolder folder_;
};

TEST_F(GgufHeaders, RotaryScaling) {
  const std::string yarn = file("llama-f16-yarn"), at = "llama.rope.scaling.";
  EXPECT_EQ(load(yarn).rotary_factor, 2.0);
  EXPECT_EQ(load(with(yarn, at + "factor", 0.0f)).rotary_factor, 1.0);  // as other readers take it
  for (const float value : {-1.0f, 3e38f, INFINITY, NAN})
    load(with(yarn, at + "factor", value), corrupt, "factor");
  for (const float value : {0.0f, -1.0f, 3e38f, INFINITY, NAN})
    load(with(yarn, at + "yarn_beta_fast", value), corrupt, value == value ? "" : "finite");
  for (const uint32_t value : {0u, UINT32_MAX})
    load(with(yarn, at + "original_context_length", value), corrupt, "rotary_original_context");
  load(with(yarn, at + "type", 0x6D726179u, 8), unsupported, "rotary scaling \"yarm\"");
  load(with_entry(yarn, at + "yarn_ext_factor", 0.5f), unsupported, "yarn_ext_factor = 0.5");
  load(with_entry(yarn, at + "yarn_attn_factor", 2.0f), unsupported, "yarn_attn_factor = 2");
  load(with_entry(yarn, at + "yarn_log_multiplier", 0.1f), unsupported, "yarn_log_multiplier = 0.1");
  EXPECT_EQ(load(with_entry(yarn, at + "attn_factor", 2.0f)).rotary_attention_factor,
            2 * load(yarn).rotary_attention_factor);
  load(with_entry(file("llama-f16-linear"), at + "attn_factor", 2.0f), unsupported, "attn_factor = 2");
  const std::string plain = file("llama-f16-untied");
  EXPECT_EQ(load(plain).rotary_scaling, RotaryScaling::none);
  EXPECT_EQ(load(with_entry(plain, "llama.rope.scale_linear", 4.0f)).rotary_factor, 4.0);
  EXPECT_EQ(load(with_entry(plain, at + "factor", 1.0f)).rotary_scaling, RotaryScaling::none);
}

TEST_F(GgufHeaders, RotaryFactors) {
  const std::string bytes = file("llama-f16-llama3");
  EXPECT_EQ(load(bytes).rotary_scaling, RotaryScaling::factors);
  load(with_entry(bytes, "llama.rope.scaling.factor", 2.0f), unsupported, "with rope_freqs.weight");
  for (const float value : {0.0f, -1.0f, 3e38f}) {
    std::string changed = bytes;  // rope_freqs.weight is the last tensor
    std::memcpy(changed.data() + changed.size() - 4, &value, 4);
    load(changed, corrupt, "rotary.factors has");
  }
}

TEST_F(GgufHeaders, Windows) {
  const std::string llama = file("llama-f16-window"), qwen = file("qwen3-bf16-window"),
                    key = "qwen3.attention.sliding_window_pattern";
  EXPECT_EQ(load(llama).sliding_window, 7u);
  EXPECT_EQ(load(with(llama, "llama.attention.sliding_window", 0u)).sliding_window, 0u);
  load(with(llama, "llama.attention.sliding_window", UINT32_MAX), corrupt, "sliding_window 4294967295");
  EXPECT_EQ(load(qwen).first_window_layer, 1u);
  load(with(qwen, key, uint16_t(1), 12), unsupported, "a layer without the window behind one with it");
  EXPECT_EQ(load(with(qwen, key, uint16_t(0), 12)).sliding_window, 0u);
  EXPECT_EQ(load(with(qwen, key, uint16_t(0x0101), 12)).first_window_layer, 0u);
  load(with(qwen, key, uint16_t(2), 12), corrupt, "neither 0 nor 1");
  for (const uint64_t count : {uint64_t(0), uint64_t(1), UINT64_MAX})
    load(with(qwen, key, count, 4), corrupt);
  std::string renamed = qwen;
  renamed[qwen.find(key) + key.size() - 1] = 'N';
  load(renamed, unsupported, "sliding_window = 5 without");
}

TEST_F(GgufHeaders, Vectors) {
  // output_norm.weight, the last tensor: a block of 34 bytes, padded to 64, instead of 32 floats
  std::string bytes = with(file("llama-f16-linear"), "output_norm.weight", 8u, 8);
  bytes.resize(bytes.size() - 64);
  load(bytes, unsupported, "final_norm.weight is of type q8_0; vectors must be f32, f16 or bf16");
}

TEST_F(GgufHeaders, Architectures) {
  const std::string llama = file("llama-f16-untied");
  std::string other = llama;
  other[other.find("general.architecture") + sizeof("general.architecture") - 1 + 12] = 'L';
  load(other, unsupported, "architecture \"Llama\" is not supported (gpt2, llama, qwen2 and qwen3 are)");
  load(with_entry(llama, "llama.expert_count", 0.0f), corrupt, "not a non-negative integer");
  const std::string gpt2 = file("gpt2-f16-tied");
  for (const uint32_t heads : {0u, 3u, UINT32_MAX})
    load(with(gpt2, "gpt2.attention.head_count", heads), corrupt, "attention.head_count");
  load(with(gpt2, "gpt2.embedding_length", 0u), corrupt);
  load(with(gpt2, "gpt2.attention.layer_norm_epsilon", -1.0f), corrupt, "norm_epsilon");
}

TEST(Create, IsTheSameForTheSameSeed) {
  const ModelConfig config;
  const std::vector<uint32_t> ids{1, 2, 3};
  const auto a = create_model(config, byte_tokenizer(), 7, {}), b = create_model(config, nullptr, 7, {}),
             c = create_model(config, nullptr, 8, {});
  EXPECT_EQ(logits_of(a, ids), logits_of(b, ids));
  EXPECT_NE(logits_of(a, ids), logits_of(c, ids));
  double sum = 0, squares = 0;
  std::vector<float> values(size_t(config.vocabulary_size) * config.width);
  a->weights().get_rows(0, 0, config.vocabulary_size, reinterpret_cast<std::byte*>(values.data()));
  for (float v : values) sum += v, squares += double(v) * v;
  const double n = double(values.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.0005);
}

}  // namespace
}  // namespace riftco
