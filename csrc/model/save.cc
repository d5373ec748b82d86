#include "model/save.h"

#include "base/error.h"
#include "base/folder.h"
#include "model/exporters/exporters.h"

namespace riftco {

bool names_folder(std::string_view path) {
  return is_folder(path) || path.substr(path.rfind('/') + 1).find('.') == path.npos;
}

FileFormat format_of_path(std::string_view path) {
  if (path.ends_with(".rift")) return FileFormat::rift;
  if (path.ends_with(".gguf")) return FileFormat::gguf;
  if (names_folder(path)) return FileFormat::hugging_face;
  fail(Status::invalid_argument,
       "%s: the suffix names no format; there are .rift, .gguf, and a folder (end it with /)",
       std::string(path).c_str());
}

void save_model(const DecoderOnlyTransformer& model, std::string_view path, SaveOptions options) {
  if (path.find('\0') != path.npos)
    fail(Status::invalid_argument, "the path %s holds a NUL byte", quoted(path.data(), path.size()).c_str());
  if (options.format != FileFormat::rift && !(options.stage.empty() && options.parent.empty()))
    fail(Status::unsupported, "%s: only .rift files hold a stage or a parent", std::string(path).c_str());
  const auto lock = model.reading();
  if (model.lora())
    fail(Status::invalid_state, "the model has adapters: merge or detach them first, or save them alone");
  switch (options.format) {
    case FileFormat::rift:
      return write_rift(model, path, options);
    case FileFormat::gguf:
      return write_gguf(model, path, options);
    case FileFormat::hugging_face:
      return write_hugging_face(model, path, options);
  }
}

}  // namespace riftco
