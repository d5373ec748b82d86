// .rift: parameters under their native names, nothing to map.
#include <set>

#include "io/rift.h"
#include "model/importers/model_file.h"

namespace riftco {
namespace {

class RiftFile : public ModelFile {
 public:
  RiftFile(std::shared_ptr<const File> file, Progress& progress) : reader_(std::move(file), &progress) {}

  const char* format() const noexcept override { return "rift"; }
  const std::string& path() const noexcept override { return reader_.file().path(); }

  std::vector<FileTensor> tensors() const override {
    std::vector<FileTensor> list;
    for (const RiftTensor& t : reader_.tensors())
      list.push_back({t.name, dtype_info(t.type).name, t.shape, t.bytes});
    return list;
  }

  ModelConfig config() const override { return config_from_json(reader_.metadata().config, path()); }

  std::shared_ptr<const Tokenizer> tokenizer() const override {
    const std::string& json = reader_.metadata().tokenizer;
    return json.empty() ? nullptr : tokenizer_from_json(json, path() + ": tokenizer");
  }

  ModelMetadata metadata() const override {
    ModelMetadata all = reader_.all_metadata();
    all.erase("riftco.tokenizer");
    all.erase("riftco.types");
    return all;
  }

  ParameterSource open(const ParameterInfo& p) const override {
    const RiftTensor* tensor = reader_.find(p.name);
    if (!tensor) fail(Status::corrupt_data, "%s: there is no tensor %s", path().c_str(), p.name.c_str());
    check_shape(path(), p.name, tensor->shape,
                p.is_vector ? std::vector<uint64_t>{p.columns} : std::vector<uint64_t>{p.rows, p.columns});
    read_.insert(p.name);
    const size_t unit = row_bytes(tensor->type, p.is_vector ? 1 : p.columns);
    return {tensor->type, 1, [this, tensor, unit](uint32_t first, uint32_t units, std::byte* out) {
              reader_.read(*tensor, first * unit, {out, units * unit});
            }};
  }

  std::vector<std::string> unread() const override {
    std::vector<std::string> names;
    for (const RiftTensor& t : reader_.tensors())
      if (!read_.contains(t.name)) names.push_back(t.name);
    return names;
  }

 private:
  RiftReader reader_;
  mutable std::set<std::string> read_;
};

}  // namespace

std::unique_ptr<ModelFile> open_rift(std::shared_ptr<const File> file, Progress& progress) {
  return std::make_unique<RiftFile>(std::move(file), progress);
}

}  // namespace riftco
