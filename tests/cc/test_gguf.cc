#include <cmath>

#include "io/gguf.h"
#include "io_support.h"

namespace riftco {
namespace {

constexpr uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10, kF64 = 12;

std::string golden(const char* name) { return std::string(std::getenv("RIFTCO_TEST_DATA")) + "/io/" + name; }

std::string text(const std::string& value) { return bytes_of({uint64_t(value.size())}) + value; }

std::string entry(const std::string& key, uint32_t type, const std::string& value) {
  return text(key) + bytes_of({type}) + value;
}

std::string array(uint32_t type, uint64_t count, const std::string& values) {
  return bytes_of({type}) + bytes_of({count}) + values;
}

// `dims` in the file's order: the row's elements first.
std::string tensor(const std::string& name, std::initializer_list<uint64_t> dims, uint32_t type,
                   uint64_t offset) {
  return text(name) + bytes_of({uint32_t(dims.size())}) + bytes_of(dims) + bytes_of({type}) +
         bytes_of({offset});
}

struct Parts {
  std::vector<std::string> entries, tensors;
  size_t data_bytes = 0;
  uint64_t alignment = 32;
  uint32_t version = 3;
};

std::string file_of(const Parts& parts) {
  std::string bytes = "GGUF" + bytes_of({parts.version}) + bytes_of({uint64_t(parts.tensors.size())}) +
                      bytes_of({uint64_t(parts.entries.size())});
  for (const std::string& part : parts.entries) bytes += part;
  for (const std::string& part : parts.tensors) bytes += part;
  if (!parts.tensors.empty())
    bytes.resize((bytes.size() + parts.alignment - 1) / parts.alignment * parts.alignment);
  return bytes + std::string(parts.data_bytes, '\0');
}

Outcome outcome_of_opening(const std::string& bytes) {
  const Folder folder;
  write_bytes(folder / "a", bytes);
  return outcome_of([&] { GgufReader reader(open_file(folder / "a")); });
}

void expect_bytes_refused(const std::string& bytes, const std::string& part,
                          Status status = Status::corrupt_data) {
  take_memory_peak();
  const Outcome outcome = outcome_of_opening(bytes);
  EXPECT_LE(take_memory_peak(), 16 * bytes.size() + 32768) << part;
  EXPECT_EQ(int(outcome.status), int(status)) << part << "\n" << outcome.message;
  EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message << "\nlacks " << part;
}

void expect_refused(const Parts& parts, const std::string& part) {
  expect_bytes_refused(file_of(parts), part);
}

std::string read_tensor(const GgufReader& reader, std::string_view name) {
  const GgufTensor* found = reader.find_tensor(name);
  std::string bytes(found->bytes, '\0');
  reader.read(*found, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(Gguf, ReadsTheMetadataThatItsPackageWrites) {
  const GgufReader reader(open_file(golden("tiny.gguf")));
  EXPECT_EQ(reader.version(), 3u);
  EXPECT_EQ(reader.get_string("general.architecture"), "llama");
  EXPECT_EQ(reader.metadata()[0].key, "general.architecture");
  EXPECT_EQ(reader.get_u64("test.u8"), 200u);
  EXPECT_EQ(reader.get_u64("test.u16"), 60000u);
  EXPECT_EQ(reader.get_u64("test.u32"), 4000000000u);
  EXPECT_EQ(reader.get_u64("test.u64"), (1ull << 63) + 1);
  EXPECT_EQ(reader.get_f64("test.f32"), double(0.1f));
  EXPECT_EQ(reader.get_f64("test.f64"), 0.1);
  EXPECT_TRUE(reader.get_bool("test.bool"));
  EXPECT_EQ(reader.get_string("test.string"), "é");
  EXPECT_EQ(reader.get_strings("test.strings"), (std::vector<std::string_view>{"a", "bc", "Ġd"}));
  EXPECT_EQ(reader.get_integers("test.integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(reader.get_floats("test.floats"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(reader.find("test.u"), nullptr);
  EXPECT_EQ(reader.find("test.strings")->count, 3u);
}

TEST(Gguf, AWrongKindIsRefusedWithItsValue) {
  const GgufReader reader(open_file(golden("tiny.gguf")));
  const auto refused = [&](auto call, const std::string& part) {
    expect_error(call, Status::corrupt_data, part);
  };
  refused([&] { reader.get_u64("none"); }, reader.file().path() + ": the metadata key \"none\" is missing");
  refused([&] { reader.get_u64("test.i8"); }, "\"test.i8\" is i8 -3, not a non-negative integer");
  refused([&] { reader.get_u64("test.i16"); }, "i16 -300");
  refused([&] { reader.get_u64("test.i32"); }, "i32 -70000");
  refused([&] { reader.get_u64("test.i64"); }, "i64 -1099511627776");
  refused([&] { reader.get_u64("test.f32"); }, "f32 0.1");
  refused([&] { reader.get_u64("test.bool"); }, "\"test.bool\" is true");
  refused([&] { reader.get_f64("test.u64"); }, "u64 9223372036854775809, not a finite float");
  refused([&] { reader.get_bool("test.u8"); }, "u8 200, not a boolean");
  refused([&] { reader.get_string("test.strings"); }, "an array of 3 string, not a string");
  refused([&] { reader.get_strings("test.string"); }, "the string \"\\xc3\\xa9\", not an array of strings");
  refused([&] { reader.get_strings("test.integers"); }, "an array of 3 i32");
  refused([&] { reader.get_integers("test.floats"); }, "an array of 2 f32, not an array of integers");
  refused([&] { reader.get_floats("test.integers"); }, "not an array of floats");
}

TEST(Gguf, ReadsTheTensorsThatItsPackageWrites) {
  const GgufReader reader(open_file(golden("tiny.gguf")));
  ASSERT_EQ(reader.tensors().size(), 4u);
  EXPECT_EQ(reader.find_tensor("f32")->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(read_tensor(reader, "f32"), bytes_of({0.f, 1.f, 2.f, 3.f, 4.f, 5.f}));
  EXPECT_EQ(read_tensor(reader, "f16"), bytes_of<uint16_t>({0x3E00, 0xC000, 0x4200}));
  const GgufTensor& quantised = *reader.find_tensor("q8_0");
  EXPECT_EQ(reader.dtype(quantised), DType::q8_0);
  EXPECT_EQ(quantised.shape, (std::vector<uint64_t>{2, 32}));
  std::vector<float> row(32);
  const std::string rows = read_tensor(reader, "q8_0");
  ASSERT_EQ(rows.size(), 68u);
  dequantise(DType::q8_0, as_span(rows).data() + 34, row);
  for (size_t i = 0; i < 32; i++) EXPECT_NEAR(row[i], float(32 + i) / 8, 0.032f);
  const GgufTensor& listed = *reader.find_tensor("q5_0");
  EXPECT_EQ(listed.bytes, 44u);
  EXPECT_EQ(ggml_type_name(listed.type), "Q5_0");
  EXPECT_EQ(reader.dtype(listed), DType::q5_0);
  EXPECT_EQ(reader.find_tensor("q5"), nullptr);
  std::string part(40, '\0');
  expect_error([&] { reader.read(listed, 5, std::as_writable_bytes(std::span(part))); }, Status::out_of_range,
               "40 at 5");
}

TEST(Gguf, ReadsEveryTypeThatTheEngineHas) {
  const Folder folder;
  const std::vector<std::pair<uint32_t, DType>> types = {
      {0, DType::f32},   {1, DType::f16},   {2, DType::q4_0}, {3, DType::q4_1},
      {6, DType::q5_0},  {7, DType::q5_1},  {8, DType::q8_0}, {12, DType::q4_k},
      {13, DType::q5_k}, {14, DType::q6_k}, {30, DType::bf16}};
  ASSERT_EQ(types.size(), std::size(kAllTypes));
  for (const auto& [number, type] : types) {
    const size_t bytes = 3 * row_bytes(type, 256);
    write_bytes(folder / "a", file_of({{}, {tensor("t", {256, 3}, number, 0)}, bytes}));
    const GgufReader reader(open_file(folder / "a"));
    EXPECT_EQ(reader.dtype(reader.tensors()[0]), type);
    EXPECT_EQ(reader.tensors()[0].bytes, bytes);
    EXPECT_EQ(ggml_type_name(number).size(), std::strlen(dtype_info(type).name));
    expect_bytes_refused(file_of({{}, {tensor("t", {256, 3}, number, 0)}, bytes - 1}), "the data at");
  }
}

TEST(Gguf, ListsTypesThatItDoesNotKnow) {
  const Folder folder;
  write_bytes(folder / "a", file_of({{}, {tensor("new", {5}, 99, 0), tensor("t", {1}, 0, 64)}, 96}));
  const GgufReader reader(open_file(folder / "a"));
  EXPECT_EQ(ggml_type_name(reader.tensors()[0].type), "type 99");
  EXPECT_EQ(reader.tensors()[0].bytes, 0u);
  EXPECT_EQ(reader.tensors()[1].offset, std::filesystem::file_size(folder / "a") - 32);
  expect_error([&] { reader.dtype(reader.tensors()[0]); }, Status::unsupported, "\"new\" has type 99");
  write_bytes(folder / "a", file_of({{}, {tensor("t", {256, 3}, 10, 0)}, 3 * 84}));
  const GgufReader coarse(open_file(folder / "a"));
  expect_error([&] { coarse.dtype(coarse.tensors()[0]); }, Status::unsupported, "\"t\" has Q2_K");
  expect_refused({{}, {tensor("new", {5}, 99, 0), tensor("t", {1}, 0, 0)}, 4}, "the one before ends at 1");
  expect_refused({{}, {tensor("new", {5}, 99, 32)}, 32}, "the data at 32");
}

TEST(Gguf, ReadsVersionTwoAndOtherAlignments) {
  const Folder folder;
  Parts parts{{entry("general.alignment", kU32, bytes_of<uint32_t>({64}))},
              {tensor("b", {1}, 0, 64), tensor("a", {1, 1, 1, 2}, 0, 0)},  // in any order
              128,
              64,
              2};
  write_bytes(folder / "a", file_of(parts));
  const GgufReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.version(), 2u);
  EXPECT_EQ(reader.find_tensor("a")->offset % 64, 0u);
  EXPECT_EQ(reader.find_tensor("b")->offset, reader.find_tensor("a")->offset + 64);
  EXPECT_EQ(reader.find_tensor("a")->shape, (std::vector<uint64_t>{2, 1, 1, 1}));
  parts.data_bytes = 68;  // the last tensor need not be padded
  EXPECT_EQ(int(outcome_of_opening(file_of(parts)).status), int(Status::ok));
  EXPECT_EQ(int(outcome_of_opening(file_of({})).status), int(Status::ok));
}

TEST(Gguf, ReadsAVocabularyLargerThanTheFirstRead) {
  const Folder folder;
  std::string tokens, scores;
  constexpr uint64_t kCount = 150000;
  for (uint64_t i = 0; i < kCount; i++) {
    tokens += text("token" + std::to_string(i));
    const float score = -float(i);
    scores.append(reinterpret_cast<const char*>(&score), 4);
  }
  const std::string bytes =
      file_of({{entry("first", kString, text("1")), entry("tokens", kArray, array(kString, kCount, tokens)),
                entry("scores", kArray, array(kF32, kCount, scores))},
               {tensor("t", {8}, 0, 0)},
               32});
  write_bytes(folder / "a", bytes);
  take_memory_peak();
  const GgufReader reader(open_file(folder / "a"));
  EXPECT_LE(take_memory_peak(), 3 * bytes.size());
  EXPECT_EQ(reader.get_string("first"), "1");
  const std::vector<std::string_view> strings = reader.get_strings("tokens");
  ASSERT_EQ(strings.size(), kCount);
  EXPECT_EQ(strings[0], "token0");
  EXPECT_EQ(strings[kCount - 1], "token149999");
  EXPECT_EQ(reader.get_floats("scores")[kCount - 1], -149999.0);
}

TEST(Gguf, RefusesHostileFiles) {
  std::vector<Integer> integers = {{0, 4}, {4, 4}, {8, 8}, {16, 8}};
  std::string bytes = "GGUF" + bytes_of({3u}) + bytes_of<uint64_t>({2, 3});
  const auto add = [&](const std::string& part, std::initializer_list<Integer> inside) {
    for (const Integer& integer : inside) integers.push_back({bytes.size() + integer.at, integer.width});
    bytes += part;
  };
  add(entry("k", kU8, "\x05"), {{0, 8}});
  add(entry("s", kString, text("ab")), {{0, 8}, {9, 4}, {13, 8}});
  add(entry("a", kArray, array(kString, 2, text("x") + text("yz"))),
      {{0, 8}, {9, 4}, {17, 8}, {25, 8}, {34, 8}});
  add(tensor("t", {32, 2}, 8, 0), {{0, 8}, {9, 4}, {13, 8}, {21, 8}, {33, 8}});
  add(tensor("u", {3}, 0, 96), {{0, 8}, {9, 4}, {13, 8}, {25, 8}});
  bytes.resize((bytes.size() + 31) / 32 * 32 + 96 + 12);
  ASSERT_EQ(int(outcome_of_opening(bytes).status), int(Status::ok));
  expect_hostile_refused(bytes, integers,
                         [](const std::string& path) { GgufReader reader(open_file(path)); });
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  expect_bytes_refused(std::string(), "not a GGUF file");
  expect_bytes_refused("GGU", "not a GGUF file");
  expect_bytes_refused("GGML" + std::string(100, '\0'), "not a GGUF file");
  expect_bytes_refused(file_of({{}, {}, 0, 32, 1}), "GGUF version 1; versions 2 and 3",
                       Status::version_mismatch);
  expect_bytes_refused(file_of({{}, {}, 0, 32, 4}), "GGUF version 4", Status::version_mismatch);
  expect_bytes_refused(file_of({{}, {}, 0, 32, 0x03000000}), "big-endian", Status::unsupported);
}

TEST(Gguf, RefusesHostileMetadata) {
  const std::string one = bytes_of({1u}), head = "GGUF" + bytes_of({3u});
  expect_bytes_refused(head + bytes_of<uint64_t>({0, 1ull << 61}),
                       "metadata count 2305843009213693952: more than fit");
  expect_bytes_refused(head + bytes_of<uint64_t>({UINT64_MAX, 0}),
                       "tensor count 18446744073709551615: more than fit");
  expect_refused({{entry("k", kU32, one), entry("j", kU32, one), entry("k", kU32, one)}, {}},
                 "\"k\" is there twice");
  expect_refused({{entry("", kU32, one)}, {}}, "metadata entry 0, key length 0");
  expect_refused({{entry(std::string(65536, 'k'), kU32, one)}, {}}, "key length 65536");
  expect_refused({{entry("k", 13, one)}, {}}, "value type 13: not a value type");
  expect_refused({{entry("k", UINT32_MAX, one)}, {}}, "value type 4294967295");
  expect_refused({{entry("k", kBool, "\x02")}, {}}, "boolean 2: neither 0 nor 1");
  expect_refused({{entry("k", kArray, array(kBool, 2, {1, 3}))}, {}}, "boolean 3");
  expect_refused({{entry("k", kArray, array(kArray, 1, array(kU8, 1, "a")))}, {}}, "arrays of arrays");
  expect_refused({{entry("k", kArray, array(kU64, 1ull << 61, "aaaaaaaa"))}, {}},
                 "array length 2305843009213693952");
  expect_refused({{entry("k", kArray, array(kString, 1ull << 60, text("a")))}, {}},
                 "array length 1152921504606846976");
  expect_refused({{entry("k", kString, bytes_of({UINT64_MAX}) + "ab")}, {}},
                 "string length 18446744073709551615");
  expect_refused({{entry("k", kString, bytes_of<uint64_t>({3}) + "ab")}, {}},
                 "string length 3: more bytes than the file has");
  expect_refused({{entry("k", kU32, one)}, {}, 40}, "bytes after the last tensor");
}

TEST(Gguf, RefusesHostileTensors) {
  expect_refused({{}, {tensor("t", {1}, 0, 0), tensor("t", {1}, 0, 32)}, 36}, "tensor \"t\" is there twice");
  expect_refused({{}, {tensor("", {1}, 0, 0)}, 4}, "tensor 0, name length 0");
  expect_refused({{}, {tensor(std::string(257, 't'), {1}, 0, 0)}, 4}, "name length 257");
  expect_refused({{}, {tensor("t", {}, 0, 0)}, 32}, "dimension count 0");
  expect_refused({{}, {tensor("t", {1, 1, 1, 1, 1}, 0, 0)}, 4}, "dimension count 5");
  expect_refused({{}, {tensor("t", {4, 0}, 0, 0)}, 32}, "dimension 0");
  expect_refused({{}, {tensor("t", {1ull << 32, 1ull << 32}, 0, 0)}, 32},
                 "dimension 4294967296: not an allowed size");
  expect_refused({{}, {tensor("t", {1ull << 31, 1ull << 31}, 0, 0)}, 32}, "the tensor is too large");
  expect_refused({{}, {tensor("t", {1ull << 30, 1ull << 30}, 0, 0)}, 32},
                 "4611686018427387904 bytes at offset 0");
  expect_refused({{}, {tensor("t", {33}, 3, 0)}, 40},
                 "dimension 33: not a whole number of the type's blocks");
  expect_refused({{}, {tensor("t", {1}, 0, 0), tensor("u", {1}, 0, 0)}, 36},
                 "\"u\": 4 bytes at offset 0; the one before ends at 4");
  expect_refused({{}, {tensor("t", {9}, 0, 0), tensor("u", {1}, 0, 32)}, 36}, "the one before ends at 36");
  expect_refused({{}, {tensor("t", {1}, 0, 0), tensor("u", {1}, 0, 64)}, 68},
                 "at offset 64; the one before ends at 4");
  expect_refused({{}, {tensor("t", {1}, 0, 32)}, 36}, "at offset 32; the one before ends at 0");
  expect_refused({{}, {tensor("t", {1}, 0, 0), tensor("u", {1}, 0, 4)}, 8}, "at offset 4");
  expect_refused({{}, {tensor("t", {1}, 0, UINT64_MAX - 31)}, 36}, "at offset 18446744073709551584");
  expect_refused({{}, {tensor("t", {1}, 0, 0)}, 3}, "the data at 3");
  expect_refused({{}, {tensor("t", {1}, 0, 0)}, 33}, "bytes after the last tensor");
}

TEST(Gguf, RefusesAHostileAlignment) {
  for (const uint32_t alignment : {0u, 3u, 48u, UINT32_MAX})
    expect_refused({{entry("general.alignment", kU32, bytes_of({alignment}))}, {tensor("t", {1}, 0, 0)}, 4},
                   format("general.alignment %u: not a power", alignment));
  expect_refused({{entry("general.alignment", kU32, bytes_of({1u << 31}))}, {tensor("t", {1}, 0, 0)}, 4},
                 "beyond the file's end");
  expect_refused({{entry("general.alignment", kU64, bytes_of({1ull << 63}))}, {tensor("t", {1}, 0, 0)}, 4},
                 "not a power of two of 32 bits");
  expect_refused({{entry("general.alignment", kString, text("32"))}, {tensor("t", {1}, 0, 0)}, 4},
                 "the string \"32\"");
}

TEST(Gguf, NumbersThatAreNoneAreRefused) {
  const Folder folder;
  write_bytes(folder / "a", file_of({{entry("inf", kF32, bytes_of({INFINITY})),
                                      entry("nan", kF64, bytes_of({std::nan("")})),
                                      entry("big", kArray, array(kU64, 2, bytes_of({1ull, 1ull << 63})))},
                                     {}}));
  const GgufReader reader(open_file(folder / "a"));
  expect_error([&] { reader.get_f64("inf"); }, Status::corrupt_data, "\"inf\" is f32 inf, not a finite");
  expect_error([&] { reader.get_f64("nan"); }, Status::corrupt_data, "\"nan\" is f64 nan");
  expect_error([&] { reader.get_integers("big"); }, Status::corrupt_data, "64-bit signed");
}

// A sparse file may have any length: the header has a limit of its own.
TEST(Gguf, RefusesAHeaderOfAnyLength) {
  const Folder folder;
  const std::string bytes = "GGUF" + bytes_of({3u}) + bytes_of<uint64_t>({0, 1}) + text("k") +
                            bytes_of({kString}) + bytes_of({1ull << 34});
  write_bytes(folder / "a", bytes);
  std::filesystem::resize_file(folder / "a", 1ull << 35);
  take_memory_peak();
  expect_error([&] { GgufReader reader(open_file(folder / "a")); }, Status::corrupt_data,
               "a header of over 256 MiB");
  EXPECT_LE(take_memory_peak(), 4u << 20);
}

}  // namespace
}  // namespace riftco
