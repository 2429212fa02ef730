#include "cache_store/store/background/manifest_adopter.h"

#include <cassert>
#include <utility>

#include "proto/prefix_key.h"

namespace hearth {

Digest ReadManifest::point() const {
  if (model == nullptr) return {};
  const KeyedSegment* last =
      chain.EndingAt(record.manifest.token_count, model->layout.chunk_tokens);
  return last == nullptr ? Digest{} : last->key;
}

ReadManifest ManifestAdopter::Check(ManifestRecord record, const UnloadedIndex& unloaded) const {
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

bool ManifestAdopter::Adopt(const ReadManifest& read, UnloadedIndex* unloaded) {
  state_->mu.AssertHeld();
  if (read.model == nullptr) return false;
  const ManifestRecord& record = read.record;
  const Manifest& manifest = record.manifest;
  const KvLayout& layout = read.model->layout;
  const PromptChain& chain = read.chain;
  UnloadedIndex::Objects* const table = &unloaded->objects();
  const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
  if (last == nullptr || state_->catalog.Find(last->key) != nullptr) return false;
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = table->find(record.objects[i]);
    if (it == table->end()) return false;
    const ObjectRecord& object = it->second.record;
    const ManifestObject& named = manifest.objects[i];
    const KeyedSegment* segment =
        chain.EndingAt(named.id.begin + named.id.tokens, layout.chunk_tokens);
    if (segment == nullptr || object.key != segment->key || !IsObjectNamed(object, named, layout)) {
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
  std::vector<const StoredObject*> objects;
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
            state_->objects.NewObject(object.number, object.key, object.id, object.slice_digests,
                                      object.layers, object.slice_bytes);
        state_->objects.Link(recovered.adopted, node);
        state_->objects.AdoptOnDisk(recovered.adopted, object.compressed_bytes);
      }
      objects.push_back(recovered.adopted);
    }
  }
  const RestorePointEntry* point = state_->catalog.AddRestorePoint(
      record.number, record.tenant, read.model, node, std::move(objects), manifest.cuts,
      absl::FromUnixSeconds(record.created_unix_s));
  state_->catalog.AdoptEnd(point, EndOf(record), record.inherited);
  state_->catalog.SetDurable(point);
  state_->catalog.SetPinned(point, unloaded->IsPinned(record.number));
  core_->Count(Counter::kRecoveredRestorePoints);
  // Watchers that came earlier have not seen it yet.
  if (core_->options.load_in_background) {
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  }
  return true;
}

}  // namespace hearth
