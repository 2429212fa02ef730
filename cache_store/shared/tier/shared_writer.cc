#include "cache_store/shared/tier/shared_writer.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {
// Collects values and writes them to the engine. Writes a head only after all parts that were added
// before it.
class SharedWriter::Batch {
 public:
  explicit Batch(SharedCore* core) : core_(core) {}

  absl::Status Add(std::string name, std::string value, absl::Duration life, bool is_head) {
    bytes_ += value.size();
    (is_head ? heads_ : parts_).push_back({std::move(name), std::move(value), life, is_head});
    if (bytes_ <= core_->options.max_in_flight_bytes) return absl::OkStatus();
    return is_head ? Send() : SendAll(&parts_);
  }
  absl::Status Send() {
    if (absl::Status status = SendAll(&parts_); !status.ok()) return status;
    assert(parts_.empty());  // a head is written after all parts of its object
    return SendAll(&heads_);
  }

 private:
  absl::Status SendAll(std::vector<SharedValue>* list) {
    const std::vector<SharedValue> values = std::exchange(*list, {});
    if (values.empty()) return absl::OkStatus();
    for (const SharedValue& value : values) {
      assert(bytes_ >= value.value.size());
      bytes_ -= value.value.size();
    }
    absl::Status status;
    const auto written = core_->engine->Set(values, core_->WriteDeadline());
    for (size_t i = 0; i < written.size(); ++i) {
      if (!written[i].ok()) {
        status.Update(written[i].status());
        core_->Count(Counter::kSharedWritesFailed);
      } else if (*written[i]) {
        core_->Count(Counter::kSharedWrittenBytes, values[i].value.size());
        if (values[i].only_if_absent) core_->Count(Counter::kSharedWrittenObjects);
      }
    }
    return status;
  }

  SharedCore* const core_;
  std::vector<SharedValue> parts_,
      heads_;  // heads are written only if absent; parts overwrite existing parts
  uint64_t bytes_ = 0;
};

SharedWriter::SharedWriter(SharedCore* core, std::unique_ptr<Executor> executor,
                           std::unique_ptr<Executor> waiting)
    : core_(core),
      ttl_policy_(core->options.ttl),
      executor_(executor != nullptr ? std::move(executor)
                                    : std::make_unique<ThreadExecutor>(kMaxQueuedBytes)),
      waiting_(waiting != nullptr
                   ? std::move(waiting)
                   : std::make_unique<ThreadExecutor>(kMaxWaiting, kWaitingThreads)) {}

SharedWriter::~SharedWriter() {
  stopping_.store(true);
  executor_.reset();
  waiting_.reset();
}

absl::Duration SharedWriter::TtlOf(const ObjectId& id, const KvLayout& layout) const {
  const uint32_t depth = id.begin / layout.chunk_tokens;
  return SharedTtlPolicy::TtlOf(core_->options.ttl, depth, id.tokens == layout.chunk_tokens);
}

absl::StatusOr<SharedPrompt> SharedWriter::PromptOf(const SharedWork& work, absl::Time deadline) {
  absl::StatusOr<SharedSpaces::SpacePtr> space = core_->spaces.Begin(work.tenant, deadline);
  if (!space.ok()) return space.status();
  assert(!work.boundaries.empty() && work.boundaries.back() <= work.token_ids.size());
  ChainPtr chain = ChainOf({}, work.layout, (*space)->RootOf(work.fingerprint), work.token_ids,
                           work.cuts, work.boundaries.back(), work.boundaries);
  return SharedPrompt{*space, work.layout, std::move(chain), work.token_ids};
}

absl::Status SharedWriter::Write(const SharedWork& work) {
  if (work.boundaries.empty()) return absl::OkStatus();
  const absl::StatusOr<SharedPrompt> prompt = PromptOf(work, core_->WriteDeadline());
  if (!prompt.ok()) {
    core_->Count(Counter::kSharedWritesFailed);
    return prompt.status();
  }
  absl::Status status;
  std::set<ObjectId> seen;
  for (auto it = work.boundaries.rbegin(); it != work.boundaries.rend(); ++it) {
    status = WritePoint(work, *prompt, *it, &seen);
    if (!status.ok()) break;
  }
  return status;
}

absl::Status SharedWriter::WritePoint(const SharedWork& work, const SharedPrompt& prompt,
                                      uint32_t boundary, std::set<ObjectId>* seen) {
  // The local store uses the same keys, unless all entries were dropped since.
  const KeyedSegment* const last = prompt.chain->EndingAt(boundary, work.layout.chunk_tokens);
  assert(last != nullptr);  // PromptOf() computed the keys of all boundaries
  auto session = core_->store->FetchById(last->key, work.tenant);
  if (!session.ok()) {
    core_->Count(Counter::kSharedWritesSkipped);
    return session.status();
  }
  const uint64_t drops = drops_.load();
  std::vector<size_t> objects;
  std::vector<std::string> heads;
  const std::vector<PlannedObject>& planned = (*session)->plan().objects;
  for (size_t i = planned.size(); i-- > 0;) {
    if (!seen->insert(planned[i].id).second) continue;
    objects.push_back(i);
    heads.push_back(prompt.NameOf(planned[i].id, 0));
  }
  if (objects.empty()) return absl::OkStatus();
  const std::vector<absl::StatusOr<bool>> there =
      core_->engine->Exists(heads, core_->WriteDeadline());
  assert(there.size() == objects.size() && heads.size() == objects.size());
  Batch batch(core_);
  std::vector<ObjectId> kept;
  std::vector<std::string> written;
  absl::Status sent;
  for (size_t i = 0; i < objects.size() && sent.ok(); ++i) {
    if (stopping_) return absl::CancelledError("the store is shutting down");
    if (!there[i].ok()) {
      core_->Count(Counter::kSharedWritesFailed);
      sent = there[i].status();
      break;
    }
    if (*there[i]) {
      kept.push_back(planned[objects[i]].id);
      continue;
    }
    written.push_back(heads[i]);
    sent = WriteObject(prompt, session->get(), objects[i], &batch);
  }
  if (sent.ok()) {
    ExtendObjects(prompt, kept);
    sent = batch.Send();
  }
  if (drops_.load() == drops) return sent;
  // If a restore point was dropped during the writes, check whether it was this one: its heads may
  // have been erased before this call wrote them.
  const absl::Status still = core_->store->FetchById(last->key, work.tenant).status();
  if (!absl::IsNotFound(still)) return sent;
  core_->engine->Erase(written, core_->WriteDeadline());
  return still;
}

absl::Status SharedWriter::WriteObject(const SharedPrompt& prompt, FetchSession* session,
                                       size_t object, Batch* batch) {
  assert(object < session->plan().objects.size());
  const PlannedObject& planned = session->plan().objects[object];
  const SharedShape shape = prompt.ShapeOf(planned.id);
  std::vector<SliceView> views;
  for (const uint32_t layer : prompt.layout.LayersOf(planned.id.group)) {
    absl::StatusOr<SliceView> view = session->ReadSlice(object, layer);
    if (!view.ok()) return view.status();
    views.push_back(*std::move(view));
  }
  assert(views.size() == planned.slice_digests.size() && views.size() == shape.slices);
  const absl::Time expires = session->plan().expires;
  const absl::Duration life =
      absl::Floor(std::min(TtlOf(planned.id, prompt.layout), expires - core_->clock->Now()),
                  absl::Milliseconds(1));
  if (life < absl::Milliseconds(1)) return absl::OkStatus();
  SharedFacts facts{planned.slice_digests, 0};
  if (expires != absl::InfiniteFuture()) {
    facts.expires_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(expires));
  }
  for (uint32_t part = shape.parts(); part-- > 0;) {
    std::string name = prompt.NameOf(planned.id, part);
    std::string value = prompt.space->Seal(name, shape.TextOf(part, facts, views));
    const absl::Status status = batch->Add(std::move(name), std::move(value), life, part == 0);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void SharedWriter::Schedule(SharedWork work, bool writes) {
  const uint64_t bytes =
      sizeof(SharedWork) + sizeof(uint32_t) * (work.token_ids.size() + work.cuts.size());
  auto shared = std::make_shared<const SharedWork>(std::move(work));
  const bool accepted = executor_->TrySchedule(bytes, [this, shared, writes] {
    if (stopping_) return;
    // errors are counted, not returned
    writes ? Write(*shared).IgnoreError() : ExtendExpiry(*shared);
  });
  if (!accepted && writes) core_->Count(Counter::kSharedWritesSkipped);
}

void SharedWriter::WriteThen(SharedWork work, std::function<void(absl::Status)> done) {
  auto shared = std::make_shared<const SharedWork>(std::move(work));
  const bool accepted = waiting_->TrySchedule(1, [this, shared, done] { done(Write(*shared)); });
  if (accepted) return;
  core_->Count(Counter::kSharedWritesSkipped);
  done(
      absl::ResourceExhaustedError("too many publishes wait for the shared tier; try again later"));
}

bool SharedWriter::RunInBackground(std::function<void()> job) {
  return waiting_->TrySchedule(1, [this, job = std::move(job)] {
    if (!stopping_) job();
  });
}

void SharedWriter::NoteUse(SharedWork work) {
  uint64_t digest = SliceDigest(work.token_ids.data(), 4 * work.token_ids.size());
  digest ^= SliceDigest(work.fingerprint.data(), work.fingerprint.size());
  digest ^= SliceDigest(work.tenant.data(), work.tenant.size()) * 3;
  {
    const absl::Time now = core_->steady->Now();
    absl::MutexLock lock(&mu_);
    if (!ttl_policy_.ExtendsExpiry(digest, now)) return;
  }
  Schedule(std::move(work), false);
}

void SharedWriter::ExtendExpiry(const SharedWork& work) {
  const absl::StatusOr<SharedPrompt> prompt = PromptOf(work, core_->WriteDeadline());
  if (!prompt.ok()) return;
  std::vector<ObjectId> ids = NeededObjects(work.layout, work.boundaries.back());
  std::reverse(ids.begin(), ids.end());  // the same order as for writes
  ExtendObjects(*prompt, ids);
}

void SharedWriter::ExtendObjects(const SharedPrompt& prompt, absl::Span<const ObjectId> ids) {
  std::vector<SharedExpiry> expiries;
  for (const ObjectId& id : ids) {
    const uint32_t parts = prompt.ShapeOf(id).parts();
    for (uint32_t part = 0; part < parts; ++part) {
      expiries.push_back({prompt.NameOf(id, part), TtlOf(id, prompt.layout)});
    }
  }
  if (!expiries.empty()) core_->engine->ExtendExpiry(expiries, core_->WriteDeadline());
}

}  // namespace hearth
