#include "services/hearthctl/stopped_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/disk/data_folder.h"
#include "services/cli/command_line.h"
#include "services/cli/console.h"
#include "services/hearthctl/snapshot_writer.h"
#include "services/serving/door/identity.h"
#include "services/store/result_conversion.h"

namespace hearth {
namespace {

// Nothing is to leave because hearthctl was not told the store's limits: the store applies them
// when it opens the folder next.
constexpr uint64_t kNoLimitBytes = uint64_t{1} << 50;

bool IsThere(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Manifest PlannedManifest(const LookupPlan& plan) {
  Manifest manifest;
  manifest.fingerprint = plan.fingerprint.digest();
  manifest.token_count = manifest.next_position = plan.usable_tokens;
  manifest.token_ids = plan.token_ids;
  manifest.cuts = plan.cuts;
  for (const PlannedObject& object : plan.objects) {
    manifest.objects.push_back({object.id, object.slice_digests});
  }
  return manifest;
}

}  // namespace

void StoppedStoreFlags::Declare(CommandFlags* command) {
  command->Add("--data-dir", &data_dir,
               "a stopped store's data folder, instead of a running store");
  command->Add("--secret-file", &secret_file,
               "with --data-dir: the secret, where the store was given one");
}

std::string SecretIsNotIn(const std::string& dir) {
  return "the secret of the keys is not in " + dir;
}

StoppedStore::StoppedStore(std::unique_ptr<TieredStore> store, std::string data_dir,
                           std::string tenant)
    : store_(std::move(store)), data_dir_(std::move(data_dir)), tenant_(std::move(tenant)) {}

absl::StatusOr<std::unique_ptr<StoppedStore>> StoppedStore::Open(const StoppedStoreFlags& flags,
                                                                 const std::string& tenant) {
  const std::string& dir = flags.data_dir;
  if (absl::Status found = CheckCanBeOpened(dir); !found.ok()) return found;
  // A store would make one.
  if (flags.secret_file.empty() && !IsThere(dir + "/secret")) {
    return absl::FailedPreconditionError(
        SecretIsNotIn(dir) + ": pass --secret-file FILE, the one that the store was started with");
  }
  StoreOptions options;
  options.data_dir = dir;
  options.secret_file = flags.secret_file;
  options.host_bytes = 0;
  options.disk_bytes = kNoLimitBytes;
  options.max_staged_bytes = kNoLimitBytes;
  options.scrub.bytes_per_s = 0;
  auto store = TieredStore::Open(options);
  if (!store.ok() && absl::StrContains(store.status().message(), "held by another process")) {
    return absl::FailedPreconditionError(absl::StrCat(
        store.status().message(), "; stop it, or ask the store that runs: --store ADDR"));
  }
  if (!store.ok()) return store.status();
  return std::unique_ptr<StoppedStore>(
      new StoppedStore(*std::move(store), dir, tenant.empty() ? kDefaultTenant : tenant));
}

std::vector<v1::RestorePointInfo> StoppedStore::List() {
  std::vector<v1::RestorePointInfo> points;
  for (const RestorePoint& point : store_->List(tenant_)) {
    RestorePointToProto(point, &points.emplace_back());
  }
  return points;
}

absl::StatusOr<uint64_t> StoppedStore::Export(const Digest& id, const std::string& path,
                                              bool replaces) {
  auto session = store_->FetchById(id, tenant_);
  if (!session.ok()) return About(data_dir_, session.status());
  const LookupPlan& plan = (*session)->plan();
  auto writer = SnapshotWriter::Create(path, plan.fingerprint, PlannedManifest(plan), replaces);
  if (!writer.ok()) return writer.status();
  for (size_t i = 0; i < plan.objects.size(); ++i) {
    for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
      const absl::StatusOr<SliceView> slice = (*session)->ReadSlice(i, layer);
      if (!slice.ok()) return slice.status();
      const absl::string_view bytes(reinterpret_cast<const char*>(slice->bytes.data()),
                                    slice->bytes.size());
      if (absl::Status status = (*writer)->WriteSlice(i, layer, 0, bytes); !status.ok()) {
        return status;
      }
    }
  }
  if (absl::Status status = (*writer)->Commit(); !status.ok()) return status;
  return (*writer)->file_bytes();
}

absl::StatusOr<v1::PublishAck> StoppedStore::Import(const SnapshotHeader& header,
                                                    absl::string_view file) {
  const Manifest& manifest = header.manifest;
  PublishSpec spec;
  spec.fingerprint = header.fingerprint;
  spec.tenant = tenant_;
  spec.token_ids = manifest.token_ids;
  spec.cuts = manifest.cuts;
  spec.boundaries = {manifest.token_count};
  spec.durability = Durability::kSync;
  std::vector<size_t> first_slice;
  size_t slices = 0;
  for (const ManifestObject& object : manifest.objects) {
    spec.objects.push_back({object.id, object.slice_digests, false});
    first_slice.push_back(slices);
    slices += object.slice_digests.size();
  }
  auto publish = store_->Publish(std::move(spec));
  if (!publish.ok()) return publish.status();
  for (const uint32_t object : (*publish)->needed()) {
    const ObjectId& id = manifest.objects[object].id;
    const std::vector<uint32_t> layers = header.layout.LayersOf(id.group);
    const size_t bytes = header.layout.SliceBytes(id.tokens);
    for (size_t i = 0; i < layers.size(); ++i) {
      const absl::StatusOr<std::shared_ptr<std::byte>> room = (*publish)->AllocateSlice(bytes);
      if (!room.ok()) return room.status();
      const std::shared_ptr<std::byte>& slice = *room;
      std::memcpy(slice.get(), file.data() + header.slice_offsets[first_slice[object] + i], bytes);
      const absl::Status put =
          (*publish)->PutSlice(object, layers[i], {slice, {slice.get(), bytes}});
      if (!put.ok()) return put;
    }
  }
  const absl::StatusOr<PublishResult> result = (*publish)->Commit();
  if (!result.ok()) return result.status();
  if (std::count(result->boundaries.begin(), result->boundaries.end(), manifest.token_count) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(data_dir_, " did not keep it: ", absl::StrJoin(result->notes, "; ")));
  }
  v1::PublishAck ack;
  ResultToProto(*result, &ack);
  return ack;
}

}  // namespace hearth
