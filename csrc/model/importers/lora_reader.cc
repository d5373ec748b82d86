#include "model/importers/lora_reader.h"

#include <set>

#include "io/table.h"
#include "model/importers/model_file.h"

namespace riftco {
namespace {

// By the factors of the first layer and the head.
uint32_t targets_of(const SafetensorsReader& reader, const ModelConfig& config, const LoraNaming& naming) {
  uint32_t targets = 0;
  for (uint32_t bit = 1; bit <= kLoraHead; bit *= 2) {
    if (bit == kLoraGate && config.activation != Activation::silu_gated) continue;
    if (reader.find(naming(lora_places(config, bit).front().name).a)) targets |= bit;
  }
  if (targets == 0)
    fail(Status::corrupt_data, "%s: there is no adapter for the model's first layer or its head",
         reader.file().path().c_str());
  return targets;
}

void check_tensor(const SafetensorsReader& reader, const std::string& name, uint64_t rows, uint64_t columns) {
  const SafetensorsTensor* const tensor = reader.find(name);
  if (!tensor)
    fail(Status::corrupt_data, "%s: there is no tensor %s", reader.file().path().c_str(),
         shown(name).c_str());
  check_shape(reader.file().path(), name, tensor->shape, {rows, columns});
  reader.dtype(*tensor);
}

// The file has both factors of every place and nothing else.
void check_tensors(const SafetensorsReader& reader, const Weights& weights, uint32_t rank,
                   std::span<const LinearPlace> places, const LoraNaming& naming) {
  std::set<std::string> names;
  for (const LinearPlace& place : places) {
    const PackedMatrix& matrix = weights.linear(place);
    const LoraTensors tensors = naming(place.name);
    check_tensor(reader, tensors.a, rank, matrix.inputs);
    check_tensor(reader, tensors.b, uint64_t(tensors.parts) * matrix.outputs, rank);
    names.insert(tensors.a);
    names.insert(tensors.b);
  }
  for (const SafetensorsTensor& tensor : reader.tensors())
    if (!names.contains(tensor.name))
      fail(Status::unsupported, "%s: the tensor %s is no adapter of the model's matrices",
           reader.file().path().c_str(), shown(tensor.name).c_str());
}

// Rows [first, ...) of a tensor into a parameter.
void read_rows(const SafetensorsReader& reader, const std::string& name, uint64_t first, LoraAdapters& lora,
               size_t parameter) {
  const ParameterInfo& p = lora.parameters().parameters()[parameter];
  const SafetensorsTensor& tensor = *reader.find(name);
  const DType type = reader.dtype(tensor);
  std::vector<std::byte> row(row_bytes(type, p.columns));
  std::vector<float> values(p.columns);
  for (uint32_t r = 0; r < p.rows; r++) {
    reader.read(tensor, (first + r) * row.size(), row);
    dequantise(type, row.data(), values);
    lora.parameters().set_rows(parameter, r, 1, reinterpret_cast<const std::byte*>(values.data()));
  }
}

}  // namespace

std::shared_ptr<LoraAdapters> read_lora(const DecoderOnlyTransformer& model, const SafetensorsReader& reader,
                                        uint32_t rank, double alpha, const LoraNaming& naming) {
  const LoraOptions options{
      .rank = rank, .targets = targets_of(reader, model.config(), naming), .alpha = alpha};
  check_tensors(reader, model.weights(), rank, lora_places(model.config(), options.targets), naming);
  std::shared_ptr<LoraAdapters> lora;
  try {
    lora = std::make_shared<LoraAdapters>(model.weights(), options, model.account());
  } catch (const Error& error) {
    if (error.status() != Status::invalid_argument && error.status() != Status::out_of_range) throw;
    fail(Status::corrupt_data, "%s: %s", reader.file().path().c_str(), error.what());
  }
  for (size_t i = 0; i < lora->places().size(); i++) {
    const LoraTensors tensors = naming(lora->places()[i].name);
    read_rows(reader, tensors.a, 0, *lora, 2 * i);
    read_rows(reader, tensors.b, uint64_t(tensors.part) * lora->adapter(i).b.outputs, *lora, 2 * i + 1);
  }
  return lora;
}

}  // namespace riftco
