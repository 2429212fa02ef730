#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
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

class Verifier {
 public:
  // `noted`: read before the database was opened, so that nothing later is missed.
  Verifier(const Database& db, const PointCount::Noted& noted) : db_(db), noted_(noted) {}

  absl::StatusOr<VerifyReport> Run() {
    absl::StatusOr<DiskContents> contents = LoadContents(db_, noted_, ThisBoot(), nullptr);
    if (!contents.ok()) return contents.status();
    for (const std::string& line : contents->damage) Problem(line);
    report_.missing_points = contents->lost_points;
    for (const uint64_t number : contents->unreadable_objects) {
      Problem(absl::StrCat("object ", number, ": record unreadable"));
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
      CheckSlices(object.record);
    }
    return std::move(report_);
  }

 private:
  void Problem(std::string text) {
    ++report_.problem_count;
    if (report_.problems.size() < VerifyReport::kMaxNamedProblems) {
      report_.problems.push_back(std::move(text));
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
        Problem(absl::StrCat("restore point ", number, ": manifest unreadable"));
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
        Problem(absl::StrCat(name, ": object ", record.objects[i], " is not the one it names"));
      }
    }
  }

  void CheckSlices(const ObjectRecord& object) {
    for (size_t i = 0; i < object.layers.size(); ++i) {
      const std::string name = absl::StrCat("object ", object.number, ", layer ", object.layers[i]);
      rocksdb::PinnableSlice value;
      const rocksdb::Status status =
          GetSlice(db_, {object.number, object.layers[i], 0, 0, object.in_table}, &value);
      ++report_.slices;
      if (!status.ok()) {
        Problem(absl::StrCat(name, status.IsNotFound() ? ": missing" : ": " + status.ToString()));
        continue;
      }
      report_.slice_bytes += value.size();
      if (value.size() != object.slice_bytes) {
        Problem(absl::StrCat(name, ": ", value.size(), " bytes, expected ", object.slice_bytes));
      } else if (SliceDigest(value.data(), value.size()) != object.slice_digests[i]) {
        Problem(absl::StrCat(name, ": bytes do not match their digest"));
      }
    }
  }

  const Database& db_;
  const PointCount::Noted noted_;
  absl::flat_hash_map<Digest, absl::StatusOr<KvLayout>> layouts_;
  absl::flat_hash_map<uint64_t, CheckedObject> objects_;
  VerifyReport report_;
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyDataDir(const std::string& dir) {
  if (absl::Status found = CheckCanBeOpened(dir); !found.ok()) return found;
  const PointCount::Noted noted = PointCount::Read(dir);
  std::unique_ptr<Database> db;
  if (absl::Status status = Database::Open(dir, Database::Mode::kLook, &db); !status.ok())
    return status;
  std::string version;
  const rocksdb::Status status =
      (*db)->Get(VerifiedReads(), db->family(kMeta), kVersionKey, &version);
  if (status.IsCorruption()) version = absl::StrCat(DiskTier::kFormatVersion);  // it is in damage
  if (!status.ok() && !status.IsCorruption()) {
    return absl::DataLossError(absl::StrCat(dir, ": no format version: ", status.ToString()));
  }
  if (absl::Status read = CheckVersion(dir, version); !read.ok()) return read;
  return Verifier(*db, noted).Run();
}

}  // namespace hearth
