#include "base/json.h"
#include "io/rift.h"
#include "io_support.h"

namespace riftco {
namespace {

const RiftMetadata kMetadata = {R"({"layers":2})", R"({"kind":"byte"})", "sft", "base \"é\""};
const std::vector<RiftTensor> kTensors = {{"norm", DType::f32, {3}},
                                          {"up", DType::q4_1, {2, 64}},
                                          {"down", DType::q8_0, {1, 32}},
                                          {"head", DType::bf16, {2, 2}},
                                          {"half", DType::f16, {}}};

std::string data_of(const RiftTensor& tensor) {
  size_t bytes = dtype_info(tensor.type).bytes;
  for (const uint64_t size : tensor.shape) bytes *= size;
  bytes /= dtype_info(tensor.type).block;
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; i++) data[i] = char(i * 7 + tensor.name.size());
  return data;
}

std::string write_example(const std::string& path) {
  RiftWriter writer(path, kMetadata, kTensors);
  for (const RiftTensor& tensor : kTensors) {
    const std::string data = data_of(tensor);
    writer.write(as_span(data.substr(0, 5)));
    if (data.size() > 5) writer.write(as_span(data.substr(5)));
  }
  writer.commit();
  return read_bytes(path);
}

Outcome outcome_of_opening(const std::string& bytes) {
  const Folder folder;
  write_bytes(folder / "a", bytes);
  return outcome_of([&] { RiftReader reader(open_file(folder / "a")); });
}

// Opens a safetensors file with this metadata and a right checksum over it.
Outcome outcome_of_metadata(SafetensorsMetadata metadata,
                            const std::vector<SafetensorsTensor>& tensors = {}) {
  const Folder folder;
  const auto write = [&] {
    SafetensorsWriter writer(folder / "a", metadata, tensors);
    for (const SafetensorsTensor& tensor : writer.tensors())
      writer.write(as_span(std::string(tensor.bytes, '\1')));
    writer.commit();
  };
  const auto open = [&] { RiftReader reader(open_file(folder / "a")); };
  write();
  Outcome outcome = outcome_of(open);
  const std::string mark = "the contents give ";
  if (const size_t found = outcome.message.find(mark); found != std::string::npos) {
    metadata["riftco.checksum"] = outcome.message.substr(found + mark.size());
    write();
    outcome = outcome_of(open);
  }
  return outcome;
}

SafetensorsMetadata metadata_with(const std::string& key, const std::string& value) {
  SafetensorsMetadata metadata = {
      {"riftco.format", "1.0"}, {"riftco.config", "{}"}, {"riftco.checksum", "?"}};
  metadata[key] = value;
  return metadata;
}

void expect_refused(const Outcome& outcome, Status status, const std::string& part) {
  EXPECT_EQ(int(outcome.status), int(status)) << part << "\n" << outcome.message;
  EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message << "\nlacks " << part;
}

TEST(Rift, ReadsWhatItWrites) {
  const Folder folder;
  const std::string bytes = write_example(folder / "a");
  const RiftReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.metadata().config, kMetadata.config);
  EXPECT_EQ(reader.metadata().tokenizer, kMetadata.tokenizer);
  EXPECT_EQ(reader.metadata().stage, kMetadata.stage);
  EXPECT_EQ(reader.metadata().parent, kMetadata.parent);
  ASSERT_EQ(reader.tensors().size(), kTensors.size());
  for (const RiftTensor& wanted : kTensors) {
    const RiftTensor* found = reader.find(wanted.name);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->type, wanted.type);
    EXPECT_EQ(found->shape, wanted.shape);
    std::string data(found->bytes, '\0');
    reader.read(*found, 0, std::as_writable_bytes(std::span(data)));
    EXPECT_EQ(data, data_of(wanted)) << wanted.name;
    expect_error([&] { reader.read(*found, 1, std::as_writable_bytes(std::span(data))); },
                 Status::out_of_range, wanted.name);
  }
  EXPECT_EQ(reader.find("none"), nullptr);
  EXPECT_EQ(write_example(folder / "b"), bytes);
}

TEST(Rift, IsASafetensorsFile) {
  const Folder folder;
  write_example(folder / "a");
  const SafetensorsReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.metadata().at("riftco.format"), "1.0");
  EXPECT_EQ(reader.metadata().at("riftco.types"), R"({"down":"q8_0","up":"q4_1"})");
  EXPECT_EQ(reader.find("head")->dtype, "BF16");
  EXPECT_EQ(reader.find("up")->dtype, "U8");
  EXPECT_EQ(reader.find("up")->shape, (std::vector<uint64_t>{2, 40}));
}

// A stored file must stay readable, and the same model is the same bytes: first.rift was written by
// write_example() with the first release's writer, and is never made again.
TEST(Rift, ReadsTheFirstFile) {
  const Folder folder;
  const std::string first = std::string(std::getenv("RIFTCO_TEST_DATA")) + "/io/first.rift";
  EXPECT_EQ(RiftReader(open_file(first)).metadata().parent, kMetadata.parent);
  EXPECT_EQ(write_example(folder / "a"), read_bytes(first));
}

TEST(Rift, LeavesEmptyMetadataOut) {
  const Folder folder;
  RiftWriter(folder / "a", {"{}", "", "", ""}, {}).commit();
  EXPECT_EQ(SafetensorsReader(open_file(folder / "a")).metadata().size(), 3u);
  const RiftReader reader(open_file(folder / "a"));
  EXPECT_EQ(reader.metadata().config, "{}");
  EXPECT_EQ(reader.metadata().stage, "");
}

TEST(Rift, EveryChangedByteIsFound) {
  const Folder folder;
  const std::string bytes = write_example(folder / "a");
  const size_t header = SafetensorsReader(open_file(folder / "a")).data_offset();
  const auto outcome_of_change = [&](size_t at) {
    std::string changed = bytes;
    changed[at] = char(changed[at] ^ 1);
    write_bytes(folder / "a", changed);
    return outcome_of([&] { RiftReader reader(open_file(folder / "a")); });
  };
  for (size_t at = 0; at < bytes.size(); at++) {
    if (at >= 8 && at < header && bytes[at] == ' ') continue;  // padding
    EXPECT_NE(int(outcome_of_change(at).status), int(Status::ok)) << "byte " << at;
  }
  expect_refused(outcome_of_change(header), Status::corrupt_data, "riftco.checksum is \"xxh3-128:");
}

TEST(Rift, RefusesHostileFiles) {
  const Folder folder;
  expect_hostile_refused(write_example(folder / "a"), {{0, 8}, {0, 4}, {4, 4}},
                         [](const std::string& path) { RiftReader reader(open_file(path)); });
}

TEST(Rift, ReadsNewerMinorFormatsAndRefusesNewerMajorOnes) {
  for (const char* version : {"1.0", "1.7", "1.4294967295"})
    EXPECT_EQ(outcome_of_metadata(metadata_with("riftco.format", version)).message, "");
  EXPECT_EQ(outcome_of_metadata(metadata_with("riftco.future", "x")).message, "");
  expect_refused(outcome_of_metadata(metadata_with("riftco.format", "2.3")), Status::version_mismatch,
                 "format 2.3; this library reads up to format 1");
  for (const char* version : {"", "1", "1.", ".1", "0.1", "-1.0", "1.0 ", "1.0.0", "a", "99999999999.0"})
    expect_refused(outcome_of_metadata(metadata_with("riftco.format", version)), Status::corrupt_data,
                   "not a version");
}

TEST(Rift, RefusesHostileMetadata) {
  const auto refused = [](const std::string& types, const std::vector<SafetensorsTensor>& tensors,
                          const std::string& part, Status status = Status::corrupt_data) {
    expect_refused(outcome_of_metadata(metadata_with("riftco.types", types), tensors), status, part);
  };
  const std::vector<SafetensorsTensor> rows = {{"w", "U8", {2, 20}}};
  EXPECT_EQ(outcome_of_metadata(metadata_with("riftco.types", R"({"w":"q4_1"})"), rows).message, "");
  refused("{}", rows, "\"w\" has type U8", Status::unsupported);
  refused(R"({"w":"q9_9"})", rows, "the unknown type \"q9_9\"", Status::unsupported);
  refused(R"({"w":"f32"})", rows, "the unknown type \"f32\"", Status::unsupported);
  refused(R"({"w":"q8_0"})", rows, "blocks of 34 bytes");
  refused(R"({"w":1})", rows, "\"w\" is no tensor or its type no text");
  refused(R"({"w":"q4_1","v":"q4_1"})", rows, "\"v\" is no tensor");
  refused(R"({"w":"q4_1","w":"q4_1"})", rows, "\"w\" is there twice");
  refused("[]", rows, "not an object");
  refused("{", rows, "not valid JSON at byte");
  refused(R"({"w":"q4_1"})", {{"w", "U8", {20}}}, "not stored as U8 rows");
  refused(R"({"w":"q4_1"})", {{"w", "F32", {2, 20}}}, "not stored as U8 rows");
  refused(R"({"w":"q4_1"})", {{"w", "U8", {0, UINT64_MAX / 20 * 20}}},
          "has rows of 18446744073709551600 bytes");
  SafetensorsMetadata none = metadata_with("riftco.stage", "x");
  none.erase("riftco.config");
  expect_refused(outcome_of_metadata(none), Status::corrupt_data, "lacks riftco.config");
  none = metadata_with("riftco.stage", "x");
  none.erase("riftco.checksum");
  expect_refused(outcome_of_metadata(none), Status::corrupt_data, "lacks riftco.checksum");
  expect_refused(outcome_of_metadata({{"format", "pt"}}), Status::corrupt_data, "not a .rift file");
}

TEST(Rift, TheWriterRefusesWhatItCannotStore) {
  const Folder folder;
  write_bytes(folder / "a", "old");
  const auto write = [&](std::vector<RiftTensor> tensors, RiftMetadata metadata = kMetadata) {
    return [&folder, tensors, metadata] { RiftWriter writer(folder / "a", metadata, tensors); };
  };
  const Status invalid = Status::invalid_argument;
  expect_error(write({{"w", DType::q4_1, {2, 33}}}), invalid,
               "\"w\" of type q4_1 is not rows of whole blocks of 32");
  expect_error(write({{"w", DType::q8_0, {32}}}), invalid, "\"w\" of type q8_0");
  expect_error(write({{"w", DType::f32, {1}}, {"w", DType::f32, {1}}}), invalid,
               "two tensors are named \"w\"");
  expect_error(write({{"\xFF", DType::q4_1, {1, 32}}}), invalid, "\\xff");
  expect_error(write({}, {"{}", "\xFF", "", ""}), invalid, "\\xff");
  {
    RiftWriter writer(folder / "a", kMetadata, kTensors);
    writer.write(as_span("1234"));
    expect_error([&] { writer.commit(); }, Status::invalid_state, "are not written yet");
  }
  EXPECT_EQ(read_bytes(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Rift, LoadingCanBeCancelled) {
  const Folder folder;
  write_example(folder / "a");
  CancelFlag cancel;
  Progress progress("loading", &cancel);
  RiftReader(open_file(folder / "a"), &progress);
  cancel.set();
  expect_error([&] { RiftReader(open_file(folder / "a"), &progress); }, Status::cancelled, "loading");
}

TEST(Rift, ChecksDataOfManyPieces) {
  const Folder folder;
  const RiftTensor tensor = {"w", DType::f32, {3, 1 << 18}};  // 3 MiB
  const std::string data = data_of(tensor);
  RiftWriter writer(folder / "a", kMetadata, {tensor});
  for (size_t at = 0; at < data.size(); at += 100000) writer.write(as_span(data.substr(at, 100000)));
  writer.commit();
  take_memory_peak();
  RiftReader(open_file(folder / "a"));
  EXPECT_LE(take_memory_peak(), (1u << 20) + 65536);
  std::string bytes = read_bytes(folder / "a");
  bytes.back() ^= 64;
  expect_refused(outcome_of_opening(bytes), Status::corrupt_data, "riftco.checksum");
}

TEST(Json, IsStrict) {
  EXPECT_EQ(parse_json(R"( {"a":[1,-2,3.5,"é",null,true,{}],"b":{"c":[]}} )", "x").dump(),
            R"({"a":[1,-2,3.5,"é",null,true,{}],"b":{"c":[]}})");
  EXPECT_EQ(parse_json("18446744073709551615", "x").get<uint64_t>(), UINT64_MAX);
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_error([&] { parse_json(text, "the file"); }, Status::corrupt_data, "the file: " + part);
  };
  refused("", "not valid JSON at byte 1");
  refused("[1,]", "not valid JSON at byte 4");
  refused("1e999", "not valid JSON");
  refused("[1] 2", "not valid JSON");
  refused("\"\xC3\"", "not valid JSON");
  refused(R"({"a":1,"b":{"a":1,"a":2}})", "the JSON key \"a\" is there twice");
  refused(std::string("[1]\0", 4), "a NUL byte in JSON at byte 3");
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "x").is_array());
  refused(std::string(65, '[') + std::string(65, ']'), "JSON nested deeper than 64");
  refused(std::string(1000000, '['), "JSON nested deeper than 64");
}

}  // namespace
}  // namespace riftco
