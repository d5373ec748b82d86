#include "model/lora.h"

#include "capi/arguments.h"
#include "capi/handles.h"
#include "model/lora_file.h"
#include "riftco/train.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_LORA_Q == int(kLoraQ) && RT_LORA_GATE == int(kLoraGate) && RT_LORA_HEAD == int(kLoraHead));

namespace {

rt_lora_options to_c(const LoraOptions& options) {
  return {.struct_size = sizeof(rt_lora_options),
          .rank = options.rank,
          .targets = options.targets,
          .alpha = options.alpha,
          .seed = options.seed};
}

}  // namespace

rt_status rt_lora_options_init(rt_lora_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, to_c({}), "options"); });
}

rt_status rt_model_attach_lora(rt_model* model, const rt_lora_options* options) {
  return guarded(__func__, [&] {
    ModelChange change(*checked(model, "model").object, "attaching adapters");
    const rt_lora_options given = read_struct(options, to_c({}), "options");
    attach_lora(change,
                {.rank = given.rank, .targets = given.targets, .alpha = given.alpha, .seed = given.seed});
  });
}

rt_status rt_model_detach_lora(rt_model* model) {
  return guarded(__func__, [&] {
    ModelChange change(*checked(model, "model").object, "detaching adapters");
    detach_lora(change);
  });
}

rt_status rt_model_merge_lora(rt_model* model) {
  return guarded(__func__, [&] {
    ModelChange change(*checked(model, "model").object, "merging adapters");
    merge_lora(change);
  });
}

rt_status rt_model_get_lora(const rt_model* model, rt_lora_options* options) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    const auto lock = object.reading();
    const LoraOptions attached = attached_lora(object)->options();
    OutputStruct(options, "options").write(to_c(attached));
  });
}

rt_status rt_model_save_lora(const rt_model* model, const char* path, uint64_t path_size) {
  return guarded(__func__, [&] {
    const DecoderOnlyTransformer& object = *checked(model, "model").object;
    save_lora(object, text_argument(path, path_size, "path"));
  });
}

rt_status rt_model_load_lora(rt_model* model, const char* path, uint64_t path_size) {
  return guarded(__func__, [&] {
    ModelChange change(*checked(model, "model").object, "loading adapters");
    load_lora(change, text_argument(path, path_size, "path"));
  });
}
