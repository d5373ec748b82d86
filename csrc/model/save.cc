#include <algorithm>

#include "io/rift.h"
#include "model/load.h"

namespace riftco {

void save_rift(const DecoderOnlyTransformer& model, std::string_view path) {
  constexpr size_t kPieceBytes = 1 << 20;
  const Weights& weights = model.weights();
  std::vector<RiftTensor> tensors;
  for (const ParameterInfo& p : weights.parameters()) {
    RiftTensor tensor;
    tensor.name = p.name;
    tensor.type = p.type;
    tensor.shape = p.is_vector ? std::vector<uint64_t>{p.columns} : std::vector<uint64_t>{p.rows, p.columns};
    tensors.push_back(std::move(tensor));
  }
  RiftMetadata metadata;
  metadata.config = config_to_json(model.config());
  if (model.tokenizer()) metadata.tokenizer = model.tokenizer()->to_json();
  RiftWriter writer(path, metadata, tensors);
  std::vector<std::byte> piece;
  for (size_t i = 0; i < weights.parameters().size(); i++) {
    const ParameterInfo& p = weights.parameters()[i];
    const size_t row = row_bytes(p.type, p.columns);
    const uint32_t rows = uint32_t(std::clamp<size_t>(kPieceBytes / row, 1, p.rows));
    for (uint32_t first = 0; first < p.rows; first += rows) {
      const uint32_t count = std::min(rows, p.rows - first);
      piece.resize(count * row);
      weights.get_rows(i, first, count, piece.data());
      writer.write(piece);
    }
  }
  writer.commit();
}

}  // namespace riftco
