// The command diff: prints the differences between two snapshot files, without a running server.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/snapshot_format.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/mapped_file.h"

namespace hearth {
namespace {

constexpr char kDiffExamples[] = R"(  hearthctl diff cold.snapshot warm.snapshot
  hearthctl diff a.snapshot b.snapshot --json
Compares the model's fields, tokens, cuts, and every slice that both files have. Exit code 1 if they
differ, or if a file is missing or damaged.
)";

struct DiffFlags {
  std::string left, right;
  bool json = false;
};

// Returns the header of a snapshot file. Verifies the digests of the whole file first.
absl::StatusOr<SnapshotHeader> ReadHeader(const std::string& path) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::Status status = VerifySnapshotFile((*file)->bytes());
  if (!status.ok()) return About(path, status);
  return ParseSnapshotHeader((*file)->bytes());
}

// Prints the differences and counts them.
class Report {
 public:
  Report(bool json, Console& console) : json_(json), console_(console) {}

  void Add(const char* part, const std::string& name, Json left, Json right) {
    ++differences_;
    if (json_) {
      PrintJson({{"part", part}, {"name", name}, {"a", left}, {"b", right}}, console_);
      return;
    }
    console_.out << part << " " << name << ": " << JsonLine(left) << " | " << JsonLine(right)
                 << "\n";
  }
  int End() {
    if (json_) {
      PrintJson({{"equal", differences_ == 0}, {"differences", differences_}}, console_);
    } else if (differences_ == 0) {
      console_.out << "equal\n";
    }
    console_.out << std::flush;
    return differences_ == 0 ? kExitOk : kExitFailed;
  }

 private:
  const bool json_;
  Console& console_;
  size_t differences_ = 0;
};

void CompareTokens(const Manifest& left, const Manifest& right, Report* report) {
  if (left.token_count != right.token_count) {
    report->Add("state", "token_count", left.token_count, right.token_count);
  }
  const auto& a = left.token_ids;
  const auto& b = right.token_ids;
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at != a.end() && other != b.end()) {
    report->Add("token", absl::StrCat("at ", at - a.begin()), *at, *other);
  }
  if (left.cuts != right.cuts) report->Add("state", "cuts", left.cuts, right.cuts);
  if (left.attention_mask != right.attention_mask) {
    report->Add("state", "attention_mask", left.attention_mask, right.attention_mask);
  }
}

// Returns the digest of each slice. The key is the object and the model layer.
std::map<std::pair<ObjectId, uint32_t>, uint64_t> DigestsOf(const SnapshotHeader& header) {
  std::map<std::pair<ObjectId, uint32_t>, uint64_t> digests;
  for (const ManifestObject& object : header.manifest.objects) {
    const std::vector<uint32_t> layers = header.layout.LayersOf(object.id.group);
    for (size_t i = 0; i < layers.size(); ++i) {
      digests[{object.id, layers[i]}] = object.slice_digests[i];
    }
  }
  return digests;
}

void CompareSlices(const SnapshotHeader& left, const SnapshotHeader& right, Report* report) {
  const auto theirs = DigestsOf(right);
  for (const auto& [name, digest] : DigestsOf(left)) {
    const auto other = theirs.find(name);
    // If the other file does not have this slice, the files end at different token counts, and that
    // difference is reported already.
    if (other == theirs.end() || other->second == digest) continue;
    const auto& [id, layer] = name;
    report->Add(
        "slice",
        absl::StrCat("layer ", layer, ", tokens [", id.begin, ", ", id.begin + id.tokens, ")"),
        absl::StrCat(absl::Hex(digest, absl::kZeroPad16)),
        absl::StrCat(absl::Hex(other->second, absl::kZeroPad16)));
  }
}

int RunDiff(const DiffFlags& flags, Console& console) {
  const auto left = ReadHeader(flags.left);
  if (!left.ok()) return Fail(console, left.status());
  const auto right = ReadHeader(flags.right);
  if (!right.ok()) return Fail(console, right.status());
  Report report(flags.json, console);
  for (const FieldDifference& field : Compare(left->fingerprint, right->fingerprint)) {
    report.Add("field", field.field, field.ours, field.theirs);
  }
  CompareTokens(left->manifest, right->manifest, &report);
  const KvLayout& a = left->layout;
  const KvLayout& b = right->layout;
  // If element types or layers differ, every slice differs. The comparison above has reported the
  // cause, so skip the slices.
  if (a.dtype == b.dtype && a.layers == b.layers && a.head_dim == b.head_dim &&
      a.quantization == b.quantization && a.page_bytes == b.page_bytes) {
    CompareSlices(*left, *right, &report);
  }
  return report.End();
}

}  // namespace

void AddDiffCommand(CommandLine* line) {
  const auto [command, flags] =
      line->Add<DiffFlags>("diff", "Compare two snapshot files", kDiffExamples, RunDiff);
  command->add_option("a", flags->left, "a snapshot file")->required();
  command->add_option("b", flags->right, "the other")->required();
  AddJson(command, &flags->json,
          " per difference: part, name, a, b; then one with equal, differences");
}

}  // namespace hearth
