#include <cassert>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/disk/damage_confirmation.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/point_count.h"
#include "cache_store/disk/verify.h"

namespace hearth {
namespace {

struct CheckedObject {
  ObjectRecord record;
  bool named = false;
};

// Descriptions of wrong data on disk, each with the name of its record.
using Wrongs = std::set<std::string>;

// Limit of problems that are remembered for a second read, to bound memory. Further problems are
// only counted.
constexpr size_t kMaxWrongs = 10000;
constexpr absl::Duration kPause = absl::Seconds(1);
constexpr int kMaxPasses = 5;

class Verifier {
 public:
  // `noted`: the saved count, read before the database was opened, so that points added later do
  // not count as missing.
  Verifier(const Database& db, const PointCount::Noted& noted) : db_(db), noted_(noted) {}

  // Reads the data in passes, and calls `wait` before each pass except the first. Wrong data that
  // two consecutive passes read in the same way is a problem; otherwise it is a misread.
  absl::StatusOr<VerifyReport> Run(absl::FunctionRef<void()> wait) {
    if (absl::Status read = Pass(); !read.ok()) return read;
    Wrongs problems, misreads;
    Wrongs last = std::move(wrongs_);
    for (int pass = 1; pass < kMaxPasses && !last.empty(); ++pass) {
      wait();
      if (absl::Status read = Pass(); !read.ok()) return read;
      for (const std::string& wrong : last) {
        (wrongs_.count(wrong) > 0 ? problems : misreads).insert(wrong);
      }
      last = std::move(wrongs_);
      for (const std::string& known : problems) last.erase(known);
    }
    misreads.merge(last);
    Name(problems, "", &report_.problem_count, &report_.problems);
    Name(misreads, "; a second read gave different bytes", &report_.misread_count,
         &report_.misreads);
    assert(report_.problems.size() <= VerifyReport::kMaxNamedProblems);
    assert(report_.misreads.size() <= VerifyReport::kMaxNamedProblems);
    report_.problem_count += unnamed_;
    return std::move(report_);
  }

 private:
  static void Name(const Wrongs& wrongs, absl::string_view end, uint64_t* count,
                   std::vector<std::string>* names) {
    *count = wrongs.size();
    for (const std::string& wrong : wrongs) {
      if (names->size() == VerifyReport::kMaxNamedProblems) return;
      names->push_back(absl::StrCat(wrong, end));
    }
  }

  // One pass: reads all records, and the slices of objects that no earlier pass found correct.
  absl::Status Pass() {
    report_ = VerifyReport();
    wrongs_.clear();
    unnamed_ = 0;
    layouts_.clear();
    objects_.clear();
    absl::StatusOr<DiskContents> contents = LoadContents(db_, noted_, ThisBoot(), nullptr);
    if (!contents.ok()) return contents.status();
    for (const std::string& line : contents->damage) Problem(line);
    report_.missing_points = contents->lost_points;
    for (const uint64_t number : contents->unreadable_objects) {
      Problem(absl::StrCat("object ", number, ": its record cannot be read"));
    }
    for (FingerprintRecord& known : contents->fingerprints) {
      layouts_.emplace(known.fingerprint.digest(), known.fingerprint.Layout());
    }
    for (ObjectRecord& object : contents->objects) {
      const uint64_t number = object.number;
      objects_.emplace(number, CheckedObject{std::move(object), false});
    }
    if (absl::Status read = CheckManifests(contents->manifests); !read.ok()) return read;
    report_.objects = objects_.size();
    for (const auto& [number, object] : objects_) {
      if (!object.named) {
        ++report_.unreferenced_objects;
        continue;
      }
      report_.slices += object.record.layers.size();
      report_.slice_bytes += object.record.layers.size() * object.record.slice_bytes;
      if (!right_.contains(number) && AreSlicesRight(object.record)) right_.insert(number);
    }
    return absl::OkStatus();
  }

  void Problem(std::string text) {
    if (wrongs_.size() < kMaxWrongs) {
      wrongs_.insert(std::move(text));
    } else {
      ++unnamed_;
      assert(wrongs_.size() == kMaxWrongs);
    }
  }

  absl::Status CheckManifests(absl::Span<const uint64_t> manifests) {
    for (const uint64_t number : manifests) {
      const auto read = LoadManifests(db_, {number});
      if (!read.ok()) return read.status();
      if ((*read)[0].has_value()) {
        CheckManifest(*(*read)[0]);
        ++report_.restore_points;
      } else {
        Problem(absl::StrCat("restore point ", number, ": its manifest cannot be read"));
      }
    }
    return absl::OkStatus();
  }

  void CheckManifest(const ManifestRecord& record) {
    const std::string name = absl::StrCat("restore point ", record.number, " (",
                                          record.manifest.token_count, " tokens)");
    const auto layout = layouts_.find(record.manifest.fingerprint);
    if (layout == layouts_.end()) {
      Problem(absl::StrCat(name, ": its fingerprint is not stored"));
      return;
    }
    absl::Status status = layout->second.status();
    if (status.ok()) status = ValidateManifest(record.manifest, *layout->second);
    if (!status.ok()) {
      Problem(absl::StrCat(name, ": ", status.message()));
      return;
    }
    for (size_t i = 0; i < record.objects.size(); ++i) {
      const auto it = objects_.find(record.objects[i]);
      if (it == objects_.end()) {
        Problem(absl::StrCat(name, ": object ", record.objects[i], " is missing"));
        continue;
      }
      it->second.named = true;
      const ObjectRecord& object = it->second.record;
      const ManifestObject& wanted = record.manifest.objects[i];
      if (!(object.id == wanted.id) || object.slice_digests != wanted.slice_digests) {
        Problem(absl::StrCat(name, ": object ", record.objects[i],
                             " is not the object that the manifest names"));
      }
    }
  }

  bool AreSlicesRight(const ObjectRecord& object) {
    bool is_right = true;
    const auto wrong = [&](size_t slice, absl::string_view what) {
      is_right = false;
      Problem(absl::StrCat("object ", object.number, ", layer ", object.layers[slice], ": ", what));
    };
    for (size_t i = 0; i < object.layers.size(); ++i) {
      rocksdb::PinnableSlice value;
      const rocksdb::Status status =
          GetSlice(db_, {object.number, object.layers[i], 0, 0, object.in_table}, &value);
      if (!status.ok()) {
        wrong(i, status.IsNotFound() ? "missing" : status.ToString());
        continue;
      }
      const uint64_t digest = SliceDigest(value.data(), value.size());
      if (value.size() != object.slice_bytes) {
        wrong(i, absl::StrCat(value.size(), " bytes; must have ", object.slice_bytes));
      } else if (digest != object.slice_digests[i]) {
        wrong(i, absl::StrCat("the bytes do not match the recorded digest; they have digest ",
                              absl::Hex(digest, absl::kZeroPad16)));
      }
    }
    return is_right;
  }

  const Database& db_;
  const PointCount::Noted noted_;
  absl::flat_hash_map<Digest, absl::StatusOr<KvLayout>> layouts_;
  absl::flat_hash_set<uint64_t> right_;  // objects whose slices were found correct
  // Fields of the current pass.
  absl::flat_hash_map<uint64_t, CheckedObject> objects_;
  VerifyReport report_;
  Wrongs wrongs_;
  uint64_t unnamed_ = 0;
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir, const VerifyOptions& options) {
  if (absl::Status found = CheckCanBeOpened(dir); !found.ok()) return found;
  const PointCount::Noted noted = PointCount::Read(dir);
  std::unique_ptr<Database> db;
  DiskTierOptions of_tier;
  of_tier.env = options.env;
  DamageConfirmation confirmation(dir, options.wait, nullptr);
  absl::Status opened;
  do {
    opened = Database::Open(dir, Database::Mode::kLook, &db, of_tier);
  } while (absl::IsDataLoss(opened) ? confirmation.ReadAgain(opened.message())
                                    : absl::StrContains(opened.message(), kReadsDifferently) &&
                                          confirmation.ReadAgainAfterMisread(opened.message()));
  if (!opened.ok()) return opened;
  std::string version;
  const rocksdb::Status status =
      (*db)->Get(VerifiedReads(), db->family(kMeta), kVersionKey, &version);
  if (status.IsCorruption())
    version = absl::StrCat(DiskTier::kFormatVersion);  // the damage is already in the report
  if (!status.ok() && !status.IsCorruption()) {
    return absl::DataLossError(
        absl::StrCat(dir, ": the format version cannot be read: ", status.ToString()));
  }
  if (absl::Status read = CheckVersion(dir, version); !read.ok()) return read;
  return Verifier(*db, noted).Run([&] {
    options.wait ? options.wait(kPause) : absl::SleepFor(kPause);
    DropCachedFiles(DatabasePath(dir));
  });
}

}  // namespace hearth
