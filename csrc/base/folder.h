// Writing a folder as a whole or not at all.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace riftco {

bool is_folder(std::string_view path);

// A temporary folder beside `path`; commit() puts it in the place of `path`, which must not be there or be an
// empty folder. Without commit(), or when anything fails, the temporary folder and its files are removed.
class FolderWriter {
 public:
  // input_output when something else is at `path`, or the folder cannot be made.
  explicit FolderWriter(std::string_view path);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  std::string operator/(const std::string& name) const { return temporary_ + "/" + name; }
  void write(const std::string& name, std::string_view content) const;  // a small file
  void commit();                                                        // the files in it are on disk already

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

}  // namespace riftco
