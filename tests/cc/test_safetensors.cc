#include "io/safetensors.h"
#include "io_support.h"

namespace riftco {
namespace {

std::string golden(const char* name) { return std::string(std::getenv("RIFTCO_TEST_DATA")) + "/io/" + name; }

// A file with this header and `data_bytes` zeros after it.
std::string file_with(const std::string& header, size_t data_bytes) {
  return bytes_of({uint64_t(header.size())}) + header + std::string(data_bytes, '\0');
}

Outcome outcome_of_opening(const std::string& bytes) {
  const Folder folder;
  write_bytes(folder / "a", bytes);
  return outcome_of([&] { SafetensorsReader reader(open_file(folder / "a")); });
}

void expect_refused(const std::string& header, size_t data_bytes, const std::string& part,
                    Status status = Status::corrupt_data) {
  const Outcome outcome = outcome_of_opening(file_with(header, data_bytes));
  EXPECT_EQ(int(outcome.status), int(status)) << header << "\n" << outcome.message;
  EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message << "\nlacks " << part;
}

std::string read_tensor(const SafetensorsReader& reader, std::string_view name) {
  const SafetensorsTensor* tensor = reader.find(name);
  std::string bytes(tensor->bytes, '\0');
  reader.read(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(Safetensors, ReadsWhatTheFormatsPackageWrites) {
  const SafetensorsReader reader(open_file(golden("tiny.safetensors")));
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"note", "a \"quoted\" é"}};
  EXPECT_EQ(reader.metadata(), metadata);
  ASSERT_EQ(reader.tensors().size(), 4u);
  EXPECT_EQ(reader.find("weight")->dtype, "F32");
  EXPECT_EQ(reader.find("weight")->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(reader.dtype(*reader.find("weight")), DType::f32);
  EXPECT_EQ(reader.dtype(*reader.find("half")), DType::f16);
  EXPECT_EQ(read_tensor(reader, "weight"), bytes_of({0.f, 1.f, 2.f, 3.f, 4.f, 5.f}));
  EXPECT_EQ(read_tensor(reader, "half"), bytes_of<uint16_t>({0x3E00, 0xC000}));
  EXPECT_EQ(read_tensor(reader, "scalar"), bytes_of<int64_t>({7}));
  EXPECT_TRUE(reader.find("scalar")->shape.empty());
  EXPECT_EQ(read_tensor(reader, "empty"), "");
  EXPECT_EQ(reader.find("weigh"), nullptr);
  EXPECT_EQ(reader.find("weights"), nullptr);
  expect_error([&] { reader.dtype(*reader.find("scalar")); }, Status::unsupported, "\"scalar\" has type I64");
}

TEST(Safetensors, ReadsPartsAndNothingBeyondATensor) {
  const SafetensorsReader reader(open_file(golden("tiny.safetensors")));
  const SafetensorsTensor& weight = *reader.find("weight");
  std::string part(8, '\0');
  const auto read = [&](uint64_t at) {
    return [&, at] { reader.read(weight, at, std::as_writable_bytes(std::span(part))); };
  };
  read(16)();
  EXPECT_EQ(part, bytes_of({4.f, 5.f}));
  expect_error(read(17), Status::out_of_range, "\"weight\" has 24 bytes; 8 at 17");
  expect_error(read(UINT64_MAX - 3), Status::out_of_range, "8 at 18446744073709551612");
}

const std::vector<SafetensorsTensor> kTensors = {
    {"b", "BF16", {2, 2}}, {"a \"x\" é", "U8", {3}}, {"none", "F64", {0}}, {"one", "F32", {}}};

std::string write_example(const std::string& path, const SafetensorsMetadata& metadata) {
  SafetensorsWriter writer(path, metadata, kTensors);
  for (const char* piece : {"bbbbbb", "bbaa", "a", "1234"}) writer.write(as_span(piece));
  writer.commit();
  return read_bytes(path);
}

TEST(Safetensors, WritesWhatItReads) {
  const Folder folder;
  const SafetensorsMetadata metadata = {{"k", "line\n\"é\""}, {"", ""}};
  const std::string bytes = write_example(folder / "a", metadata);
  const SafetensorsReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.metadata(), metadata);
  EXPECT_EQ(reader.data_offset() % 8, 0u);
  ASSERT_EQ(reader.tensors().size(), kTensors.size());
  for (size_t i = 0; i < kTensors.size(); i++) {
    EXPECT_EQ(reader.tensors()[i].name, kTensors[i].name);
    EXPECT_EQ(reader.tensors()[i].dtype, kTensors[i].dtype);
    EXPECT_EQ(reader.tensors()[i].shape, kTensors[i].shape);
  }
  EXPECT_EQ(read_tensor(reader, "b"), "bbbbbbbb");
  EXPECT_EQ(read_tensor(reader, "a \"x\" é"), "aaa");
  EXPECT_EQ(read_tensor(reader, "one"), "1234");
  EXPECT_EQ(write_example(folder / "b", metadata), bytes);
}

TEST(Safetensors, TheBytesAreTheseForGood) {
  const Folder folder;
  SafetensorsWriter writer(folder / "a", {{"k", "v"}}, {{"w", "U8", {2, 1}}, {"s", "I16", {}}});
  writer.write(as_span("abcd"));
  writer.commit();
  const std::string header =
      "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[0,2]},"
      "\"s\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[2,4]}}";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_bytes(folder / "a"),
            bytes_of({uint64_t((header + padding).size())}) + header + padding + "abcd");
}

TEST(Safetensors, WritesAFileWithoutTensors) {
  const Folder folder;
  SafetensorsWriter(folder / "a", {}, {}).commit();
  const SafetensorsReader reader(open_file(folder / "a"));
  EXPECT_TRUE(reader.tensors().empty() && reader.metadata().empty());
}

TEST(Safetensors, TheWriterRefusesWhatNoReaderTakes) {
  const Folder folder;
  const auto write = [&](std::vector<SafetensorsTensor> tensors, SafetensorsMetadata metadata = {}) {
    return [&folder, tensors, metadata] { SafetensorsWriter writer(folder / "a", metadata, tensors); };
  };
  const Status invalid = Status::invalid_argument;
  expect_error(write({{"a", "U8", {1}}, {"b", "U8", {1}}, {"a", "U8", {1}}}), invalid,
               "two tensors are named \"a\"");
  expect_error(write({{"a", "Q9", {1}}}), invalid, "\"a\" of type Q9");
  expect_error(write({{"__metadata__", "U8", {1}}}), invalid, "__metadata__");
  expect_error(write({{"a", "F4", {3}}}), invalid, "F4[3]");
  expect_error(write({{"a", "U8", {1, 1, 1, 1, 1, 1, 1, 1, 1}}}), invalid, "cannot be stored");
  expect_error(write({{"a", "F32", {1ull << 40, 1ull << 40}}}), invalid, "F32[1099511627776, 1099511627776]");
  constexpr uint64_t kHuge = UINT64_MAX >> 3;  // four of them pass the largest file offset
  expect_error(
      write({{"a", "U8", {kHuge}}, {"b", "U8", {kHuge}}, {"c", "U8", {kHuge}}, {"d", "U8", {kHuge}}}),
      invalid, "\"d\": U8[");
  expect_error(write({{"\xFF", "U8", {1}}}), invalid, "\\xff");
  expect_error(write({}, {{"k", "\xC3"}}), invalid, "\\xc3");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Safetensors, TheWriterCountsItsBytes) {
  const Folder folder;
  SafetensorsWriter writer(folder / "a", {{"k", "v"}}, {{"w", "U8", {4}}});
  writer.write(as_span("abc"));
  expect_error([&] { writer.commit(); }, Status::invalid_state, "1 bytes of the tensors");
  expect_error([&] { writer.write(as_span("de")); }, Status::out_of_range, "2 bytes are more than the 1");
  expect_error(
      [&] {
        writer.rewrite_metadata({{"k", "a longer value"}});
      },
      Status::invalid_argument, "the first had");
  writer.rewrite_metadata({{"k", "w"}});
  writer.write(as_span("d"));
  writer.commit();
  const SafetensorsReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.metadata().at("k"), "w");
  EXPECT_EQ(read_tensor(reader, "w"), "abcd");
}

TEST(Safetensors, RefusesHostileFiles) {
  const Folder folder;
  const std::string bytes = write_example(folder / "a", {{"k", "v"}});
  expect_hostile_refused(bytes, {{0, 8}, {0, 4}, {4, 4}},
                         [](const std::string& path) { SafetensorsReader reader(open_file(path)); });
}

TEST(Safetensors, RefusesHostileNumbers) {
  const std::string good = R"({"w":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}})";
  EXPECT_EQ(int(outcome_of_opening(file_with(good, 6)).status), int(Status::ok));
  for (const char* number :
       {"0", "-1", "1.0", "1e1", "-0", "18446744073709551615", "18446744073709551616", "9223372036854775807",
        "4611686018427387904", "1e999", "null", "\"2\"", "true", "[2]", "{}"}) {
    for (const char* field : {"[2,3]", "[0,6]"}) {
      for (const size_t place : {1, 3}) {
        std::string text = field;
        text.replace(place, 1, number);
        if (text == field) continue;
        std::string header = good;
        header.replace(header.find(field), 5, text);
        take_memory_peak();
        const Outcome outcome = outcome_of_opening(file_with(header, 6));
        EXPECT_EQ(int(outcome.status), int(Status::corrupt_data)) << header;
        EXPECT_LE(take_memory_peak(), 65536u) << header;
      }
    }
  }
}

TEST(Safetensors, RefusesHostileHeaders) {
  const auto tensor = [](const std::string& name, const char* type, const char* shape, const char* offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const std::string w = tensor("w", "U8", "[4]", "[0,4]");
  expect_refused("{" + w + "}", 5, "take 4 bytes, but the data section has 5");
  expect_refused("{" + w + "}", 3, "take 4 bytes, but the data section has 3");
  expect_refused("{}", 1, "take 0 bytes");
  expect_refused("{" + w + "," + w + "}", 4, "");
  expect_refused("{" + w + "," + tensor("w", "U8", "[4]", "[4,8]") + "}", 8, "\"w\" is there twice");
  expect_refused("{" + w + "," + tensor("v", "U8", "[4]", "[2,6]") + "}", 6, "\"v\" starts at 2");
  expect_refused("{" + w + "," + tensor("v", "U8", "[4]", "[5,9]") + "}", 9, "\"v\" starts at 5");
  expect_refused("{" + tensor("v", "U8", "[4]", "[1,5]") + "}", 5, "\"v\" starts at 1");
  expect_refused("{" + w + "," + tensor("e", "U8", "[0]", "[2,2]") + "}", 4, "starts at 2");
  expect_refused("{" + tensor("v", "U8", "[4]", "[4,0]") + "}", 4, "[4, 0] do not hold U8[4]");
  expect_refused("{" + tensor("v", "U16", "[4]", "[0,4]") + "}", 4, "do not hold U16[4]");
  expect_refused("{" + tensor("v", "F4", "[3]", "[0,1]") + "}", 1, "do not hold F4[3]");
  expect_refused("{" + tensor("v", "U8", "[4294967296,4294967297]", "[0,4294967296]") + "}", 9,
                 "do not hold");
  expect_refused("{" + tensor("v", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1, "a longer list");
  expect_refused("{" + tensor("v", "U8", "[1]", "[0,1,1]") + "}", 1, "a longer list");
  expect_refused("{" + tensor("v", "U8", "[1]", "[0]") + "}", 1, "lacks");
  expect_refused("{" + tensor("v", "X\\n", "[1]", "[0,1]") + "}", 1, "the unknown type \"X\\x0a\"",
                 Status::unsupported);
  expect_refused(R"({"v":{"dtype":"U8","shape":[1]}})", 1, "\"v\" lacks");
  expect_refused(R"({"v":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, "there twice");
  expect_refused(R"({"v":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "there twice");
  expect_refused(R"({"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
                 "\"x\": found an unknown field");
  expect_refused(R"({"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"":{}}})", 1, "an unknown field");
  expect_refused(R"({"v":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1, "found a list");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "\"a\": found 1");
  expect_refused(R"({"__metadata__":{"a":{}}})", 0, "\"a\": found an object");
  expect_refused(R"({"__metadata__":{"a":[]}})", 0, "\"a\": found a list");
  expect_refused(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "there twice");
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, "a second object");
  expect_refused(R"({"__metadata__":"a"})", 0, "found \"a\"");
  expect_refused(R"({"v":[1]})", 0, "found a list");
  expect_refused(R"({"v":null})", 0, "found null");
  expect_refused("[]", 0, "does not start with {");
  expect_refused(" {}", 0, "does not start with {");
  expect_refused("", 0, "does not start with {");
  expect_refused("{}{}", 0, "not valid JSON at byte 3");
  expect_refused("{}x", 0, "not valid JSON");
  expect_refused(std::string("{}\0 ", 4), 0, "a NUL byte in JSON at byte 2");
  expect_refused("{\"\xFF\":1}", 0, "not valid JSON");
  expect_refused("{\"a\":" + std::string(100000, '['), 0, "found a list");
  std::string deep;
  for (int i = 0; i < 10000; i++) deep += "{\"a\":";
  expect_refused(deep, 0, "found an unknown field");
}

TEST(Safetensors, RefusesALengthThatTheFileLacks) {
  const auto refused = [](uint64_t length, size_t rest) {
    const Outcome outcome = outcome_of_opening(bytes_of({length}) + std::string(rest, ' '));
    EXPECT_EQ(int(outcome.status), int(Status::corrupt_data));
    return outcome.message;
  };
  EXPECT_NE(refused(3, 2).find("length 3 exceeds 2"), std::string::npos);
  EXPECT_NE(refused(UINT64_MAX, 2).find("length 18446744073709551615 exceeds 2"), std::string::npos);
  // A sparse file may have any length; the format's own limit holds.
  const Folder folder;
  write_bytes(folder / "a", bytes_of<uint64_t>({100'000'001}));
  std::filesystem::resize_file(folder / "a", 200'000'000);
  take_memory_peak();
  expect_error([&] { SafetensorsReader reader(open_file(folder / "a")); }, Status::corrupt_data,
               "exceeds 100000000");
  EXPECT_LE(take_memory_peak(), 65536u);
}

}  // namespace
}  // namespace riftco
