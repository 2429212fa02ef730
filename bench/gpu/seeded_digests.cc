// Prints digests of logits, keys and values of seeded models (tests/support/seeded_model.h),
// computed by the CPU's kernels in the arithmetics float32 and bf16. device_step_bench compares a
// device with them.
//
//   seeded_digests FOLDER [MODEL] > digests.txt     FOLDER: model files go here, 1.5 GB
// Each line: model (for bf16 with the suffix -bf16), text, position, digest. Position -1 - N: keys
// and values of the whole text in layer N. Text -1: not a digest, but the element type of keys and
// values.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/gpu/seeded_cases.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

void PrintKv(const std::string& name, const SeededCase& one, const InvariantGemma::Kv& kv,
             int text) {
  for (const int layer : KvLayers(one.geometry)) {
    SeededKvDigest digest(one.geometry, KvDtypeBytes(kv.layout().dtype));
    const std::vector<const std::byte*> splits = kv.SplitsOf(layer);
    for (size_t split = 0; split < splits.size(); ++split) {
      digest.Add(splits[split], static_cast<int>(split), kv.length());
    }
    std::printf("%s %d -%d %016llx\n", name.c_str(), text, layer + 1,
                static_cast<unsigned long long>(digest.value()));
  }
}

void RunCase(const SeededCase& one, bool bf16, const std::string& folder) {
  const std::string name = DigestsName(one.geometry, bf16);
  const std::string dir = folder + "/" + one.geometry.name;
  std::filesystem::create_directories(dir);
  WriteSeededModel(one.geometry, dir);
  InvariantGemmaOptions options = {2, kSeededSplit, uint64_t{1} << 34};
  options.arithmetic = bf16 ? Arithmetic::kBFloat16 : Arithmetic::kFloat32;
  options.kv_dtype = std::nullopt;
  auto loaded = InvariantGemma::Load(dir, options);
  Check(loaded.status());
  const InvariantGemma& gemma = **loaded;
  std::filesystem::remove_all(dir);
  std::printf("%s %d 0 %s\n", name.c_str(), kKvDtypeText, KvDtypeName(gemma.kv_dtype()));
  const auto vocabulary = static_cast<size_t>(one.geometry.vocabulary);
  for (int text = 0; text < static_cast<int>(one.lengths.size()); ++text) {
    const std::vector<int32_t> tokens = SeededText(one, text);
    InvariantGemma::Kv kv = gemma.NewKv();
    std::vector<float> logits;
    const int want = WantedOf(text);
    Check(gemma.Step(&kv, tokens, want, &logits));
    for (int i = 0; i < want; ++i) {
      const uint64_t digest = DigestOfBytes(logits.data() + static_cast<size_t>(i) * vocabulary,
                                            vocabulary * sizeof(float));
      std::printf("%s %d %d %016llx\n", name.c_str(), text,
                  static_cast<int>(tokens.size()) - want + i,
                  static_cast<unsigned long long>(digest));
    }
    if (text == 0) PrintKv(name, one, kv, text);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: seeded_digests FOLDER [MODEL]\n");
    return 1;
  }
  for (const bool bf16 : {false, true}) {
    for (const hearth::SeededCase& one : hearth::SeededCases(bf16)) {
      if (argc == 2 || hearth::DigestsName(one.geometry, bf16) == argv[2]) {
        hearth::RunCase(one, bf16, argv[1]);
      }
    }
  }
  return 0;
}
