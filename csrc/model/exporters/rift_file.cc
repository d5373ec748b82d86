// .rift: parameters under their native names.
#include "io/rift.h"
#include "model/exporters/exporters.h"
#include "model/exporters/output_tensor.h"

namespace riftco {

void write_rift(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions& options) {
  const std::vector<OutputTensor> plan =
      plan_tensors(model.weights(), options.type, VectorTypes::float32,
                   [](const std::string& name) { return TensorName{.name = name}; });
  std::vector<RiftTensor> tensors;
  for (const OutputTensor& tensor : plan) tensors.push_back({tensor.name, tensor.type, tensor.shape});
  RiftMetadata metadata{.config = config_to_json(model.config()),
                        .tokenizer = {},
                        .stage = std::string(options.stage),
                        .parent = std::string(options.parent)};
  if (model.tokenizer()) metadata.tokenizer = model.tokenizer()->to_json();
  options.progress.begin(total_bytes(plan));
  RiftWriter writer(path, metadata, tensors);
  for (const OutputTensor& tensor : plan)
    write_tensor(model.weights(), tensor, options.progress, [&](auto bytes) { writer.write(bytes); });
  options.progress.finish();
  writer.commit();
}

}  // namespace riftco
