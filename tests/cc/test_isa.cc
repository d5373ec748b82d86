// The choice of the CPU's instruction set, and the device registry. The choice is made once per process, so each case of
// it runs in a forked process; no test of this program makes it in the parent.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cpu/isa.h"
#include "backend/registry.h"
#include "base/error.h"

namespace riftco {
namespace {

// Exits with the status of the error that f throws, its message on stderr; 0 without one.
template <class F>
void exit_with_status(F f) {
  try {
    f();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::exit(int(e.status()));
  }
  std::exit(0);
}
const auto exited = [](Status status) { return testing::ExitedWithCode(int(status)); };

constexpr CpuIsa kForeign =  // of another kind of machine
#ifdef __aarch64__
    CpuIsa::avx2;
constexpr const char* kForeignName = "avx2";
#else
    CpuIsa::neon;
constexpr const char* kForeignName = "neon";
#endif

TEST(Isa, TablesExistWhereSupported) {
  EXPECT_TRUE(cpu_isa_supported(CpuIsa::scalar));
  const char* names[] = {"scalar", "avx2", "avx512", "neon"};
  for (int i = 0; i < 4; i++) {
    const KernelTable* table = cpu_kernels(CpuIsa(i));
    EXPECT_EQ(cpu_isa_supported(CpuIsa(i)), table != nullptr);
    EXPECT_STREQ(table ? table->name : names[i], names[i]);
  }
  EXPECT_EQ(cpu_kernels(CpuIsa(4)), nullptr);
  EXPECT_FALSE(cpu_isa_supported(CpuIsa(-1)));
}

TEST(Isa, TheEnvironmentChooses) {
  EXPECT_EXIT(exit_with_status([] {
                setenv("RIFTCO_CPU_ISA", "scalar", 1);
                if (cpu_isa() != CpuIsa::scalar) std::exit(1);
                if (find_device(0).kernels != cpu_kernels(CpuIsa::scalar)) std::exit(2);
              }),
              exited(Status::ok), "");
  EXPECT_EXIT(exit_with_status([] {
                setenv("RIFTCO_CPU_ISA", "sse9", 1);
                cpu_isa();
              }),
              exited(Status::invalid_argument), "RIFTCO_CPU_ISA=.*sse9");
  EXPECT_EXIT(exit_with_status([] {
                setenv("RIFTCO_CPU_ISA", kForeignName, 1);
                find_device(0);
              }),
              exited(Status::unsupported), std::string("RIFTCO_CPU_ISA=") + kForeignName);
}

TEST(Isa, TheBestIsTheDefault) {
  EXPECT_EXIT(exit_with_status([] {
                unsetenv("RIFTCO_CPU_ISA");
                for (int i = 0; i < 4; i++)
                  if (CpuIsa(i) > cpu_isa() && cpu_isa_supported(CpuIsa(i))) std::exit(1);
              }),
              exited(Status::ok), "");
}

TEST(Isa, ForceComesBeforeTheFirstUse) {
  EXPECT_EXIT(exit_with_status([] {
                setenv("RIFTCO_CPU_ISA", "sse9", 1);  // not looked at
                force_cpu_isa(CpuIsa::scalar);
                force_cpu_isa(CpuIsa::scalar);
                if (cpu_isa() != CpuIsa::scalar) std::exit(1);
              }),
              exited(Status::ok), "");
  EXPECT_EXIT(exit_with_status([] { force_cpu_isa(kForeign); }), exited(Status::unsupported), kForeignName);
  EXPECT_EXIT(exit_with_status([] { force_cpu_isa(CpuIsa(17)); }), exited(Status::invalid_argument), "17");
  EXPECT_EXIT(exit_with_status([] {
                if (cpu_isa() == CpuIsa::scalar)
                  fail(Status::invalid_state, "was already chosen, scalar comes too late");
                find_device(0);
                force_cpu_isa(CpuIsa::scalar);
              }),
              exited(Status::invalid_state), "was already chosen, scalar comes too late");
}

TEST(Isa, OtherBackEndsSayWhyTheyAreMissing) {
  const std::pair<int32_t, const char*> cases[] = {{1, "metal"}, {2, "cuda"}, {3, "tpu"}};
  for (const auto& [number, name] : cases) {
    try {
      find_device(number);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::backend_unavailable);
      EXPECT_EQ(std::string(e.what()), "back end " + std::string(name) + " is not compiled in");
    }
  }
  for (int32_t number : {4, -1}) {
    try {
      find_device(number);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace riftco
