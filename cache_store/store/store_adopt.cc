// Manifests on their way into the catalog: read and checked without the lock, adopted under it, a
// few at a time. Which, and when, is store_load.cc's.
#include <algorithm>
#include <cassert>
#include <utility>

#include "cache_store/store/read_manifest.h"
#include "cache_store/store/sessions.h"
#include "cache_store/store/unloaded_index.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

// An object of it was found wrong while the index loaded, and is gone.
bool NamesRetired(const ManifestRecord& record, const UnloadedIndex::Objects& objects) {
  return std::any_of(record.objects.begin(), record.objects.end(), [&](uint64_t number) {
    const auto it = objects.find(number);
    return it != objects.end() && it->second.adopted != nullptr && it->second.adopted->retired;
  });
}

}  // namespace

// Reads and checks without the lock, adopts under it.
absl::Status Store::LoadManifests(absl::Span<const uint64_t> numbers) {
  std::shared_ptr<UnloadedIndex> unloaded;
  {
    absl::MutexLock lock(&state_->mu);
    unloaded = unloaded_;
  }
  if (unloaded == nullptr) return absl::OkStatus();  // all was loaded meanwhile
  for (size_t begin = 0; begin < numbers.size(); begin += kManifestsAtOnce) {
    const auto some = numbers.subspan(begin, kManifestsAtOnce);
    auto records = core_->tiers.disk->ReadManifests(some);
    if (!records.ok()) return records.status();
    std::vector<ReadManifest> read(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      if (!(*records)[i].has_value()) continue;
      ManifestRecord& record = *(*records)[i];
      // From here on it is the last use, as when it was written again.
      record.created_unix_s = std::max(record.created_unix_s, unloaded->UseOf(some[i]));
      read[i] = CheckManifest(std::move(record), *unloaded);
    }
    {
      absl::MutexLock lock(&state_->mu);
      if (unloaded_ == nullptr) break;
      for (size_t i = 0; i < some.size(); ++i) {
        if (unloaded_->Settle(some[i]) && !AdoptManifest(read[i])) NoteUseless(some[i], read[i]);
      }
    }
    ExpireByTheWay();  // while any is there, fewer boundaries are usable
  }
  return absl::OkStatus();
}

// Of a manifest that was not adopted.
void Store::NoteUseless(uint64_t number, const ReadManifest& read) {
  if (NamesRetired(read.record, unloaded_->objects())) return NoteRetired(number, read.point());
  core_->Count(Counter::kRecoveryDroppedManifests);
  if (unloaded_->WasPromised(number)) {
    unloaded_->NoteDropped(number);
  } else if (damage_.empty()) {
    // Of a damaged folder nothing is erased: what it seems to lack may be where nobody looked.
    state_->erasures.AddManifests({number});
  }
}

// Known, and said then: it goes as those went that were there.
void Store::NoteRetired(uint64_t number, const Digest& point) {
  retired_unloaded_.fetch_add(1);
  core_->Count(Counter::kRecoveryDroppedManifests);
  core_->meters.AddRemoved(Removal::kQuarantined);
  if (point != Digest{} && state_->catalog.Find(point) == nullptr) {
    state_->history.Record(point, Removal::kQuarantined, core_->clock->Now());
  }
  state_->erasures.AddManifests({number});
}

Store::ReadManifest Store::CheckManifest(ManifestRecord record, const UnloadedIndex& unloaded) {
  const Manifest& manifest = record.manifest;
  const auto found = unloaded.models().find({record.tenant, manifest.fingerprint});
  if (found == unloaded.models().end() || found->second == nullptr) return {};
  const KvLayout& layout = found->second->layout;
  if (!ValidateManifest(manifest, layout).ok()) return {};
  PromptChain chain = MakeChain(layout, RootKey(manifest.fingerprint, record.tenant, core_->secret),
                                manifest.token_ids, manifest.cuts, manifest.token_count,
                                {&manifest.token_count, 1});
  return {std::move(record), found->second, std::move(chain)};
}

// Rebuilds the path and the restore point of one manifest. False: it does not match its objects.
bool Store::AdoptManifest(const ReadManifest& read) {
  if (read.model == nullptr) return false;
  const ManifestRecord& record = read.record;
  const Manifest& manifest = record.manifest;
  const KvLayout& layout = read.model->layout;
  const PromptChain& chain = read.chain;
  UnloadedIndex::Objects* const table = &unloaded_->objects();
  const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
  if (last == nullptr || state_->catalog.Find(last->key) != nullptr) return false;
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = table->find(record.objects[i]);
    if (it == table->end()) return false;
    const ObjectRecord& object = it->second.record;
    const ManifestObject& named = manifest.objects[i];
    const KeyedSegment* segment =
        chain.EndingAt(named.id.begin + named.id.tokens, layout.chunk_tokens);
    if (segment == nullptr || object.key != segment->key || !(object.id == named.id) ||
        object.slice_digests != named.slice_digests ||
        object.layers != layout.LayersOf(named.id.group) ||
        object.slice_bytes != layout.SliceBytes(named.id.tokens)) {
      return false;
    }
    // Of two objects of one key the first adopted stays; a manifest naming the other goes, and so
    // does one of an object that was found rotten since.
    if (it->second.adopted != nullptr) {
      if (it->second.adopted->retired) return false;
    } else {
      const SegmentNode* node = state_->catalog.index().Find(segment->key);
      if (node != nullptr && node->objects[static_cast<size_t>(named.id.group)] != nullptr) {
        return false;
      }
    }
  }
  SegmentNode* node = state_->catalog.index().EnsureRoot(chain.root);
  std::vector<StoredObject*> objects;
  size_t next = 0;
  for (const Segment& segment : SegmentsTo(manifest.token_count, layout.chunk_tokens)) {
    const KeyedSegment& keyed = *chain.EndingAt(segment.end(), layout.chunk_tokens);
    node = state_->catalog.index().Ensure(node, keyed, manifest.token_ids);
    assert(node != nullptr);
    for (; next < record.objects.size(); ++next) {
      if (manifest.objects[next].id.begin != segment.begin) break;
      UnloadedIndex::Object& recovered = table->at(record.objects[next]);
      if (recovered.adopted == nullptr) {
        const ObjectRecord& object = recovered.record;
        recovered.adopted =
            state_->catalog.NewObject(object.number, object.key, object.id, object.slice_digests,
                                      object.layers, object.slice_bytes);
        state_->catalog.Link(recovered.adopted, node);
        state_->catalog.AdoptOnDisk(recovered.adopted, object.compressed_bytes);
      }
      objects.push_back(recovered.adopted);
    }
  }
  RestorePointEntry* point = state_->catalog.AddRestorePoint(
      record.number, record.tenant, read.model, node, std::move(objects), manifest.cuts,
      absl::FromUnixSeconds(record.created_unix_s));
  state_->catalog.AdoptEnd(point, EndOf(record), record.inherited);
  state_->catalog.SetDurable(point);
  state_->catalog.SetPinned(point, unloaded_->IsPinned(record.number));
  core_->Count(Counter::kRecoveredRestorePoints);
  // Whoever watches already was told of what there was.
  if (core_->options.load_in_background)
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  return true;
}

}  // namespace hearth
