// Taking out what somebody proved to be wrong, though its digests are right.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache_store/sessions.h"
#include "cache_store/unloaded_index.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {

std::vector<uint64_t> Store::PendingOf(const std::vector<uint64_t>& manifests) {
  std::vector<uint64_t> pending;
  absl::MutexLock lock(&mu_);
  for (const uint64_t number : manifests) {
    if (unloaded_ != nullptr && unloaded_->IsPending(number)) pending.push_back(number);
  }
  return pending;
}

absl::StatusOr<QuarantineResult> Store::Quarantine(const PrefixQuery& query,
                                                   absl::Span<const ObjectId> objects) {
  if (absl::Status status = CheckQuery(query); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  std::shared_ptr<const KnownFingerprint> model;
  {
    absl::MutexLock lock(&mu_);
    model = fingerprints_.Find(query.fingerprint, query.tenant);
  }
  if (model == nullptr) return absl::NotFoundError("nothing is stored for this fingerprint");
  std::vector<uint32_t> ends;
  for (const ObjectId& id : objects) {
    if (id.begin + id.tokens > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("objects: one ends at ", id.begin + id.tokens,
                                                     ", past the ", tokens, " tokens"));
    }
    ends.push_back(id.begin + id.tokens);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  const KvLayout& layout = model->layout;
  const PromptChain chain = MakeChain(layout, RootKey(query.fingerprint, query.tenant, secret_),
                                      query.token_ids, query.cuts, tokens, ends, query.stopped);
  if (!chain.is_whole) return absl::CancelledError("the caller went away");
  LoadFor(chain, layout);

  QuarantineResult result;
  absl::flat_hash_set<uint64_t> wrong;
  Unsettled left;
  {
    absl::MutexLock lock(&mu_);
    for (const ObjectId& id : objects) {
      const KeyedSegment* segment = chain.EndingAt(id.begin + id.tokens, layout.chunk_tokens);
      const SegmentNode* node =
          segment == nullptr ? nullptr : catalog_.index().Find(*segment, query.token_ids);
      StoredObject* object =
          node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
      if (object == nullptr || !(object->id == id)) continue;
      const std::string publisher = object->publisher == nullptr ? "" : *object->publisher;
      catalog_.Hold(object);
      wrong.insert(object->number);
      QuarantineLocked(object);
      catalog_.Release(object);
      ++result.objects;
      if (std::find(result.publishers.begin(), result.publishers.end(), publisher) ==
          result.publishers.end()) {
        result.publishers.push_back(publisher);
      }
    }
    left = SettleHost();
  }
  if (result.objects == 0) {
    SettleLater(left);
    return absl::NotFoundError("none of these objects is stored");
  }
  // Not later: their digests are right, so that no start would find out again what is wrong. What
  // is not loaded yet and names them is settled now, or it would bring them back after a crash.
  if (is_loading_.load()) {
    const absl::StatusOr<std::vector<uint64_t>> naming = disk_->ManifestsNaming(wrong);
    result.on_disk = naming.ok() ? LoadManifests(PendingOf(*naming)) : naming.status();
  }
  result.on_disk.Update(SettleDisk());
  if (disk_ != nullptr && result.on_disk.ok()) result.on_disk = disk_->Sync();
  return result;
}

}  // namespace hearth
