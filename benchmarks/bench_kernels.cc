// Measures the CPU kernels alone: matrices of SmolLM2-135M and GPT-2 as a step uses them, attention, norms, logits.
//
//   bench_kernels [--json] [--isa scalar|avx2|avx512] [--threads N | --cpu-time] [--seconds S] [--only TEXT]
//
// Each case runs for S seconds; "best" and "median" are of single runs. Matrix cases take turns with a plain read of the
// same bytes and with a loop of arithmetic in registers (peaks.h): "of_read" and "of_peak" are the median shares of the two
// speeds. Threads are plain std::thread with a
// spinning start, not the engine's pool. --cpu-time: one thread, its processor time instead of wall time (busy machines).
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/memory.h"
#include "core/math.h"
#include "peaks.h"

using namespace riftco;

namespace {

bool cpu_time = false;

double now() {
  timespec t;
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

struct Options {
  bool json = false;
  CpuIsa isa = cpu_isa_supported(CpuIsa::avx512) ? CpuIsa::avx512
               : cpu_isa_supported(CpuIsa::avx2) ? CpuIsa::avx2
                                                 : CpuIsa::scalar;
  uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  double seconds = 1;
  std::string only;
};

using Work = std::function<void(Share)>;

// Runs work on all threads and returns the seconds from the common start to the last end.
class Workers {
 public:
  explicit Workers(uint32_t count) : count_(count) {
    for (uint32_t i = 1; i < count; i++)
      threads_.emplace_back([this, i] {
        for (uint64_t seen = 0; !stop_; seen++) {
          while (started_ == seen && !stop_) std::this_thread::yield();
          if (stop_) return;
          (*work_)({i, count_});
          finished_++;
        }
      });
  }
  ~Workers() {
    stop_ = true;
    for (std::thread& t : threads_) t.join();
  }
  double time(const Work& work) {
    work_ = &work;
    finished_ = 0;
    const double start = now();
    started_++;
    work({0, count_});
    while (finished_ + 1 < count_) {
    }
    return now() - start;
  }

 private:
  const uint32_t count_;
  const Work* work_ = nullptr;
  std::atomic<uint64_t> started_{0}, finished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

struct Result {
  std::string name;
  double best, median;
  double of_read, of_peak;  // 0 where they are not compared
  double bytes, operations;
  std::string rate;  // of the median
};

// What one run of a case does at least. Two operations for a multiply-add.
struct Cost {
  std::vector<std::pair<const std::byte*, size_t>> read;  // or empty
  double operations = 0;
  Peak peak = {0, nullptr};  // of such operations

  double bytes() const {
    double sum = 0;
    for (const auto& [data, size] : read) sum += double(size);
    return sum;
  }
};

double middle(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + ptrdiff_t(v.size() / 2), v.end());
  return v[v.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), kernels_(*cpu_kernels(options.isa)), workers_(options.threads) {}

  const KernelTable& kernels() const { return kernels_; }
  const std::vector<Result>& results() const { return results_; }
  bool wanted(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

  // rate(seconds) words the median.
  void run(const std::string& name, const Cost& cost, const Work& work,
           const std::function<std::string(double)>& rate) {
    if (!wanted(name)) return;
    constexpr uint64_t kRepetitions = 100000;
    std::vector<double> times, of_read, of_peak;
    const Work reader = [&cost](Share share) { plain_read(cost.read, share); };
    const Work arithmetic = [&cost](Share) { cost.peak.run(kRepetitions); };
    for (const double start = now(); times.size() < 3 || now() - start < options_.seconds;) {
      const double reading = cost.read.empty() ? 0 : workers_.time(reader);
      times.push_back(workers_.time(work));
      of_read.push_back(reading / times.back());
      if (!cost.peak.run) continue;
      const double speed =
          cost.peak.operations * double(kRepetitions) * options_.threads / workers_.time(arithmetic);
      of_peak.push_back(cost.operations / times.back() / speed);
    }
    times.erase(times.begin()), of_read.erase(of_read.begin());  // the first one warms up
    results_.push_back({name, *std::min_element(times.begin(), times.end()), middle(times), middle(of_read),
                        of_peak.empty() ? 0 : middle(of_peak), cost.bytes(), cost.operations,
                        rate(middle(times))});
    if (options_.json) return;
    const Result& r = results_.back();
    std::printf("%-34s best %9.3f us, median %9.3f us, %s", name.c_str(), r.best * 1e6, r.median * 1e6,
                r.rate.c_str());
    if (r.of_read > 0) std::printf(", %.0f %% of a plain read", 100 * r.of_read);
    if (r.of_peak > 0) std::printf(", %.0f %% of the peak", 100 * r.of_peak);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static void plain_read(const std::vector<std::pair<const std::byte*, size_t>>& all, Share share) {
    for (const auto& [data, bytes] : all) {
      const size_t words = bytes / 8, begin = words * share.index / share.count,
                   end = words * (share.index + 1) / share.count;
      const uint64_t* p = reinterpret_cast<const uint64_t*>(data);
      uint64_t lanes[16] = {};
      for (size_t i = begin; i + 16 <= end; i += 16)
        for (size_t j = 0; j < 16; j++) lanes[j] |= p[i + j];
      for (uint64_t lane : lanes) sink_ |= lane;
    }
  }
  static inline std::atomic<uint64_t> sink_{0};

  Options options_;
  const KernelTable& kernels_;
  Workers workers_;
  std::vector<Result> results_;
};

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

struct Source {  // of pseudo-random numbers
  uint64_t state = 0x9E3779B97F4A7C15ull;
  uint64_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  }
  float unit() { return float(int32_t(next() >> 32)) * 0x1p-31f; }
};

std::vector<float> floats(size_t n, float scale = 1) {
  Source source;
  std::vector<float> v(n);
  for (float& x : v) x = scale * source.unit();
  return v;
}

// A matrix of random weights; the data lie in the caller's buffer.
PackedMatrix fill(const KernelTable& k, DType type, uint32_t outputs, uint32_t inputs, std::byte* data) {
  Source source;
  const PackedMatrix m = {type, outputs, inputs, data, nullptr};
  std::vector<std::byte> row(row_bytes(type, inputs));
  const DTypeInfo& info = dtype_info(type);
  for (uint32_t r = 0; r < outputs; r++) {
    for (size_t i = 0; i < inputs / info.block; i++) {
      std::byte* p = row.data() + i * info.bytes;
      const float v = 0.05f * source.unit();
      const uint16_t half = type == DType::bf16 ? float_to_bf16(v) : float_to_half(v);
      for (size_t b = 0; info.block > 1 && b < info.bytes; b++) p[b] = std::byte(source.next() & 255);
      if (type == DType::f32) std::memcpy(p, &v, 4);
      if (type != DType::f32) std::memcpy(p, &half, 2);
      if (type == DType::q4_1) std::memcpy(p + 2, &half, 2);
    }
    k.pack_rows(m, r, 1, row.data());
  }
  return m;
}

struct Matrices {
  Buffer memory;
  std::vector<PackedMatrix> all;  // in the order of a step
  PackedMatrix head;
  size_t layer_bytes = 0, head_bytes = 0;
  double layer_macs = 0;
};

struct MatrixShape {
  uint32_t outputs, inputs;
};

Matrices make_matrices(const KernelTable& k, DType type, DType head_type, uint32_t layers,
                       const std::vector<MatrixShape>& shapes, MatrixShape head) {
  Matrices m;
  for (const MatrixShape& s : shapes) m.layer_bytes += layers * k.packed_bytes(type, s.outputs, s.inputs);
  m.head_bytes = k.packed_bytes(head_type, head.outputs, head.inputs);
  m.memory = Buffer(std::make_shared<MemoryAccount>(), m.layer_bytes + m.head_bytes, "weights", Pages::huge);
  std::byte* at = m.memory.data();
  for (uint32_t l = 0; l < layers; l++)
    for (const MatrixShape& s : shapes) {
      m.all.push_back(fill(k, type, s.outputs, s.inputs, at));
      at += k.packed_bytes(type, s.outputs, s.inputs);
      m.layer_macs += double(s.outputs) * s.inputs;
    }
  m.head = fill(k, head_type, head.outputs, head.inputs, at);
  return m;
}

// All matrices of a step of `rows` rows, the head for one row.
void bench_matrices(Bench& bench, const std::string& name, const Matrices& m,
                    std::initializer_list<uint32_t> row_counts) {
  const KernelTable& k = bench.kernels();
  for (uint32_t rows : row_counts) {
    const std::string case_name = name + " rows " + std::to_string(rows);
    if (!bench.wanted(case_name)) continue;
    uint32_t widest = 0, longest = m.head.inputs;
    for (const PackedMatrix& p : m.all)
      widest = std::max(widest, p.outputs), longest = std::max(longest, p.inputs);
    const std::vector<float> x = floats(size_t(rows) * longest);
    std::vector<float> out(size_t(rows) * widest), logits(m.head.outputs);
    std::vector<std::unique_ptr<Buffer>> memory;
    const auto operand = [&](uint32_t n, uint32_t width, DType type) {
      const uint32_t kinds = operand_kind(type);
      memory.push_back(std::make_unique<Buffer>(std::make_shared<MemoryAccount>(),
                                                k.operand_bytes(n, width, kinds), "operand"));
      const Operand result = {memory.back()->data(), n, width, kinds};
      k.pack_operand({x.data(), result}, {});
      return result;
    };
    std::vector<Operand> operands;
    for (const PackedMatrix& p : m.all) {
      const auto same = std::find_if(operands.begin(), operands.end(),
                                     [&](const Operand& o) { return o.width == p.inputs; });
      operands.push_back(same == operands.end() ? operand(rows, p.inputs, p.type) : *same);
    }
    const Operand last = operand(1, m.head.inputs, m.head.type);
    const double macs = rows * m.layer_macs + double(m.head.outputs) * m.head.inputs;
    const Peak peak = operand_kind(m.head.type) == kOperandInt8 ? int8_peak() : f32_peak();
    bench.run(
        case_name, {{{m.memory.data(), m.memory.size()}}, 2 * macs, peak},
        [&](Share share) {
          for (size_t i = 0; i < m.all.size(); i++)
            k.linear({{&m.all[i]}, {out.data()}, {m.all[i].outputs}, 1, false, operands[i]}, share);
          k.linear({{&m.head}, {logits.data()}, {m.head.outputs}, 1, false, last}, share);
        },
        [&](double s) {
          return text("%7.1f tok/s", rows / s) + text(", %5.1f GB/s", double(m.memory.size()) / s / 1e9) +
                 text(", %5.1f GMAC/s", macs / s / 1e9);
        });
  }
}

// One layer's attention of SmolLM2 (9 heads, 3 key/value heads of 64 dims): `rows` rows that end at `context`.
void bench_attention(Bench& bench, uint32_t rows, uint32_t context) {
  const KernelTable& k = bench.kernels();
  const KvGeometry geometry = {1, 3, 64, 16};
  const uint32_t pages = (context + 15) / 16, heads = 9;
  const size_t page_bytes = k.kv_page_bytes(geometry);
  const Buffer memory(std::make_shared<MemoryAccount>(), pages * page_bytes, "pages");
  std::vector<std::byte*> addresses;
  for (uint32_t i = 0; i < pages; i++) addresses.push_back(memory.data() + i * page_bytes);
  const CacheView view = {addresses.data(), &geometry};
  std::vector<AttentionRow> all;
  for (uint32_t p = 0; p < context; p++) all.push_back({&view, p});
  std::vector<float> q = floats(size_t(context) * heads * 64, 3), kv = floats(size_t(context) * 3 * 64, 3),
                     out(size_t(rows) * heads * 64);
  k.store(
      {all.data(), context, 0, heads, 3, 64, nullptr, nullptr, 0, 0, nullptr, q.data(), kv.data(), kv.data()},
      {});
  const uint32_t segments = (context - 1) / kKeySegment + 1;
  std::vector<std::unique_ptr<Buffer>> scratch;
  for (int i = 0; i < 64; i++)
    scratch.push_back(std::make_unique<Buffer>(std::make_shared<MemoryAccount>(),
                                               k.attention_scratch_bytes(3, 64), "scratch"));
  const auto name = "attention rows " + std::to_string(rows) + " context " + std::to_string(context);
  const double macs = 2.0 * rows * heads * 64 * context;
  bench.run(
      name, {{{memory.data(), memory.size()}}, 2 * macs, f32_peak()},
      [&](Share share) {
        const AttentionArgs args = {
            all.data() + context - rows, 0, heads, 3, 64, kAllKeys, 0.125f, q.data(), out.data(), nullptr,
            scratch[share.index]->data()};
        uint32_t unit = 0;
        for (uint32_t first = 0; first < rows; first += kMaxUnitRows)
          for (uint32_t h = 0; h < 3; h++)
            if (unit++ % share.count == share.index)
              k.attend(args, {first, std::min(kMaxUnitRows, rows - first), h, 0, segments, -1});
      },
      [&](double s) { return text("%6.1f GMAC/s", macs / s / 1e9); });
}

void bench_rows(Bench& bench, uint32_t rows) {
  const KernelTable& k = bench.kernels();
  const uint32_t width = 576, wide = 1536;
  const std::vector<float> x = floats(size_t(rows) * wide, 2), weight = floats(width);
  const Buffer memory(std::make_shared<MemoryAccount>(), k.operand_bytes(rows, wide, kOperandInt8),
                      "operand");
  const auto per_row = [rows](double s) { return text("%6.3f us a row", s * 1e6 / rows); };
  const std::string end = " rows " + std::to_string(rows);
  bench.run(
      "rms norm 576" + end, {},
      [&](Share share) {
        k.norm({NormKind::rms,
                1e-5f,
                {weight.data(), nullptr},
                x.data(),
                nullptr,
                {memory.data(), rows, width, kOperandInt8}},
               share);
      },
      per_row);
  for (const auto& [name, kind] :
       {std::pair{"silu 1536", Activation::silu_gated}, std::pair{"gelu erf 1536", Activation::gelu_erf},
        std::pair{"gelu tanh 1536", Activation::gelu_tanh}})
    bench.run(
        name + end, {},
        [&, kind = kind](Share share) {
          k.activate({kind, x.data(), x.data(), {memory.data(), rows, wide, kOperandInt8}}, share);
        },
        per_row);
}

void bench_logits(Bench& bench) {
  const KernelTable& k = bench.kernels();
  const std::vector<float> x = floats(49152, 20);
  std::vector<float> out(x.size());
  const auto none = [](double) { return std::string("of 49152"); };
  bench.run(
      "exp_row", {},
      [&](Share share) {
        if (share.index == 0) k.exp_row(x.data(), x.size(), 1, 1, out.data());
      },
      none);
  bench.run(
      "all_finite", {},
      [&](Share share) {
        if (share.index == 0 && !k.all_finite(x.data(), x.size())) std::abort();
      },
      none);
}

void print_json(const Options& options, const Bench& bench) {
  std::printf("{\"isa\": \"%s\", \"threads\": %u, \"results\": [", bench.kernels().name, options.threads);
  const char* separator = "";
  for (const Result& r : bench.results()) {
    std::printf(
        "%s\n  {\"name\": \"%s\", \"best_s\": %.9f, \"median_s\": %.9f, \"of_read\": %.3f, \"of_peak\": "
        "%.3f, "
        "\"bytes\": %.0f, \"operations\": %.0f, \"rate\": \"%s\"}",
        separator, r.name.c_str(), r.best, r.median, r.of_read, r.of_peak, r.bytes, r.operations,
        r.rate.c_str());
    separator = ",";
  }
  std::printf("\n]}\n");
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string arg = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (arg == "--json")
      o.json = true;
    else if (arg == "--cpu-time")
      cpu_time = true, o.threads = 1;
    else if (arg == "--threads")
      o.threads = uint32_t(std::clamp(std::atoi(value().c_str()), 1, 64));
    else if (arg == "--seconds")
      o.seconds = std::atof(value().c_str());
    else if (arg == "--only")
      o.only = value();
    else if (arg == "--isa") {
      const std::string name = value();
      for (CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512})
        if (cpu_kernels(isa) && name == cpu_kernels(isa)->name) o.isa = isa;
    } else {
      std::fprintf(
          stderr,
          "bench_kernels [--json] [--isa NAME] [--threads N | --cpu-time] [--seconds S] [--only TEXT]\n");
      std::exit(2);
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Bench bench(options);
  if (!options.json) std::printf("%s, %u threads\n", bench.kernels().name, options.threads);
  if (std::string("smollm2").find(options.only.substr(0, 7)) != std::string::npos) {
    const Matrices m =
        make_matrices(bench.kernels(), DType::q4_1, DType::q8_0, 30,
                      {{960, 576}, {576, 576}, {1536, 576}, {1536, 576}, {576, 1536}}, {49152, 576});
    bench_matrices(bench, "smollm2 q4_1 + q8_0", m, {1, 2, 4, 8, 16, 64, 256});
  }
  for (DType type : {DType::f32, DType::f16, DType::bf16}) {
    const std::string name = std::string("gpt2 ") + dtype_info(type).name;
    if (name.find(options.only.substr(0, name.size())) == std::string::npos) continue;
    const Matrices m = make_matrices(bench.kernels(), type, type, 4,
                                     {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}}, {50257, 768});
    bench_matrices(bench, name + " 4 layers", m, {1, 8, 256});
  }
  for (const auto& [rows, context] : {std::pair{1u, 128u}, {1u, 1900u}, {16u, 1900u}, {256u, 512u}})
    bench_attention(bench, rows, context);
  for (uint32_t rows : {1u, 256u}) bench_rows(bench, rows);
  bench_logits(bench);
  if (options.json) print_json(options, bench);
}
