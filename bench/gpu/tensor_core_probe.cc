// Compares a device's tensor cores with FusedDot on the CPU, bit for bit.
//   tensor_core_probe --host     checks FusedDot by other arithmetics and by digests of what a
//                                device computed; needs no device
//   tensor_core_probe --part PART [--json FILE] [--observed FILE]
//     mma, wgmma   single steps, 2^20 of each class of values
//     chains       sums of 640 to 10,240 inputs
//     integers     int8 with 32-bit sums
// Prints a table, with the first differing cases in hex, then a line of JSON for each instruction
// as probes.cu does. --json: writes all figures. --observed: writes inputs and results of some
// steps (Observation). Exits with 1 if something differs, 2 if there is no device or the arguments
// are wrong.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/fused_dot_check.h"
#include "bench/gpu/tensor_core_cases.h"
#include "bench/gpu/tensor_core_device.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

constexpr int kTiles = kMeasuredTiles;  // number of tiles for each class of values
constexpr int kChainInputs[] = {640, 1152, 2560, 10240}, kChainTiles = 2;
constexpr size_t kObservationsOfClass = 1024, kDifferingShown = 6;

// Inputs of tiles, and the expected outputs.
struct Case {
  Operands operands;
  std::vector<float> expected;
  bool integers = false;  // the floats hold the bits of 32-bit integers
};

struct Source {
  Instruction instruction;
  bool without_c = false;
  const char* name = NameOf(instruction);
};

// One output of one step, with its inputs, as a device computed it.
struct Observation {
  uint16_t a[kStepInputs], b[kStepInputs];
  float c, d;
};

// Results of one part of the probe, such as wgmma.
struct Findings {
  std::string device, rows;  // rows: JSON objects, one per measurement
  // for each source of results: numbers of outputs that differ and that were compared
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;
  uint64_t differing = 0;
  bool failed = false;
};

// Returns the indices of the outputs that differ from the expected outputs.
std::vector<size_t> Differing(const std::vector<float>& got, const std::vector<float>& expected,
                              bool integers) {
  std::vector<size_t> outputs;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = integers ? BitsOfFloat(got[i]) == BitsOfFloat(expected[i])
                               : SameResult(got[i], expected[i]);
    if (!same) outputs.push_back(i);
  }
  return outputs;
}

std::string Hex(const uint16_t* values, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    char four[6];
    std::snprintf(four, sizeof(four), "%s%04x", i == 0 ? "" : " ", values[i]);
    text += four;
  }
  return text;
}

std::string Hex(float value) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", BitsOfFloat(value));
  return text;
}

// Returns `"name": "text"`, a member of a JSON object.
std::string Member(const char* name, const std::string& text) {
  return '"' + std::string(name) + "\": \"" + text + '"';
}

void AddJson(const std::string& members, Findings* findings) {
  findings->rows += (findings->rows.empty() ? "\n  {" : ",\n  {") + members + "}";
}

// Adds a row to the printed table and to the JSON. `more`: additional members of the JSON object.
void AddRow(const std::string& name, const char* source, size_t differing, size_t compared,
            const std::string& more, Findings* findings) {
  std::printf("%-22s %-32s %9zu of %zu differ\n", name.c_str(), source, differing, compared);
  AddJson(Member("class", name) + ", " + Member("instruction", source) + ", \"compared\": " +
              std::to_string(compared) + ", \"differing\": " + std::to_string(differing) + more,
          findings);
}

void AddComparison(const Case& of, const char* source, const std::vector<float>& got,
                   Findings* findings) {
  const Operands& operands = of.operands;
  const std::vector<size_t> differing = Differing(got, of.expected, of.integers);
  findings->differing += differing.size();
  findings->sums[source].first += differing.size();
  findings->sums[source].second += got.size();
  std::string first;
  const int shown = std::min(operands.inputs, kStepInputs);
  for (size_t n = 0; n < std::min(differing.size(), kDifferingShown); ++n) {
    const size_t i = differing[n];
    first += (n == 0 ? "\n    {" : ",\n    {") + ("\"output\": " + std::to_string(i)) + ", " +
             Member("a", Hex(operands.RowOfA(i), shown)) + ", " +
             Member("b", Hex(operands.RowOfB(i), shown)) + ", " + Member("c", Hex(operands.c[i])) +
             ", " + Member("got", Hex(got[i])) + ", " + Member("expected", Hex(of.expected[i])) +
             "}";
  }
  AddRow(operands.name, source, differing.size(), got.size(),
         ", " + Member("digest", Digest(got)) + ", \"first\": [" + first + "]", findings);
  if (!first.empty()) std::printf("  the first:%s\n", first.c_str());
  std::set<uint32_t> nans;
  for (const float value : got) {
    if (std::isnan(value) && !of.integers) nans.insert(BitsOfFloat(value));
  }
  nans.erase(kStepNan);
  for (const uint32_t nan : nans) std::printf("  a NaN with other bits: %08x\n", nan);
}

Case FusedCase(Operands operands) {
  std::vector<float> expected(operands.outputs());
  InThreads(operands.tiles * kTileRows, [&](int row) {
    const size_t first = static_cast<size_t>(row) * kTileColumns;
    for (size_t i = first; i < first + kTileColumns; ++i) {
      expected[i] =
          FusedChain(operands.RowOfA(i), operands.RowOfB(i), operands.c[i], operands.inputs);
    }
  });
  return {std::move(operands), std::move(expected)};
}

Case StepCase(size_t i) { return FusedCase(StepOperands(i, kTiles)); }
Case ChainCase(size_t i) { return FusedCase(ChainOperands(kChainInputs[i], kChainTiles)); }

// A test case of the int8 instructions, with 32-bit sums.
struct IntegerCase {
  const char* name;
  int bytes, tiles;
  bool extremes, magic, wraps;  // magic: the sums begin at the bits of 1.5 * 2^23 as float32
};
constexpr IntegerCase kIntegerCases[] = {
    {"32 bytes", 32, kTiles, false, false, false},
    {"32 extreme bytes", 32, kTiles, true, false, false},
    {"32 bytes, sum wraps", 32, kTiles, true, false, true},
    {"1.5 * 2^23, 32 bytes", 32, kTiles, false, true, false},
    {"1.5 * 2^23, extreme", 32, kTiles, true, true, false},
    {"2,560 bytes", 2560, 2, false, false, false},
};

Case MakeIntegers(size_t index) {
  const IntegerCase& of = kIntegerCases[index];
  // each 16-bit value holds two bytes
  Operands operands = NewOperands(of.name, of.tiles, of.bytes / 2);
  CaseRandom random(of.bytes * 8 + of.extremes * 4 + of.magic * 2 + of.wraps);
  static constexpr int kExtremes[] = {-128, 127, -127, 0};
  for (std::vector<uint16_t>* values : {&operands.a, &operands.b}) {
    auto* bytes = reinterpret_cast<signed char*>(values->data());
    for (size_t i = 0; i < 2 * values->size(); ++i) {
      bytes[i] = static_cast<signed char>(of.extremes ? kExtremes[random.Below(4)]
                                                      : random.Between(-128, 127));
    }
  }
  for (float& c : operands.c) {
    const uint32_t any = static_cast<uint32_t>(random.Next());
    const int value = of.wraps ? (any & 1 ? 0x7fffffff : -0x7fffffff) : static_cast<int>(any >> 8);
    c = FloatOfBits(of.magic ? 0x4b400000 : static_cast<uint32_t>(value));
  }
  std::vector<float> expected(operands.outputs());
  InThreads(of.tiles * kTileRows, [&](int row) {
    const size_t first = static_cast<size_t>(row) * kTileColumns;
    for (size_t i = first; i < first + kTileColumns; ++i) {
      const auto* a = reinterpret_cast<const signed char*>(operands.RowOfA(i));
      const auto* b = reinterpret_cast<const signed char*>(operands.RowOfB(i));
      int sum = 0;
      for (int k = 0; k < of.bytes; ++k) sum += a[k] * b[k];
      expected[i] = FloatOfBits(BitsOfFloat(operands.c[i]) + static_cast<uint32_t>(sum));
    }
  });
  return {std::move(operands), std::move(expected), true};
}

// Computes the outputs on the device. If the device fails, adds the error to `findings` and returns
// an empty vector.
std::vector<float> Run(const Source& source, const Operands& operands, DescriptorOrder order,
                       Findings* findings) {
  std::vector<float> d(operands.outputs());
  const std::string error = RunOnDevice(
      source.instruction, {operands.a.data(), operands.b.data(), operands.c.data(), d.data(),
                           operands.tiles, operands.inputs * 2, source.without_c, order});
  if (error.empty()) return d;
  findings->failed = true;
  std::printf("%-22s %-32s FAILED: %s\n", operands.name.c_str(), source.name, error.c_str());
  AddJson(Member("class", operands.name) + ", " + Member("instruction", source.name) + ", " +
              Member("error", error),
          findings);
  return {};
}

// Returns the order of distances in a wgmma descriptor with which small integers are multiplied
// correctly.
DescriptorOrder FindOrder(Findings* findings) {
  Operands operands = NewOperands("small integers", 1, 64);
  CaseRandom random(17);
  const auto draw = [&](int most) { return static_cast<float>(random.Between(-most, most)); };
  for (uint16_t& value : operands.a) value = RoundToBf16(draw(8));
  for (uint16_t& value : operands.b) value = RoundToBf16(draw(8));
  for (float& value : operands.c) value = draw(999);
  // float32 is exact, because all sums are below 2^13
  const Case exact = FusedCase(std::move(operands));
  std::printf("One order of a descriptor's distances must have 0 differing:\n");
  for (const DescriptorOrder order : {DescriptorOrder::kInputsFirst, DescriptorOrder::kRowsFirst}) {
    const Source source = {Instruction::kWgmma64, false,
                           order == DescriptorOrder::kInputsFirst ? "descriptor: inputs, rows"
                                                                  : "descriptor: rows, inputs"};
    const std::vector<float> got = Run(source, exact.operands, order, findings);
    if (got.empty()) continue;
    const size_t differing = Differing(got, exact.expected, false).size();
    AddRow(exact.operands.name, source.name, differing, got.size(), "", findings);
    if (differing == 0) return order;
  }
  return DescriptorOrder::kInputsFirst;
}

void AddObservations(const Operands& operands, const std::vector<float>& d,
                     std::vector<Observation>* observations) {
  for (size_t n = 0; n < kObservationsOfClass; ++n) {
    const size_t i = n * 104729 % operands.outputs();
    Observation& one = observations->emplace_back();
    std::copy_n(operands.RowOfA(i), kStepInputs, one.a);
    std::copy_n(operands.RowOfB(i), kStepInputs, one.b);
    one.c = operands.c[i];
    one.d = d[i];
  }
}

void WriteObservations(const std::vector<Observation>& observations, const std::string& path) {
  std::FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return;
  std::fwrite(observations.data(), sizeof(Observation), observations.size(), file);
  std::fclose(file);
}

// Compares the outputs of each source with the expected outputs of make(0) to make(count - 1), and
// with the outputs of the first source. Writes observations of the source that differs most from
// the first; if all agree, of the first.
void RunCases(const std::vector<Source>& sources, size_t count, Case (*make)(size_t),
              DescriptorOrder order, const std::string& observed, Findings* findings) {
  std::vector<std::vector<Observation>> seen(sources.size());
  std::vector<size_t> from_first(sources.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    const Case of = make(i);
    std::vector<float> first;
    for (size_t n = 0; n < sources.size(); ++n) {
      const std::vector<float> got = Run(sources[n], of.operands, order, findings);
      if (got.empty()) continue;
      AddComparison(of, sources[n].name, got, findings);
      if (!observed.empty()) AddObservations(of.operands, got, &seen[n]);
      if (first.empty()) first = got;
      from_first[n] += Differing(got, first, of.integers).size();
    }
  }
  for (size_t n = 0; n < sources.size(); ++n) {
    std::printf("%-55s %9zu differ from %s\n", sources[n].name, from_first[n], sources[0].name);
  }
  const auto most = std::max_element(from_first.begin(), from_first.end()) - from_first.begin();
  WriteObservations(seen[static_cast<size_t>(most)], observed);
}

bool WriteJson(const std::string& path, const std::string& part, const Findings& findings) {
  if (path.empty()) return true;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file,
               "{\"part\": \"%s\", \"device\": \"%s\", \"differing\": %llu, \"rows\": [%s]}\n",
               part.c_str(), findings.device.c_str(),
               static_cast<unsigned long long>(findings.differing), findings.rows.c_str());
  return std::fclose(file) == 0;
}

int RunPart(const std::string& part, const std::string& json, const std::string& observed) {
  Findings findings;
  const std::string error = OpenDevice(&findings.device);
  if (!error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 2;
  }
  std::printf("%s: %s\n", part.c_str(), findings.device.c_str());
  using I = Instruction;
  const size_t classes = StepClasses().size();
  const DescriptorOrder order =
      part == "mma" ? DescriptorOrder::kInputsFirst : FindOrder(&findings);
  if (part == "mma") {
    RunCases({{I::kMma}, {I::kMmaSwapped}}, classes, StepCase, order, observed, &findings);
  } else if (part == "wgmma") {
    RunCases({{I::kMma},
              {I::kWgmma8},
              {I::kWgmma64},
              {I::kWgmma256},
              {I::kWgmma8Registers},
              {I::kWgmma64Registers}},
             classes, StepCase, order, observed, &findings);
  } else if (part == "chains") {
    RunCases({{I::kMma},
              {I::kMmaSwapped},
              {I::kWgmma8},
              {I::kWgmma64},
              {I::kWgmma256},
              {I::kWgmma256, true, "wgmma m64n256k16, scale-d = 0"},
              {I::kWgmma64Registers, true, "the same of A in registers, n64"}},
             std::size(kChainInputs), ChainCase, order, "", &findings);
  } else {
    RunCases({{I::kMmaS8}, {I::kWgmmaS8}}, std::size(kIntegerCases), MakeIntegers, order, "",
             &findings);
  }
  for (const auto& [source, counts] : findings.sums) {
    std::printf("{\"row\": \"%s, %s: differing\", \"unit\": \"of %llu\", \"values\": [%llu]}\n",
                part.c_str(), source.c_str(), static_cast<unsigned long long>(counts.second),
                static_cast<unsigned long long>(counts.first));
  }
  if (!WriteJson(json, part, findings)) {
    std::fprintf(stderr, "cannot write %s\n", json.c_str());
    return 1;
  }
  return findings.differing > 0 || findings.failed ? 1 : 0;
}

// Prints the digest of each class of values as FusedDot computes it on this machine. Returns
// whether all digests equal the measured digests.
bool CheckDigests() {
  uint64_t compared = 0, differing = 0;
  const auto check = [&](const Case& of) {
    const std::string digest = Digest(of.expected);
    std::printf("digest %-22s %s\n", of.operands.name.c_str(), digest.c_str());
    const std::string measured = MeasuredDigest(of.operands.name);
    if (measured.empty()) return;
    ++compared;
    differing += digest != measured;
    if (digest != measured) std::printf("  measured: %s\n", measured.c_str());
  };
  for (size_t i = 0; i < StepClasses().size(); ++i) check(StepCase(i));
  for (size_t i = 0; i < std::size(kChainInputs); ++i) check(ChainCase(i));
  return ReportCheck("digests of what an NVIDIA H200 computed", compared, differing) &&
         compared == kMeasuredDigests;
}

int Main(int argc, char** argv) {
  // line buffering: the output is kept if a time limit ends the program
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc == 2 && std::strcmp(argv[1], "--host") == 0) {
    const bool as_measured = CheckDigests();
    return CheckFusedDot() == 0 && as_measured ? 0 : 1;
  }
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  const std::string part = flags["--part"], json = flags["--json"], observed = flags["--observed"];
  const bool is_part = part == "mma" || part == "wgmma" || part == "chains" || part == "integers";
  if (!is_part || flags.size() != 3 || argc % 2 == 0) {
    std::fprintf(stderr,
                 "usage: tensor_core_probe --host | --part mma|wgmma|chains|integers "
                 "[--json FILE] [--observed FILE]\n");
    return 2;
  }
  return RunPart(part, json, observed);
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
