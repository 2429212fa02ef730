#include "cache_store/catalog/retention_feed.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

Retention::Key KeyOf(const Digest& key) {
  const ShortKey parts = ShortKey::Of(key);
  return absl::MakeUint128(parts.first, parts.second);
}

bool IsLocal(StoredObject* object) { return object->id.group == LayerGroup::kLocal; }

// Returns the restore point that is evicted together with `point`: a publish stores the prompt's
// end and the chunk boundary before it, with consecutive numbers. Null if there is none.
RestorePointEntry* Companion(const RestorePointEntry& point) {
  const SegmentNode* const before = point.node->parent;
  if (before->restore_point != nullptr && before->restore_point->number + 1 == point.number) {
    return before->restore_point;
  }
  for (const SegmentNode* after : point.node->children()) {
    RestorePointEntry* end = after->restore_point;
    if (end != nullptr && end->number == point.number + 1) return end;
  }
  return nullptr;
}

Retention::Facts FactsOf(const RestorePointEntry& point) {
  Retention::Facts facts;
  facts.owner = point.account->owner;
  facts.tokens = facts.gain_tokens = point.tokens();
  facts.cost_steps = point.model->cost_steps;
  uint32_t tail_begin = point.tokens();
  for (StoredObject* object : point.objects) {
    facts.bytes += object->bytes();
    if (!IsLocal(object)) continue;
    facts.tail_bytes += object->bytes();
    tail_begin = std::min(tail_begin, object->id.begin);
  }
  const SegmentNode* node = point.node->parent;
  while (node != nullptr && node->restore_point == nullptr) node = node->parent;
  if (node != nullptr) facts.parent = KeyOf(node->key);
  RestorePointEntry* with = Companion(point);
  if (with == nullptr) return facts;
  facts.with = KeyOf(with->id());
  for (StoredObject* object : with->objects) {
    if (!IsLocal(object) || object->id.begin >= tail_begin) continue;
    facts.tail_bytes += object->bytes();
    facts.bytes += object->bytes();
  }
  return facts;
}

}  // namespace

void RetentionFeed::BeginPublish(uint32_t tokens) {
  ++publish_.number;
  publish_.tokens = tokens;
}

void RetentionFeed::Add(RestorePointEntry* point, absl::Time now) {
  assert(!point->listed);
  retention_->Insert(KeyOf(point->id()), FactsOf(*point), {publish_.number, publish_.tokens, now});
  SetListed(point);
}

void RetentionFeed::Adopt(RestorePointEntry* point, absl::Time used, absl::Time now) {
  assert(!point->listed);
  retention_->Adopt(KeyOf(point->id()), FactsOf(*point), !point->node->children().empty(), used,
                    now);
  SetListed(point);
}

void RetentionFeed::SetListed(RestorePointEntry* point) {
  ++size_;
  assert(size_ == retention_->held());
  point->listed = true;
  Update(*point);
}

void RetentionFeed::Remove(const RestorePointEntry& point, bool may_return) {
  if (!point.listed) return;
  assert(size_ > 0);
  --size_;
  retention_->Erase(KeyOf(point.id()), may_return);
  assert(size_ == retention_->held());
}

void RetentionFeed::Update(const RestorePointEntry& point) {
  if (!point.listed) return;
  const Retention::Key key = KeyOf(point.id());
  retention_->SetEvictable(key, !point.pinned);
}

void RetentionFeed::Weigh(const RestorePointEntry& point, bool is_kept) {
  if (!point.listed) return;
  const int weight = Retention::kDoubleWorth * point.hint.priority;
  retention_->SetWeight(KeyOf(point.id()), is_kept ? Retention::kMaxWeight : weight);
}

void RetentionFeed::Renew(const std::vector<RestorePointEntry*>& path, absl::Time now) {
  std::vector<Retention::Key> keys;
  keys.reserve(path.size());
  for (RestorePointEntry* point : path) keys.push_back(KeyOf(point->id()));
  retention_->Renew(keys, now);
}

void RetentionFeed::Request(const PromptChain& chain, uint32_t tokens, absl::Time now) {
  std::vector<Retention::Key> path;
  path.reserve(chain.chunks.size() + chain.remainders.size());
  auto remainder = chain.remainders.begin();
  for (const KeyedSegment& chunk : chain.chunks) {
    for (; remainder != chain.remainders.end() && remainder->segment.end() < chunk.segment.end();
         ++remainder) {
      path.push_back(KeyOf(remainder->key));
    }
    path.push_back(KeyOf(chunk.key));
  }
  for (; remainder != chain.remainders.end(); ++remainder) path.push_back(KeyOf(remainder->key));
  retention_->Touch(path, tokens, now);
}

Retention::Answer RetentionFeed::Offer(Retention::Key key, Take take,
                                       RestorePointEntry** taken) const {
  const SegmentNode* const node =
      index_->Peek(ShortKey{absl::Uint128High64(key), absl::Uint128Low64(key)});
  assert(node != nullptr && node->restore_point != nullptr);
  RestorePointEntry* point = node->restore_point;
  const Retention::Answer answer = take(point);
  if (answer == Retention::Answer::kTake) *taken = point;
  return answer;
}

RestorePointEntry* RetentionFeed::Visit(Take take) const {
  RestorePointEntry* taken = nullptr;
  retention_->Visit([&](Retention::Key key) { return Offer(key, take, &taken); });
  return taken;
}

RestorePointEntry* RetentionFeed::VisitOwned(Retention::Owner owner, Take take) const {
  RestorePointEntry* taken = nullptr;
  retention_->VisitOwned(owner, [&](Retention::Key key) { return Offer(key, take, &taken); });
  return taken;
}

bool RetentionFeed::IsFirstVictim(const RestorePointEntry& point) const {
  return &point == Visit([](RestorePointEntry*) { return Retention::Answer::kTake; });
}

bool RetentionFeed::Contains(const RestorePointEntry& point) const {
  return point.listed && retention_->Contains(KeyOf(point.id()));
}

}  // namespace hearth
