// Every file call of loading and saving, failed once: the operation answers with an error, a file that was there is what
// it was, and nothing is left beside it. The calls below stand before those of libc in this program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "io_support.h"
#include "model/load.h"
#include "model/lora_file.h"
#include "model/save.h"
#include "train/trainer.h"

namespace riftco {
namespace {

enum class Fault { none, error, interrupted, half };

struct Plan {
  int64_t at = -1;  // the call that is hit, counted from 0
  Fault fault = Fault::none;
  int64_t calls = 0;
  std::string hit;  // the call's name
} plan;

// Counts a call. True when it is the one to hit.
bool hits(const char* name) {
  if (plan.fault == Fault::none || plan.calls++ != plan.at) return false;
  plan.hit = name;
  return true;
}

// The result of a call that is hit by an error or a signal, else that of `call`.
template <class Call>
auto with_fault(const char* name, Call call) -> decltype(call()) {
  if (!hits(name) || plan.fault == Fault::half) return call();
  errno = plan.fault == Fault::error ? EIO : EINTR;
  return -1;
}
size_t halved(const char* name, size_t size) {
  return plan.fault == Fault::half && hits(name) && size > 1 ? size / 2 : size;
}

}  // namespace
}  // namespace riftco

using riftco::with_fault;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = flags & O_CREAT ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return with_fault("open", [&] { return int(syscall(SYS_openat, AT_FDCWD, path, flags, mode)); });
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = flags & O_CREAT ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  return with_fault("openat", [&] { return int(syscall(SYS_openat, folder, path, flags, mode)); });
}
ssize_t pread(int file, void* out, size_t size, off_t offset) {
  size = riftco::halved("pread", size);
  return with_fault("pread", [&] { return syscall(SYS_pread64, file, out, size, offset); });
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  size = riftco::halved("pwrite", size);
  return with_fault("pwrite", [&] { return syscall(SYS_pwrite64, file, bytes, size, offset); });
}
int fsync(int file) {
  return with_fault("fsync", [&] { return int(syscall(SYS_fsync, file)); });
}
int rename(const char* from, const char* to) noexcept {
  return with_fault("rename", [&] { return int(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)); });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return with_fault("renameat",
                    [&] { return int(syscall(SYS_renameat2, from_folder, from, to_folder, to, 0)); });
}

}  // extern "C"

namespace riftco {
namespace {

using Run = std::function<void(const std::string& call)>;

// Calls `run` with `fault` at the first file call, at the second, ... until it makes no further one.
std::set<std::string> with_each_call(Fault fault, const Run& run) {
  std::set<std::string> hit;
  for (int64_t at = 0;; at++) {
    plan = {at, fault, 0, ""};
    run(format("call %lld", static_cast<long long>(at)));
    const std::string name = plan.hit;
    plan = {};
    if (name.empty()) return hit;
    hit.insert(name);
  }
}

std::shared_ptr<DecoderOnlyTransformer> tiny_model() {
  ModelConfig config;
  config.vocabulary_size = 256;
  config.maximum_context = 8;
  config.layer_count = 1;
  config.width = config.mlp_width = 32;
  config.head_count = config.kv_head_count = 1;
  config.head_width = config.rotary_width = 32;
  config.position = PositionKind::rotary;
  config.norm = NormKind::rms;
  config.activation = Activation::silu_gated;
  config.biases = 0;
  return create_model(config, nullptr, 1, {.threads = 1});
}

// All files of a folder, or the one file, by name.
std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> files;
  if (std::filesystem::is_regular_file(path)) files[""] = read_bytes(path);
  if (std::filesystem::is_directory(path))
    for (const auto& entry : std::filesystem::directory_iterator(path))
      files[entry.path().filename().string()] = read_bytes(entry.path().string());
  return files;
}

using Model = std::shared_ptr<DecoderOnlyTransformer>;

struct Kind {
  const char* name;
  void (*save)(const Model& model, const std::string& path);
  void (*load)(const Model& model, const std::string& path);
  bool is_folder = false;
};

template <FileFormat format>
void save_as(const Model& model, const std::string& path) {
  save_model(*model, path, {.format = format});
}
void load_anew(const Model&, const std::string& path) { load_model(path, {.threads = 1}); }

void save_adapters(const Model&, const std::string& path) {
  const Model adapted = tiny_model();
  {
    ModelChange change(*adapted, "test");
    attach_lora(change, {.rank = 2, .targets = kLoraGate});
  }
  save_lora(*adapted, path);
}
void load_adapters(const Model& model, const std::string& path) {
  ModelChange change(*model, "test");
  load_lora(change, path);
  detach_lora(change);
}

void save_checkpoint(const Model& model, const std::string& path) {
  Trainer(model, {}).save(path, "", nullptr);
}
void load_checkpoint(const Model& model, const std::string& path) { Trainer(model, {}).load(path, nullptr); }

class FileFailures : public testing::TestWithParam<Kind> {
 protected:
  std::string target() const { return folder_ / GetParam().name; }
  void save() const { GetParam().save(model_, target()); }
  void load() const { GetParam().load(model_, target()); }

  Folder folder_;
  const Model model_ = tiny_model();
};

TEST_P(FileFailures, SavingIsWholeOrNotAtAll) {
  const auto hit = with_each_call(Fault::error, [&](const std::string& call) {
    SCOPED_TRACE(call);
    const Outcome outcome = outcome_of([&] { save(); });
    const std::string name = std::exchange(plan, {}).hit;
    if (name.empty()) return;
    SCOPED_TRACE(name);
    EXPECT_EQ(int(outcome.status), int(Status::input_output)) << outcome.message;
    if (outcome.message.starts_with("wrote, but"))
      std::filesystem::remove_all(target());  // maybe not durable
    EXPECT_EQ(folder_.entries(), 0u) << "something is left";
    plan.hit = name;
  });
  for (const char* name : {"openat", "pwrite", "fsync"}) EXPECT_TRUE(hit.contains(name)) << name;
  EXPECT_TRUE(hit.contains("rename") || hit.contains("renameat"));
}

TEST_P(FileFailures, AFileThatWasThereStaysWhatItWas) {
  if (GetParam().is_folder) return;  // a folder must be empty
  write_bytes(target(), "what was there");
  with_each_call(Fault::error, [&](const std::string& call) {
    SCOPED_TRACE(call);
    const Outcome outcome = outcome_of([&] { save(); });
    const std::string name = std::exchange(plan, {}).hit;
    EXPECT_EQ(folder_.entries(), 1u) << name;
    const bool replaced = name.empty() || outcome.message.starts_with("wrote, but");
    EXPECT_EQ(read_bytes(target()) == "what was there", !replaced) << name;
    write_bytes(target(), "what was there");
    plan.hit = name;
  });
}

TEST_P(FileFailures, SignalsAndShortWritesAreNotFailures) {
  save();
  const auto expected = contents(target());
  for (const Fault fault : {Fault::interrupted, Fault::half}) {
    with_each_call(fault, [&](const std::string& call) {
      std::filesystem::remove_all(target());
      EXPECT_NO_THROW(save()) << call << ": " << plan.hit;
      const std::string name = std::exchange(plan, {}).hit;
      EXPECT_TRUE(contents(target()) == expected) << call << ": " << name;
      plan.hit = name;
    });
  }
}

TEST_P(FileFailures, LoadingAnswersAndCanBeTriedAgain) {
  save();
  const auto hit = with_each_call(Fault::error, [&](const std::string& call) {
    const Outcome outcome = outcome_of([&] { load(); });
    const Status expected = plan.hit.empty() ? Status::ok : Status::input_output;
    EXPECT_EQ(int(outcome.status), int(expected)) << call << ": " << plan.hit << ": " << outcome.message;
  });
  EXPECT_EQ(hit, (std::set<std::string>{"open", "pread"}));
  for (const Fault fault : {Fault::interrupted, Fault::half})
    with_each_call(fault,
                   [&](const std::string& call) { EXPECT_NO_THROW(load()) << call << ": " << plan.hit; });
}

INSTANTIATE_TEST_SUITE_P(Formats, FileFailures,
                         testing::Values(Kind{"model.rift", save_as<FileFormat::rift>, load_anew},
                                         Kind{"model.gguf", save_as<FileFormat::gguf>, load_anew},
                                         Kind{"folder", save_as<FileFormat::hugging_face>, load_anew, true},
                                         Kind{"adapter.safetensors", save_adapters, load_adapters},
                                         Kind{"adapter", save_adapters, load_adapters, true},
                                         Kind{"a.checkpoint", save_checkpoint, load_checkpoint}));

}  // namespace
}  // namespace riftco
