#include "base/folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "base/system_call.h"

namespace riftco {
namespace {

// Absolute and without the slashes at its end, so that the host may change its working directory meanwhile.
std::string absolute(std::string_view path) {
  checked_path(path);
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  const std::string parent(slash == path.npos ? "." : path.substr(0, slash + 1)),
      name(path.substr(slash + 1));  // npos + 1 is 0
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(parent.c_str(), nullptr), &std::free);
  if (!resolved) fail_errno("cannot write a folder at", std::string(path));
  return std::string(resolved.get()) + "/" + name;
}

// Only an empty folder gives way to another one.
void check_free(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (!folder && errno == ENOENT) return;
  if (!folder) fail_errno("cannot write a folder at", path);
  while (const dirent* entry = ::readdir(folder.get()))
    if (std::string_view(entry->d_name) != "." && std::string_view(entry->d_name) != "..")
      fail(Status::input_output, "cannot write a folder at %s: it is there and not empty", path.c_str());
}

Descriptor open_folder(const std::string& path) {
  return Descriptor(retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
}

// The files of a folder and the folder; of files, whatever goes.
void remove_folder(const std::string& path) noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (folder)
    while (const dirent* entry = ::readdir(folder.get())) ::unlinkat(::dirfd(folder.get()), entry->d_name, 0);
  ::rmdir(path.c_str());
}

}  // namespace

bool is_folder(std::string_view path) {
  struct stat info;
  return ::stat(std::string(path).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

FolderWriter::FolderWriter(std::string_view path) : path_(absolute(path)) {
  static std::atomic<unsigned> counter{0};
  check_free(path_);
  do {
    temporary_ = format("%s.riftco-%ld-%u.tmp", path_.c_str(), long(getpid()), counter++);
  } while (::mkdir(temporary_.c_str(), 0777) != 0 && errno == EEXIST);
  struct stat info;
  if (::stat(temporary_.c_str(), &info) != 0) fail_errno("cannot write a folder at", path_);
}

FolderWriter::~FolderWriter() {
  if (!committed_) remove_folder(temporary_);
}

void FolderWriter::write(const std::string& name, std::string_view content) const {
  AtomicFileWriter file(*this / name);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

void FolderWriter::commit() {
  if (!sync_folder(open_folder(temporary_))) fail_errno("cannot write", temporary_);
  if (retry([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0)
    fail_errno("cannot replace", path_);
  committed_ = true;
  if (!sync_folder(open_folder(path_.substr(0, path_.rfind('/') + 1))))
    fail_errno("wrote, but cannot make durable", path_);
}

}  // namespace riftco
