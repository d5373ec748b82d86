#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace riftco {
namespace {

TEST(Memory, BuffersAreZeroedAlignedAndCounted) {
  auto account = std::make_shared<MemoryAccount>();
  for (const size_t bytes : {size_t(0), size_t(1), size_t(4096), (size_t(1) << 20) - 1, size_t(5) << 20}) {
    for (const Pages pages : {Pages::normal, Pages::huge}) {
      Buffer buffer(account, bytes, "a test", pages);
      EXPECT_EQ(buffer.size(), bytes);
      EXPECT_EQ(account->bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
      EXPECT_TRUE(
          std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte(0); }));
      if (bytes) std::memset(buffer.data(), 0xFF, bytes);
    }
    EXPECT_EQ(account->bytes(), 0u);
  }
}

TEST(Memory, MovingKeepsTheCount) {
  auto account = std::make_shared<MemoryAccount>();
  Buffer a(account, 100, "a");
  std::byte* const data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  Buffer c(account, 2 << 20, "c");
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(account->bytes(), 100u);
  c = Buffer();
  EXPECT_EQ(account->bytes(), 0u);
}

TEST(Memory, AnAccountKeepsToItsLimitAndNamesBothNumbers) {
  auto account = std::make_shared<MemoryAccount>(1000);
  const Buffer half(account, 600, "half");
  try {
    Buffer(account, 401, "the rest");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
    EXPECT_STREQ(error.what(), "the rest: 401 bytes are needed with the 600 held, the limit is 1000");
  }
  EXPECT_EQ(account->bytes(), 600u);
  fail_buffer_after(0);
  EXPECT_THROW(Buffer(account, 400, "a failure"), Error);
  EXPECT_EQ(account->bytes(), 600u);
  const Buffer rest(account, 400, "the rest");
  EXPECT_EQ(account->bytes(), 1000u);
}

TEST(Memory, TooMuchIsOutOfMemoryAndNamesIt) {
  auto account = std::make_shared<MemoryAccount>();
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t(1) << 55}) {
    try {
      Buffer buffer(account, bytes, "the moon");
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::out_of_memory);
      EXPECT_EQ(error.what(), "no memory for the moon: " + std::to_string(bytes) + " bytes");
    }
  }
  EXPECT_EQ(account->bytes(), 0u);
}

TEST(Memory, InjectedFailureHappensOnce) {
  fail_buffer_after(1);
  const uint64_t before = buffer_allocations();
  Buffer first(nullptr, 8, "first");
  EXPECT_THROW(Buffer(nullptr, 8, "second"), Error);
  Buffer third(nullptr, 8, "third");
  EXPECT_EQ(buffer_allocations() - before, 2u);
  fail_buffer_after(-1);
}

}  // namespace
}  // namespace riftco
