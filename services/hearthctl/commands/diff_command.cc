// diff: what two snapshot files disagree about, without a server.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/snapshot_format.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/mapped_file.h"

namespace hearth {
namespace {

constexpr char kDiffExamples[] = R"(  hearthctl diff cold.snapshot warm.snapshot
  hearthctl diff a.snapshot b.snapshot --json
Compares the model's fields, tokens, cuts, and every slice both files have. Exit code 1 when they
differ, or one of them is missing or damaged.
)";

struct DiffFlags {
  std::string left, right;
  bool json = false;
};

// A file in memory, every byte of it checked.
struct Snapshot {
  std::unique_ptr<MappedFile> file;
  SnapshotHeader header;
};

absl::StatusOr<Snapshot> OpenSnapshot(const std::string& path) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  absl::Status status = VerifySnapshotFile((*file)->bytes());
  absl::StatusOr<SnapshotHeader> header = absl::UnknownError("");
  if (status.ok()) {
    header = ParseSnapshotHeader((*file)->bytes());
    status = header.status();
  }
  if (!status.ok()) return About(path, status);
  return Snapshot{*std::move(file), *std::move(header)};
}

// Prints each difference as it is found, and counts them.
class Report {
 public:
  Report(bool json, Console& console) : json_(json), console_(console) {}

  void Add(const char* part, const std::string& name, Json left, Json right,
           const std::string& more = "") {
    ++differences_;
    if (json_) {
      PrintJson({{"part", part}, {"name", name}, {"a", left}, {"b", right}}, console_);
      return;
    }
    console_.out << part << " " << name << ": " << JsonLine(left) << " | " << JsonLine(right)
                 << more << "\n";
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

// IEEE 754 binary16.
float HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float value = 0;
  if (exponent == 31) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

float ElementAt(KvDtype dtype, const char* data, size_t index) {
  if (dtype == KvDtype::kFloat32) {
    float value;
    std::memcpy(&value, data + 4 * index, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + 2 * index, sizeof(bits));
  if (dtype == KvDtype::kFloat16) return HalfValue(bits);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// How far two slices of one layout are apart.
struct Distance {
  size_t values = 0;  // that differ in any bit
  float largest = 0;
};
Distance DistanceOf(const KvLayout& layout, absl::string_view left, absl::string_view right) {
  Distance distance;
  const size_t width = KvDtypeBytes(layout.dtype);
  for (size_t i = 0; i < left.size() / width; ++i) {
    if (std::memcmp(left.data() + i * width, right.data() + i * width, width) == 0) continue;
    ++distance.values;
    const float gap = std::fabs(ElementAt(layout.dtype, left.data(), i) -
                                ElementAt(layout.dtype, right.data(), i));
    if (!(gap <= distance.largest)) distance.largest = gap;
  }
  return distance;
}

struct SlicePlace {
  uint64_t digest = 0;
  absl::string_view bytes;
};
using Slices = std::map<std::pair<ObjectId, uint32_t>, SlicePlace>;  // by object and model layer

Slices SlicesOf(const Snapshot& snapshot) {
  Slices slices;
  size_t next = 0;
  for (const ManifestObject& object : snapshot.header.manifest.objects) {
    const std::vector<uint32_t> layers = snapshot.header.layout.LayersOf(object.id.group);
    const size_t bytes = snapshot.header.layout.SliceBytes(object.id.tokens);
    for (size_t i = 0; i < layers.size(); ++i, ++next) {
      slices[{object.id, layers[i]}] = {
          object.slice_digests[i],
          snapshot.file->bytes().substr(snapshot.header.slice_offsets[next], bytes)};
    }
  }
  return slices;
}

void CompareSlices(const Snapshot& left, const Snapshot& right, Report* report) {
  const KvLayout& layout = left.header.layout;
  const Slices ours = SlicesOf(left), theirs = SlicesOf(right);
  for (const auto& [name, slice] : ours) {
    const auto other = theirs.find(name);
    if (other == theirs.end()) continue;  // another boundary: token_count said so
    if (slice.digest == other->second.digest) continue;
    const auto& [id, layer] = name;
    const std::string place =
        absl::StrCat("layer ", layer, ", tokens [", id.begin, ", ", id.begin + id.tokens, ")");
    if (slice.bytes.size() != other->second.bytes.size()) {
      report->Add("slice", place, slice.bytes.size(), other->second.bytes.size(), " bytes");
      continue;
    }
    if (layout.quantization.is_on() && id.tokens == layout.chunk_tokens) {
      report->Add("slice", place, Json{{"quantized_bytes", slice.bytes.size()}}, "other bytes");
      continue;
    }
    const Distance distance = DistanceOf(layout, slice.bytes, other->second.bytes);
    report->Add("slice", place,
                Json{{"values_that_differ", distance.values},
                     {"of", slice.bytes.size() / KvDtypeBytes(layout.dtype)}},
                Json{{"largest_gap", distance.largest}});
  }
}

int RunDiff(const DiffFlags& flags, Console& console) {
  const auto left = OpenSnapshot(flags.left);
  if (!left.ok()) return Fail(console, left.status());
  const auto right = OpenSnapshot(flags.right);
  if (!right.ok()) return Fail(console, right.status());
  Report report(flags.json, console);
  for (const FieldDifference& field :
       Compare(left->header.fingerprint, right->header.fingerprint)) {
    report.Add("field", field.field, field.ours, field.theirs);
  }
  CompareTokens(left->header.manifest, right->header.manifest, &report);
  const KvLayout& a = left->header.layout;
  const KvLayout& b = right->header.layout;
  // Other element types or layers were named as fields; their bytes cannot be compared.
  if (a.dtype == b.dtype && a.layers == b.layers && a.head_dim == b.head_dim &&
      a.quantization == b.quantization) {
    CompareSlices(*left, *right, &report);
  }
  return report.End();
}

}  // namespace

void AddDiffCommand(CommandSet* commands) {
  const auto [command, flags] =
      commands->Add<DiffFlags>("diff", "Compare two snapshot files", kDiffExamples, RunDiff);
  command->AddSnapshot("a", &flags->left).Required();
  command->Add("b", &flags->right, "the other").Required();
  command->AddJson(&flags->json,
                   " for each difference: part, name, a, b; last: equal, "
                   "differences");
}

}  // namespace hearth
