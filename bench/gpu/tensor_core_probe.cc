// Whether a device's tensor cores compute what FusedDot computes on a CPU, bit for bit, and if not,
// which candidate does.
//   tensor_core_probe --host                      checks FusedDot itself, also against digests of
//                                                 what a device computed; needs no device
//   tensor_core_probe --part PART [--json FILE] [--observed FILE]
//     mma, wgmma   single steps, 2^20 of each class of values
//     chains       sums of 640 to 10,240 inputs
//     integers     int8 with 32-bit sums
// Prints a table, then for each instruction a line of JSON as probes.cu does; FILE gets all
// figures, and the inputs and results of some steps (Observation). Ends with 1 if something
// differs, 2 if there is no device or the arguments are wrong.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/fused_dot.h"
#include "bench/gpu/fused_dot_check.h"
#include "bench/gpu/fused_rules.h"
#include "bench/gpu/tensor_core_cases.h"
#include "bench/gpu/tensor_core_device.h"

namespace hearth {
namespace {

constexpr int kTiles = (1 << 20) / kTileOutputs;  // of a class
constexpr int kChainInputs[] = {640, 1152, 2560, 10240}, kChainTiles = 2;
constexpr size_t kObservationsOfClass = 1024, kFirstDiffering = 6, kRulesShown = 6;
constexpr uint64_t kStopScoring = 6000;  // a third of all observations

// The results of two sources for the same outputs.
struct Comparison {
  uint64_t compared = 0, differing = 0;   // differing: other bits; NaNs of other bits do not count
  uint64_t zero_signs = 0;                // of those, +0 beside -0
  std::map<uint32_t, uint64_t> nans;      // bits of NaNs got, and how often
  std::map<int64_t, uint64_t> distances;  // got less expected in last places, -3 to 3, else +-99
  std::vector<size_t> first;              // outputs
};

int64_t Ordered(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const int64_t size = bits & 0x7fffffff;
  return bits >> 31 ? -size : size;
}

Comparison Compare(const std::vector<float>& got, const std::vector<float>& expected) {
  Comparison result;
  for (size_t i = 0; i < got.size(); ++i) {
    ++result.compared;
    if (std::isnan(got[i])) ++result.nans[BitsOfFloat(got[i])];
    if (SameResult(got[i], expected[i])) continue;
    ++result.differing;
    result.zero_signs += got[i] == 0 && expected[i] == 0;
    const int64_t distance = Ordered(got[i]) - Ordered(expected[i]);
    ++result.distances[std::abs(distance) <= 3 ? distance : distance < 0 ? -99 : 99];
    if (result.first.size() < kFirstDiffering) result.first.push_back(i);
  }
  return result;
}

// FNV-1a, to compare what two machines emulated.
std::string Digest(const std::vector<float>& values) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const float value : values) {
    digest = (digest ^ (std::isnan(value) ? 0x7fffffff : BitsOfFloat(value))) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(digest));
  return text;
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

std::string Quoted(const std::string& text) { return '"' + text + '"'; }

// The elements of a JSON array, one a line.
class JsonRows {
 public:
  void Add(const std::string& row) { text_ += (text_.empty() ? "\n  " : ",\n  ") + row; }
  std::string Array() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

// Everything a part found.
struct Findings {
  std::string device;
  JsonRows rows, rules;
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;  // differing, compared; by instruction
  uint64_t differing = 0;
  bool failed = false;
};

template <typename Map, typename Key>
std::string Counts(const Map& counts, Key key) {
  std::string text;
  for (const auto& [value, count] : counts) {
    text += (text.empty() ? "" : ", ") + Quoted(key(value)) + ": " + std::to_string(count);
  }
  return "{" + text + "}";
}

std::string FirstDiffering(const Operands& operands, const std::vector<float>& got,
                           const std::vector<float>& expected, const Comparison& comparison) {
  std::string text;
  const int shown = std::min(operands.inputs, kStepInputs);
  for (const size_t i : comparison.first) {
    text += (text.empty() ? "" : ", ") + ("{\"output\": " + std::to_string(i)) +
            ", \"a\": " + Quoted(Hex(operands.RowOfA(i), shown)) +
            ", \"b\": " + Quoted(Hex(operands.RowOfB(i), shown)) +
            ", \"c\": " + Quoted(Hex(operands.c[i])) + ", \"got\": " + Quoted(Hex(got[i])) +
            ", \"expected\": " + Quoted(Hex(expected[i])) + "}";
  }
  return "[" + text + "]";
}

void CountFor(const char* source, uint64_t differing, uint64_t compared, Findings* findings) {
  findings->differing += differing;
  findings->sums[source].first += differing;
  findings->sums[source].second += compared;
}

// One row of the table and of the JSON.
void AddRow(const Operands& operands, const char* source, const std::vector<float>& got,
            const std::vector<float>& expected, Findings* findings) {
  const Comparison comparison = Compare(got, expected);
  CountFor(source, comparison.differing, comparison.compared, findings);
  std::printf("%-22s %-32s %9llu of %llu differ\n", operands.name.c_str(), source,
              static_cast<unsigned long long>(comparison.differing),
              static_cast<unsigned long long>(comparison.compared));
  for (const auto& [bits, count] : comparison.nans) {
    if (bits == kStepNan) continue;
    std::printf("  NaN bits other than expected: %08x, %llu times\n", bits,
                static_cast<unsigned long long>(count));
  }
  findings->rows.Add(
      "{\"class\": " + Quoted(operands.name) + ", \"instruction\": " + Quoted(source) +
      ", \"compared\": " + std::to_string(comparison.compared) +
      ", \"differing\": " + std::to_string(comparison.differing) +
      ", \"zero_signs\": " + std::to_string(comparison.zero_signs) + ", \"last_places\": " +
      Counts(comparison.distances, [](int64_t value) { return std::to_string(value); }) +
      ", \"nans\": " +
      Counts(comparison.nans, [](uint32_t bits) { return Hex(FloatOfBits(bits)); }) +
      ", \"digest\": " + Quoted(Digest(got)) +
      ", \"expected_digest\": " + Quoted(Digest(expected)) +
      ", \"first\": " + FirstDiffering(operands, got, expected, comparison) + "}");
}

void AddError(const std::string& name, const char* source, const std::string& error,
              Findings* findings) {
  findings->failed = true;
  std::printf("%-22s %-32s FAILED: %s\n", name.c_str(), source, error.c_str());
  findings->rows.Add("{\"class\": " + Quoted(name) + ", \"instruction\": " + Quoted(source) +
                     ", \"error\": " + Quoted(error) + "}");
}

std::vector<float> Emulated(const Operands& operands) {
  std::vector<float> expected(operands.outputs());
  const int rows = operands.tiles * kTileRows;
  InThreads(rows, [&](int row) {
    const size_t first = static_cast<size_t>(row) * kTileColumns;
    for (size_t i = first; i < first + kTileColumns; ++i) {
      expected[i] =
          FusedChain(operands.RowOfA(i), operands.RowOfB(i), operands.c[i], operands.inputs);
    }
  });
  return expected;
}

std::string RunOperands(Instruction instruction, const Operands& operands, DescriptorOrder order,
                        bool without_c, std::vector<float>* d) {
  d->assign(operands.outputs(), 0);
  return RunOnDevice(instruction,
                     {operands.a.data(), operands.b.data(), operands.c.data(), d->data(),
                      operands.tiles, operands.inputs * 2, without_c, order});
}

// The order of a descriptor's distances with which products of small integers are right.
DescriptorOrder FindOrder(Findings* findings) {
  Operands operands{"small integers", 1, 64, {}, {}, {}};
  CaseRandom random(17);
  const auto small = [&](int) { return RoundToBf16(static_cast<float>(random.Between(-8, 8))); };
  for (int i = 0; i < kTileRows * 64; ++i) operands.a.push_back(small(i));
  for (int i = 0; i < kTileColumns * 64; ++i) operands.b.push_back(small(i));
  for (int i = 0; i < kTileOutputs; ++i) {
    operands.c.push_back(static_cast<float>(random.Between(-999, 999)));
  }
  const std::vector<float> expected = Emulated(operands);  // exact: all sums are below 2^13
  for (const DescriptorOrder order : {DescriptorOrder::kInputsFirst, DescriptorOrder::kRowsFirst}) {
    std::vector<float> got;
    const std::string error = RunOperands(Instruction::kWgmma64, operands, order, false, &got);
    const char* source = order == DescriptorOrder::kInputsFirst ? "descriptor: inputs, rows"
                                                                : "descriptor: rows, inputs";
    if (!error.empty()) {
      AddError(operands.name, source, error, findings);
      continue;
    }
    const Comparison comparison = Compare(got, expected);
    std::printf("%-22s %-32s %9llu of %llu differ (one order must have 0)\n", operands.name.c_str(),
                source, static_cast<unsigned long long>(comparison.differing),
                static_cast<unsigned long long>(comparison.compared));
    findings->rows.Add("{\"class\": \"small integers\", \"instruction\": " + Quoted(source) +
                       ", \"compared\": " + std::to_string(comparison.compared) +
                       ", \"differing\": " + std::to_string(comparison.differing) + "}");
    if (comparison.differing == 0) return order;
  }
  return DescriptorOrder::kInputsFirst;
}

std::vector<Observation> Observe(const Operands& operands, const std::vector<float>& d) {
  std::vector<Observation> observations(kObservationsOfClass);
  for (size_t n = 0; n < kObservationsOfClass; ++n) {
    const size_t i = n * 104729 % operands.outputs();
    std::copy_n(operands.RowOfA(i), kStepInputs, observations[n].a);
    std::copy_n(operands.RowOfB(i), kStepInputs, observations[n].b);
    observations[n].c = operands.c[i];
    observations[n].d = d[i];
  }
  return observations;
}

void AddRules(const char* source, const std::vector<std::vector<Observation>>& observations,
              Findings* findings) {
  const std::vector<RuleScore> scores = ScoreRules(observations, kStopScoring);
  const auto fitting = std::count_if(scores.begin(), scores.end(),
                                     [](const RuleScore& score) { return score.differing == 0; });
  std::printf("rules for %s: %ld of %zu agree with all %zu observations\n", source,
              static_cast<long>(fitting), scores.size(),
              observations.size() * kObservationsOfClass);
  for (size_t i = 0; i < kRulesShown; ++i) {
    std::string by_class;
    for (const uint64_t differing : scores[i].by_class) {
      by_class += (by_class.empty() ? "" : ", ") + std::to_string(differing);
    }
    const std::string name = NameOf(scores[i].rule);
    std::printf("  %6llu differ: %s\n", static_cast<unsigned long long>(scores[i].differing),
                name.c_str());
    findings->rules.Add("{\"instruction\": " + Quoted(source) + ", \"rule\": " + Quoted(name) +
                        ", \"differing\": " + std::to_string(scores[i].differing) +
                        ", \"by_class\": [" + by_class + "]}");
  }
}

using Observations = std::vector<std::vector<Observation>>;  // of each class

void WriteObservations(const Observations& observations, const std::string& path) {
  std::FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return;
  for (const std::vector<Observation>& of_class : observations) {
    std::fwrite(of_class.data(), sizeof(Observation), of_class.size(), file);
  }
  std::fclose(file);
}

// Steps of each class by each instruction beside FusedDot; the first instruction is also compared
// with the others, and rules are searched for it and for those that differ from it.
void RunSteps(const std::vector<Instruction>& instructions, DescriptorOrder order,
              const std::string& observed, Findings* findings) {
  std::vector<Observations> seen(instructions.size());
  std::vector<uint64_t> from_first(instructions.size(), 0);
  for (size_t i = 0; i < StepClasses().size(); ++i) {
    const Operands operands = StepOperands(i, kTiles);
    const std::vector<float> expected = Emulated(operands);
    std::vector<float> first;
    for (size_t n = 0; n < instructions.size(); ++n) {
      const char* source = NameOf(instructions[n]);
      std::vector<float> got;
      const std::string error = RunOperands(instructions[n], operands, order, false, &got);
      if (!error.empty()) {
        AddError(operands.name, source, error, findings);
        continue;
      }
      AddRow(operands, source, got, expected, findings);
      seen[n].push_back(Observe(operands, got));
      if (first.empty()) first = got;
      from_first[n] += Compare(got, first).differing;
    }
  }
  const auto most = std::max_element(from_first.begin(), from_first.end()) - from_first.begin();
  WriteObservations(seen[static_cast<size_t>(most)], observed);  // the first, if all agree with it
  for (size_t n = 0; n < instructions.size(); ++n) {
    std::printf("%-55s %9llu differ from %s\n", NameOf(instructions[n]),
                static_cast<unsigned long long>(from_first[n]), NameOf(instructions[0]));
    if (!seen[n].empty() && (n == 0 || from_first[n] > 0)) {
      AddRules(NameOf(instructions[n]), seen[n], findings);
    }
  }
}

void RunChains(DescriptorOrder order, Findings* findings) {
  struct Source {
    Instruction instruction;
    bool without_c;
    const char* name;
  };
  const Source sources[] = {
      {Instruction::kMma, false, NameOf(Instruction::kMma)},
      {Instruction::kMmaSwapped, false, NameOf(Instruction::kMmaSwapped)},
      {Instruction::kWgmma8, false, NameOf(Instruction::kWgmma8)},
      {Instruction::kWgmma64, false, NameOf(Instruction::kWgmma64)},
      {Instruction::kWgmma256, false, NameOf(Instruction::kWgmma256)},
      {Instruction::kWgmma256, true, "wgmma m64n256k16, scale-d = 0"},
      {Instruction::kWgmma64Registers, true, "the same of A in registers, n64"},
  };
  for (const int inputs : kChainInputs) {
    const Operands operands = ChainOperands(inputs, kChainTiles);
    const std::vector<float> expected = Emulated(operands);
    std::vector<float> first;
    for (const Source& source : sources) {
      std::vector<float> got;
      const std::string error =
          RunOperands(source.instruction, operands, order, source.without_c, &got);
      if (!error.empty()) {
        AddError(operands.name, source.name, error, findings);
        continue;
      }
      AddRow(operands, source.name, got, expected, findings);
      if (first.empty()) first = got;
      const uint64_t others = Compare(got, first).differing;
      if (others > 0) {
        std::printf("  of these, %llu differ from the first instruction\n",
                    static_cast<unsigned long long>(others));
      }
    }
  }
}

// int8: bytes of [rows][bytes], 32-bit sums. With `magic` a sum begins at the bits of 1.5 * 2^23,
// so that it reads as a float32 from which one subtraction leaves the integer.
struct IntegerCase {
  const char* name;
  int bytes, tiles;
  bool extremes, magic, wraps;
};

constexpr uint32_t kMagic = 0x4b400000;

// The bits that each output must have, and the operands, in the places of floats.
std::vector<float> MakeIntegers(const IntegerCase& of, Operands* operands) {
  *operands = {of.name, of.tiles, of.bytes / 2, {}, {}, {}};  // two bytes to a 16-bit value
  CaseRandom random(of.bytes * 8 + of.extremes * 4 + of.magic * 2 + of.wraps);
  static constexpr int kExtremes[] = {-128, 127, -127, 0};
  const auto fill = [&](std::vector<uint16_t>* values, int rows) {
    std::vector<signed char> bytes(static_cast<size_t>(of.tiles * rows) *
                                   static_cast<size_t>(of.bytes));
    for (signed char& byte : bytes) {
      byte = static_cast<signed char>(of.extremes ? kExtremes[random.Below(4)]
                                                  : random.Between(-128, 127));
    }
    values->resize(bytes.size() / 2);
    std::memcpy(values->data(), bytes.data(), bytes.size());
  };
  fill(&operands->a, kTileRows);
  fill(&operands->b, kTileColumns);
  operands->c.resize(operands->outputs());
  for (float& c : operands->c) {
    const uint32_t any = static_cast<uint32_t>(random.Next());
    const int value = of.wraps ? (any & 1 ? 0x7fffffff : -0x7fffffff) : static_cast<int>(any >> 8);
    c = FloatOfBits(of.magic ? kMagic : static_cast<uint32_t>(value));
  }
  std::vector<float> expected(operands->outputs());
  InThreads(of.tiles * kTileRows, [&](int row) {
    for (int column = 0; column < kTileColumns; ++column) {
      const size_t i = static_cast<size_t>(row) * kTileColumns + static_cast<size_t>(column);
      const auto* a = reinterpret_cast<const signed char*>(operands->RowOfA(i));
      const auto* b = reinterpret_cast<const signed char*>(operands->RowOfB(i));
      int sum = 0;
      for (int k = 0; k < of.bytes; ++k) sum += a[k] * b[k];
      const uint32_t total = BitsOfFloat(operands->c[i]) + static_cast<uint32_t>(sum);
      const float as_float = static_cast<float>(sum);
      expected[i] = of.magic ? as_float : FloatOfBits(total);
    }
  });
  return expected;
}

// Compared as integers: a float of the same bits may be a NaN.
uint64_t DifferingBits(const std::vector<float>& got, const std::vector<float>& expected) {
  uint64_t differing = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    differing += BitsOfFloat(got[i]) != BitsOfFloat(expected[i]);
  }
  return differing;
}

void RunIntegers(DescriptorOrder order, Findings* findings) {
  const IntegerCase cases[] = {
      {"32 bytes", 32, kTiles, false, false, false},
      {"32 extreme bytes", 32, kTiles, true, false, false},
      {"32 bytes, sum wraps", 32, kTiles, true, false, true},
      {"1.5 * 2^23, 32 bytes", 32, kTiles, false, true, false},
      {"1.5 * 2^23, extreme", 32, kTiles, true, true, false},
      {"2,560 bytes", 2560, 2, false, false, false},
  };
  for (const IntegerCase& of : cases) {
    Operands operands;
    const std::vector<float> expected = MakeIntegers(of, &operands);
    for (const Instruction instruction : {Instruction::kMmaS8, Instruction::kWgmmaS8}) {
      std::vector<float> got;
      const std::string error = RunOperands(instruction, operands, order, false, &got);
      if (!error.empty()) {
        AddError(of.name, NameOf(instruction), error, findings);
        continue;
      }
      if (of.magic) {
        for (float& value : got) value = value - FloatOfBits(kMagic) + 0.0f;
      }
      const uint64_t differing = DifferingBits(got, expected);
      CountFor(NameOf(instruction), differing, got.size(), findings);
      std::printf("%-22s %-32s %9llu of %zu differ\n", of.name, NameOf(instruction),
                  static_cast<unsigned long long>(differing), got.size());
      findings->rows.Add("{\"class\": " + Quoted(of.name) +
                         ", \"instruction\": " + Quoted(NameOf(instruction)) +
                         ", \"compared\": " + std::to_string(got.size()) +
                         ", \"differing\": " + std::to_string(differing) + "}");
    }
  }
}

bool WriteJson(const std::string& path, const std::string& part, const Findings& findings) {
  if (path.empty()) return true;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  std::fprintf(file,
               "{\"part\": \"%s\", \"device\": \"%s\", \"differing\": %llu, \"rows\": %s, "
               "\"rules\": %s}\n",
               part.c_str(), findings.device.c_str(),
               static_cast<unsigned long long>(findings.differing), findings.rows.Array().c_str(),
               findings.rules.Array().c_str());
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
  const DescriptorOrder order =
      part == "mma" ? DescriptorOrder::kInputsFirst : FindOrder(&findings);
  if (part == "mma") {
    RunSteps({Instruction::kMma, Instruction::kMmaSwapped}, order, observed, &findings);
  } else if (part == "wgmma") {
    RunSteps(
        {Instruction::kMma, Instruction::kWgmma8, Instruction::kWgmma64, Instruction::kWgmma256,
         Instruction::kWgmma8Registers, Instruction::kWgmma64Registers},
        order, observed, &findings);
  } else if (part == "chains") {
    RunChains(order, &findings);
  } else {
    RunIntegers(order, &findings);
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

struct Measured {
  const char* name;
  const char* digest;
};
// Of the outputs of mma.sync and of wgmma on an NVIDIA H200, 2026-11-28: all had the same bits.
constexpr Measured kMeasured[] = {
    {"normal", "1882bd8ed490b787"},
    {"model", "20e7d01fd9f5a2ec"},
    {"wide exponents", "4f1df51b564bd9f6"},
    {"whole range", "c1d92baf0820385a"},
    {"bits next to the cut", "ec239e87fc5249f5"},
    {"pairs of bits", "83795ae5ab2a8452"},
    {"sum much larger", "4d04df2f81f4b7eb"},
    {"sum much smaller", "dda4e9333e23d61b"},
    {"sum cancels", "d79440a134a22325"},
    {"products cancel", "0580f81fd9d6492c"},
    {"subnormal inputs", "f404a58bb59ab857"},
    {"subnormal results", "3aac7f5ba33b9314"},
    {"totals below 2^-149", "ac181c65aebab39b"},
    {"zeros", "d62946668ef84a51"},
    {"zeros times large", "62a68c2c75a77023"},
    {"overflow", "4592a4ef4651f62f"},
    {"large products cancel", "da08db87f9b7e843"},
    {"infinities and NaNs", "258c890411aaaa41"},
    {"K 640", "e12cc445dca5b55c"},
    {"K 1152", "553a3387a452f50f"},
    {"K 2560", "75611c8b83f977d5"},
    {"K 10240", "49baafcd800632ef"},
};

// Prints digests of what this machine emulates. Returns whether those that were measured agree.
bool CheckDigests() {
  uint64_t compared = 0, differing = 0;
  const auto check = [&](const Operands& operands) {
    const std::string digest = Digest(Emulated(operands));
    std::printf("digest %-22s %s\n", operands.name.c_str(), digest.c_str());
    for (const Measured& measured : kMeasured) {
      if (operands.name != measured.name) continue;
      ++compared;
      differing += digest != measured.digest;
      if (digest != measured.digest) std::printf("  measured: %s\n", measured.digest);
    }
  };
  for (size_t i = 0; i < StepClasses().size(); ++i) check(StepOperands(i, kTiles));
  for (const int inputs : kChainInputs) check(ChainOperands(inputs, kChainTiles));
  return ReportCheck("digests of what an NVIDIA H200 computed", compared, differing) &&
         compared == std::size(kMeasured);
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what is printed before a time limit counts
  std::string part, json, observed;
  bool host = false, known = true;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    std::string* value = flag == "--part"       ? &part
                         : flag == "--json"     ? &json
                         : flag == "--observed" ? &observed
                                                : nullptr;
    if (flag == "--host") {
      host = true;
    } else if (value != nullptr && i + 1 < argc) {
      *value = argv[++i];
    } else {
      known = false;
    }
  }
  const bool is_part = part == "mma" || part == "wgmma" || part == "chains" || part == "integers";
  if (!known || host == is_part || (host && !part.empty())) {
    std::fprintf(stderr,
                 "usage: tensor_core_probe --host | --part mma|wgmma|chains|integers "
                 "[--json FILE] [--observed FILE]\n");
    return 2;
  }
  if (!host) return RunPart(part, json, observed);
  const bool as_measured = CheckDigests();
  return CheckFusedDot() == 0 && as_measured ? 0 : 1;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
