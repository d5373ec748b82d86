#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "io_support.h"

namespace riftco {
namespace {

std::string read_all(const File& file) {
  std::string bytes(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

unsigned mode_of(const std::string& path) {
  struct stat info;
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(File, ReadsAtAnOffset) {
  const Folder folder;
  write_bytes(folder / "a", "0123456789");
  const File file(folder / "a");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.path(), folder / "a");
  std::string part(4, '\0');
  file.read_at(3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "3456");
  file.read_at(10, {});
  const auto read = [&](uint64_t at) {
    return [&, at] { file.read_at(at, std::as_writable_bytes(std::span(part))); };
  };
  expect_error(read(7), Status::input_output, "4 bytes at 7 of " + file.path() + ": it has 10");
  expect_error(read(UINT64_MAX - 1), Status::input_output, "4 bytes at 18446744073709551614");
}

TEST(File, ReadsBeyondFourGigabytes) {
  const Folder folder;
  const std::string path = folder / "sparse";
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  const off_t at = (off_t(1) << 32) + 5;
  ASSERT_EQ(::pwrite(descriptor, "end", 3, at), 3);
  ::close(descriptor);
  const File file(path);
  std::string part(3, '\0');
  file.read_at(uint64_t(at), std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "end");
}

TEST(File, RefusesWhatIsNoRegularFile) {
  const Folder folder;
  expect_error([&] { File(folder / "none"); }, Status::input_output, "No such file");
  expect_error([&] { File(""); }, Status::input_output, "No such file");
  expect_error([&] { File(folder / ""); }, Status::input_output, "a directory");
  expect_error([&] { File(std::string_view("a\0b", 3)); }, Status::invalid_argument, "\"a\\x00b\"");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_error([&] { File(folder / "fifo"); }, Status::input_output, "not a regular file");
  expect_error([&] { File("/dev/zero"); }, Status::input_output, "not a regular file");
}

TEST(File, SaysWhenItHasShrunk) {
  const Folder folder;
  write_bytes(folder / "a", "0123456789");
  const File file(folder / "a");
  ASSERT_EQ(::truncate((folder / "a").c_str(), 6), 0);
  expect_error([&] { read_all(file); }, Status::input_output, "ends at 6, before its 10 bytes");
}

TEST(File, SmallFilesHaveALimit) {
  const Folder folder;
  write_bytes(folder / "a", "0123456789");
  EXPECT_EQ(read_small_file(folder / "a", 10), "0123456789");
  expect_error([&] { read_small_file(folder / "a", 9); }, Status::corrupt_data, "10 bytes, more than the 9");
}

TEST(AtomicFileWriter, ReplacesAtCommitOnly) {
  const Folder folder;
  const std::string path = folder / "a";
  write_bytes(path, "old");
  {
    AtomicFileWriter writer(path);
    writer.write(as_span("new bytes"));
    writer.write_at(4, as_span("B"));
    EXPECT_EQ(writer.size(), 9u);
    expect_error([&] { writer.write_at(8, as_span("xy")); }, Status::out_of_range, "8 to 10");
    expect_error([&] { writer.write_at(UINT64_MAX, as_span("xy")); }, Status::out_of_range, "the 9 written");
    EXPECT_EQ(read_bytes(path), "old");
    writer.commit();
    EXPECT_EQ(read_bytes(path), "new Bytes");
    expect_error([&] { writer.commit(); }, Status::invalid_state, "already written");
    expect_error([&] { writer.write(as_span("x")); }, Status::invalid_state, "already written");
  }
  EXPECT_EQ(read_bytes(path), "new Bytes");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFileWriter, LeavesNothingWithoutCommit) {
  const Folder folder;
  { AtomicFileWriter(folder / "a").write(as_span("x")); }
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(AtomicFileWriter, KeepsPermissionsAndLinks) {
  const Folder folder;
  write_bytes(folder / "a", "old");
  ASSERT_EQ(::chmod((folder / "a").c_str(), 0640), 0);
  ASSERT_EQ(::symlink("a", (folder / "link").c_str()), 0);
  AtomicFileWriter writer(folder / "link");
  writer.write(as_span("new"));
  writer.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_bytes(folder / "a"), "new");
  EXPECT_EQ(mode_of(folder / "a"), 0640u);

  const mode_t before = ::umask(027);
  AtomicFileWriter(folder / "b").commit();
  ::umask(before);
  EXPECT_EQ(mode_of(folder / "b"), 0640u);
}

TEST(AtomicFileWriter, WorksFromAnotherFolderAtCommit) {
  const Folder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / "");
  AtomicFileWriter writer("a");
  std::filesystem::current_path(before);
  writer.write(as_span("x"));
  writer.commit();
  EXPECT_EQ(read_bytes(folder / "a"), "x");
}

TEST(AtomicFileWriter, RefusesWhatItCannotReplace) {
  const Folder folder;
  expect_error([&] { AtomicFileWriter(folder / ""); }, Status::input_output, "a directory");
  expect_error([&] { AtomicFileWriter(folder / "none/a"); }, Status::input_output, "No such file");
  expect_error([&] { AtomicFileWriter(""); }, Status::input_output, "names no file");
  expect_error([&] { AtomicFileWriter("/dev/null"); }, Status::input_output, "not a regular file");
  expect_error([&] { AtomicFileWriter(std::string_view("a\0b", 3)); }, Status::invalid_argument, "NUL");
  expect_error([&] { AtomicFileWriter(folder / std::string(300, 'n')).commit(); }, Status::input_output,
               "too long");
  EXPECT_EQ(folder.entries(), 0u);
}

// A limit on the file size stands for a full disk: both end in a short or failed write.
TEST(AtomicFileWriter, KeepsTheOldFileWhenTheDiskIsFull) {
  const Folder folder;
  write_bytes(folder / "a", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome outcome = outcome_of([&] {
    AtomicFileWriter writer(folder / "a");
    writer.write(as_span(std::string(900, 'x')));
    writer.write(as_span(std::string(900, 'y')));
    writer.commit();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(int(outcome.status), int(Status::input_output));
  EXPECT_NE(outcome.message.find("800 bytes at 1000 of"), std::string::npos) << outcome.message;
  EXPECT_EQ(read_bytes(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace riftco
