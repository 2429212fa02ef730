// Checks at special times of a world: at its end, after a start of the store, and of a backup.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/disk/verify.h"
#include "proto/restore_rule.h"
#include "tests/simulation/world.h"

namespace hearth {

// Checks invariant 5: every listed restore point can be read, and all its bytes are right.
void World::ReadAll(TieredStore* store, const std::vector<RestorePoint>& listed) {
  for (const RestorePoint& point : listed) {
    if (point.expires_in <= absl::ZeroDuration() && !point.pinned)
      continue;  // expired, so the store is about to remove it
    const auto session = store->FetchById(point.id, point.tenant);
    if (!session.ok()) {
      time_.Violated(5, absl::StrCat("listed, and not there: ", session.status().ToString()));
      continue;
    }
    const LookupPlan& plan = (*session)->plan();
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        const auto slice = (*session)->ReadSlice(i, layer);
        if (slice.ok()) continue;
        const ObjectId& id = plan.objects[i].id;
        time_.Violated(5, absl::StrCat(slice.status().ToString(), ", object ", id.begin, "+",
                                       id.tokens, " of ", point.tenant, ":", point.tokens, " ",
                                       DigestHex(point.id).substr(0, 8)));
      }
    }
  }
}

// Checks invariant 29: if the disk has space again and nothing else is broken, the store accepts
// publishes again.
void World::ProbePublish() {
  if (other_disk_faults_ || node_.is_damaged() || !node_.is_roomy()) return;
  const size_t prompt = time_.seed() % oracle_.prompts().size();
  PublishSpec spec;
  spec.fingerprint = oracle_.fingerprint();
  spec.tenant = "dora";  // dora has no quota
  const SimPrompt& of = oracle_.prompts()[prompt];
  spec.token_ids.assign(of.tokens.begin(), of.tokens.begin() + 16);
  for (const uint32_t cut : of.cuts) {
    if (cut <= 16) spec.cuts.push_back(cut);
  }
  spec.boundaries = {16};
  spec.durability = Durability::kDisk;
  std::vector<std::string> slices;
  for (const ObjectId& id : NeededObjects(oracle_.layout(), 16)) {
    PublishObject object;
    object.id = id;
    for (const uint32_t layer : oracle_.layout().LayersOf(id.group)) {
      slices.push_back(oracle_.SliceOf(prompt, id, layer));
      object.slice_digests.push_back(SliceDigest(slices.back().data(), slices.back().size()));
    }
    spec.objects.push_back(std::move(object));
  }
  absl::Status status;
  for (int tries = 0; tries < 3; ++tries) {
    status = TryPublish(spec, slices);
    if (status.ok()) return;
    node_.RunJobs();
  }
  time_.Violated(29, absl::StrCat("there is room again, and no publish: ", status.ToString()));
}

absl::Status World::TryPublish(const PublishSpec& spec, const std::vector<std::string>& slices) {
  auto session = node_.store()->Publish(spec);
  if (!session.ok()) return session.status();
  size_t slice = 0;
  for (uint32_t i = 0; i < spec.objects.size(); ++i) {
    for (const uint32_t layer : oracle_.layout().LayersOf(spec.objects[i].id.group)) {
      const std::string& bytes = slices[slice++];
      auto memory = (*session)->AllocateSlice(bytes.size());
      if (!memory.ok()) return memory.status();
      std::memcpy(memory->get(), bytes.data(), bytes.size());
      const absl::Span<const std::byte> there(memory->get(), bytes.size());
      const absl::Status put = (*session)->PutSlice(i, layer, SliceView{*memory, there});
      if (!put.ok()) return put;
    }
  }
  const auto result = (*session)->Commit();
  if (!result.ok()) return result.status();
  if (result->durable >= Durability::kDisk) return absl::OkStatus();
  return absl::UnavailableError(absl::StrJoin(result->notes, "; "));
}

void World::BackUp() {
  if (!backed_up_.empty()) return;  // one backup per world, because a backup is slow
  const std::map<Digest, absl::Time> promised = node_.ledger()->Promised();
  const auto report = node_.store()->BackUp(backup_.path());
  time_.Note(absl::StrCat("backs up: ", absl::StatusCodeToString(report.status().code())));
  if (report.ok()) backed_up_ = promised;
}

// Checks invariant 19: the backup has every restore point that was promised when it was made, with
// all its objects.
void World::CheckBackup() {
  if (backed_up_.empty()) return;
  const std::string dir = restored_.File("data");
  const auto report = RestoreDataDir(backup_.path(), dir);
  if (!report.ok()) {
    if (!node_.is_damaged()) time_.Violated(19, report.status().ToString());
    return;
  }
  StoreOptions options = node_.options();
  options.data_dir = dir;
  options.device = nullptr;  // the device belongs to the node's store
  StoreSeams seams;
  seams.clock = time_.store_clock();
  const auto store = OpenStore(options, std::move(seams));
  if (!store.ok()) return time_.Violated(19, store.status().ToString());
  std::vector<RestorePoint> listed;
  for (const std::string& tenant : Node::Tenants()) {
    for (const RestorePoint& point : (*store)->List(tenant)) listed.push_back(point);
  }
  for (const RestorePoint& point : listed) backed_up_.erase(point.id);
  const absl::Time now = time_.store_clock()->Now() + absl::Seconds(1);
  for (const auto& [id, end] : backed_up_) {
    if (end <= now || node_.is_damaged()) continue;  // its promise has ended
    time_.Violated(19, absl::StrCat("not in the backup: ", DigestHex(id).substr(0, 8)));
  }
  // A backup contains earlier damage, but a store that is opened from the backup must not serve
  // damaged entries.
  if (!node_.is_damaged()) ReadAll(store->get(), listed);
}

}  // namespace hearth
